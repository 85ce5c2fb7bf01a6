package breaker

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A tableThing is an entry that says whether it may go.
type tableThing struct{ kept, gone bool }

func newThing() *tableThing { return new(tableThing) }

func newThings(size int) *table[tableThing] {
	return newTable(size, func(e *tableThing) bool {
		e.gone = !e.kept
		return e.gone
	})
}

func keysOf(t *table[tableThing]) (keys []string) {
	t.keys(func(key string) bool { keys = append(keys, key); return true })
	slices.Sort(keys)
	return keys
}

// Sizes about those of a page: the table is full exactly at its size, and from
// then on a new entry takes the place of one that may go.
func TestTableHoldsAsManyAsItsSize(t *testing.T) {
	for _, size := range []int{1, 2, tablePage - 1, tablePage, tablePage + 1, 3*tablePage + 7} {
		things := newThings(size)
		for i := range size {
			key := fmt.Sprint("key-", i)
			e := things.add(key, newThing)
			require.NotNil(t, e)
			e.kept = i != size/2
			assert.Same(t, e, things.add(key, newThing))
			assert.Same(t, e, things.get(key))
		}
		require.Len(t, keysOf(things), size)
		middle := fmt.Sprint("key-", size/2)
		goes := things.get(middle)

		var late *tableThing
		for range size/searchLimit + 1 { // each looks at some
			if late = things.add("late", newThing); late != nil {
				break
			}
		}
		require.NotNil(t, late, "size %d", size)
		assert.True(t, goes.gone)
		assert.Nil(t, things.get(middle))
		late.kept = true
		for range 2*size/searchLimit + 2 {
			assert.Nil(t, things.add("later", newThing), "all are worth keeping")
		}
		assert.Len(t, keysOf(things), size)
		assert.Same(t, late, things.get("late"))
	}
}

// Keys of one hash are told apart, whichever of them goes when.
func TestTableTellsKeysOfOneHashApart(t *testing.T) {
	const hash = 4711
	keys := []string{"a", "b", "c"}
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		things := newThings(len(keys))
		entries := make([]*tableThing, len(keys))
		for i, key := range keys {
			entries[i] = things.insert(key, hash, newThing)
			entries[i].kept = true
			assert.Same(t, entries[i], things.insert(key, hash, newThing))
		}
		assert.Equal(t, keys, keysOf(things))
		assert.Nil(t, things.find("d", hash))
		for n, i := range order {
			entries[i].kept = false
			for i := range 2 * len(keys) { // until it is the first of them, it stays
				if e := things.insert(fmt.Sprint("new-", n, i), uint64(100*n+i), newThing); e != nil {
					e.kept = true
				}
			}
			for j, key := range keys {
				if entries[j].gone {
					assert.Nil(t, things.find(key, hash))
				} else {
					assert.Same(t, entries[j], things.find(key, hash), "%s, after %v", key, order[:n+1])
				}
			}
		}
		for i := range keys {
			assert.True(t, entries[i].gone, "all went, in whichever order they might")
		}
	}
}

// A lookup takes no lock, and finds what is there all the time, whatever comes
// and goes beside it, and while its part grows.
func TestTableLookupsMissNothingWhileItChanges(t *testing.T) {
	const there, size, others = 100, 2000, 20_000
	things := newThings(size)
	want := make([]*tableThing, there)
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for i := range want {
		want[i] = things.add(fmt.Sprint("there-", i), func() *tableThing { return &tableThing{kept: true} })
	}
	for range 2 {
		readers.Go(func() {
			for i := 0; ; i = (i + 1) % there {
				select {
				case <-stop:
					return
				default:
				}
				if got := things.get(fmt.Sprint("there-", i)); got != want[i] {
					t.Errorf("there-%d: got %p, want %p", i, got, want[i])
					return
				}
				if i == 0 {
					seen := 0
					things.keys(func(key string) bool {
						if strings.HasPrefix(key, "there-") {
							seen++
						}
						return true
					})
					if seen != there {
						t.Errorf("a walk saw %d of %d", seen, there)
						return
					}
				}
			}
		})
	}
	for i := range others {
		key, e := fmt.Sprint("other-", i), (*tableThing)(nil)
		for tries := 0; e == nil && tries <= there/searchLimit+1; tries++ { // each looks at some
			e = things.add(key, newThing)
		}
		require.NotNil(t, e)
	}
	close(stop)
	readers.Wait()
}
