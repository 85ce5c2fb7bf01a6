package breaker

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
)

// A table is a map of bounded size from keys to entries. Looking an entry up
// takes no lock: readers follow links that never change, and a writer, of whom
// there is one at a time, puts new ones in their place. No call pauses for a
// walk through a large table: it grows in parts, each by itself, and the search
// for an entry to retire is a short one.
type table[E any] struct {
	seed  maphash.Seed
	parts [tableParts]atomic.Pointer[tablePart[E]] // nil: nothing was ever in it

	// retire gives an entry up for good if it holds nothing worth keeping, and
	// says whether it did.
	retire func(*E) bool

	_ [cacheLine]byte // lookups read what is above, additions write what is below

	mu    sync.Mutex // guards what follows, and every change of parts
	max   int
	count int
	pages [][]tableSlot[E] // every entry, in no order that matters
	hand  int              // where the search for one to retire goes on
}

const (
	tableParts  = 32
	tablePage   = 64 // slots in a page
	searchLimit = 64 // entries that one addition looks at for one to retire
	cacheLine   = 64 // bytes
)

type tableSlot[E any] struct {
	hash  uint64
	key   string
	entry *E
}

// A tablePart has a power of two of buckets. All lookups read it: it and its
// buckets fill cache lines, lest something that is written often be in the same
// one.
type tablePart[E any] struct {
	buckets []atomic.Pointer[tableLink[E]]
	count   int // of its entries; guarded by the table's mu
	_       [cacheLine - 32]byte
}

// A tableLink is an entry of a bucket. An entry is apart from it, so that what
// is written to one entry does not slow the lookups of others.
type tableLink[E any] struct {
	tableSlot[E]
	next *tableLink[E]
}

func newTable[E any](size int, retire func(*E) bool) *table[E] {
	return &table[E]{seed: maphash.MakeSeed(), retire: retire, max: size}
}

// get returns the entry of key, nil if it has none.
func (t *table[E]) get(key string) *E { return t.find(key, maphash.String(t.seed, key)) }

func (t *table[E]) find(key string, hash uint64) *E {
	part := t.parts[hash%tableParts].Load()
	if part == nil {
		return nil
	}
	for l := part.bucket(hash).Load(); l != nil; l = l.next {
		if l.hash == hash && l.key == key {
			return l.entry
		}
	}
	return nil
}

// add returns the entry of key, which it makes if there is none. It returns
// nil if the table is full of entries worth keeping.
func (t *table[E]) add(key string, fresh func() *E) *E {
	return t.insert(key, maphash.String(t.seed, key), fresh)
}

func (t *table[E]) insert(key string, hash uint64, fresh func() *E) *E {
	if e := t.find(key, hash); e != nil {
		return e
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.find(key, hash); e != nil {
		return e
	}
	s := t.vacant()
	if s == nil {
		return nil
	}
	*s = tableSlot[E]{hash, key, fresh()}
	t.link(*s)
	return s.entry
}

// vacant returns an empty slot, nil if there is none. It requires t.mu.
func (t *table[E]) vacant() *tableSlot[E] {
	if t.count < t.max {
		if t.count%tablePage == 0 {
			t.pages = append(t.pages, make([]tableSlot[E], min(tablePage, t.max-t.count)))
		}
		t.count++
		return t.slot(t.count - 1)
	}
	for range min(searchLimit, t.count) {
		s := t.slot(t.hand)
		t.hand = (t.hand + 1) % t.count
		if t.retire(s.entry) {
			t.unlink(*s)
			return s
		}
	}
	return nil
}

// slot requires t.mu.
func (t *table[E]) slot(i int) *tableSlot[E] { return &t.pages[i/tablePage][i%tablePage] }

// link requires t.mu.
func (t *table[E]) link(s tableSlot[E]) {
	at := &t.parts[s.hash%tableParts]
	part := at.Load()
	if part == nil || part.count == len(part.buckets) {
		part = part.grown()
		at.Store(part)
	}
	part.push(s)
}

// unlink requires t.mu. The links before that of s are made anew, so that who is
// just there goes on as if nothing had happened.
func (t *table[E]) unlink(s tableSlot[E]) {
	part := t.parts[s.hash%tableParts].Load()
	bucket := part.bucket(s.hash)
	l := bucket.Load()
	var before []tableSlot[E]
	for ; l.entry != s.entry; l = l.next {
		before = append(before, l.tableSlot)
	}
	l = l.next
	for _, s := range before {
		l = &tableLink[E]{s, l}
	}
	bucket.Store(l)
	part.count--
}

// grown returns a part with the entries of p, which may be nil, and twice its
// buckets. Readers of p find there what was there.
func (p *tablePart[E]) grown() *tablePart[E] {
	if p == nil {
		return &tablePart[E]{buckets: make([]atomic.Pointer[tableLink[E]], cacheLine/8)}
	}
	g := &tablePart[E]{buckets: make([]atomic.Pointer[tableLink[E]], 2*len(p.buckets))}
	p.each(func(s tableSlot[E]) bool {
		g.push(s)
		return true
	})
	return g
}

func (p *tablePart[E]) push(s tableSlot[E]) {
	bucket := p.bucket(s.hash)
	bucket.Store(&tableLink[E]{s, bucket.Load()})
	p.count++
}

func (p *tablePart[E]) bucket(hash uint64) *atomic.Pointer[tableLink[E]] {
	return &p.buckets[hash/tableParts&uint64(len(p.buckets)-1)]
}

// each calls yield for each entry until it returns false, as it then does itself.
func (p *tablePart[E]) each(yield func(tableSlot[E]) bool) bool {
	for i := range p.buckets {
		for l := p.buckets[i].Load(); l != nil; l = l.next {
			if !yield(l.tableSlot) {
				return false
			}
		}
	}
	return true
}

// keys calls yield for each key until it returns false. Whether it does for one
// that comes or goes meanwhile is not said.
func (t *table[E]) keys(yield func(key string) bool) {
	for i := range t.parts {
		part := t.parts[i].Load()
		if part != nil && !part.each(func(s tableSlot[E]) bool { return yield(s.key) }) {
			return
		}
	}
}
