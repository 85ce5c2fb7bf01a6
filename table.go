package breaker

import (
	"sync"

	"github.com/puzpuzpuz/xsync/v4"
)

// A table is a map of bounded size from keys to entries. Looking an entry up
// takes no lock.
type table[E any] struct {
	entries *xsync.Map[string, *E]

	// retire gives an entry up for good if it holds nothing worth keeping, and
	// says whether it did.
	retire func(*E) bool

	mu   sync.Mutex // guards slots and hand, and every change of entries
	max  int
	slot []tableSlot[E] // every entry, in no order that matters
	hand int            // where the search for one to retire goes on
}

type tableSlot[E any] struct {
	key   string
	entry *E
}

// searchLimit is how many entries one addition looks at for one to retire, so
// that no call pauses for a walk through a large table.
const searchLimit = 64

func newTable[E any](size int, retire func(*E) bool) *table[E] {
	return &table[E]{entries: xsync.NewMap[string, *E](), retire: retire, max: size}
}

// get returns the entry of key, nil if it has none.
func (t *table[E]) get(key string) *E {
	e, _ := t.entries.Load(key)
	return e
}

// add returns the entry of key, which it makes if there is none. It returns
// nil if the table is full of entries worth keeping.
func (t *table[E]) add(key string, fresh func() *E) *E {
	if e := t.get(key); e != nil {
		return e
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.get(key); e != nil {
		return e
	}
	i := len(t.slot)
	if i < t.max {
		t.slot = append(t.slot, tableSlot[E]{})
	} else if i = t.vacate(); i < 0 {
		return nil
	}
	e := fresh()
	t.slot[i] = tableSlot[E]{key, e}
	t.entries.Store(key, e)
	return e
}

// vacate empties one slot and returns its index, or -1. It requires t.mu.
func (t *table[E]) vacate() int {
	for range min(searchLimit, len(t.slot)) {
		i := t.hand
		t.hand = (t.hand + 1) % len(t.slot)
		if s := t.slot[i]; t.retire(s.entry) {
			t.entries.Delete(s.key)
			return i
		}
	}
	return -1
}
