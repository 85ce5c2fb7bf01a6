// Package gauges has what the metrics modules share: a bounded set of label
// values for keys, and a bounded reading of the circuits for a scrape.
package gauges

import (
	"strconv"
	"sync"
	"sync/atomic"
	"unicode/utf8"
)

// Other is the label of all keys that have none of their own.
const Other = "other"

// Labels gives keys a label each, first come, first served, up to a bound.
// Each label has a value, such as its counters. Make one with NewLabels; its
// methods may be called concurrently.
type Labels[T any] struct {
	max   int
	value func(label string) T
	other *T
	full  atomic.Bool // no key gets a label now
	byKey sync.Map    // *labelled[T] by key

	mu     sync.Mutex
	owners map[string]string // whose each label is
}

type labelled[T any] struct {
	label string
	value T
	used  atomic.Bool // since Drop last looked
}

// NewLabels returns Labels for at most max keys, and for Other.
func NewLabels[T any](max int, value func(label string) T) *Labels[T] {
	other := value(Other)
	return &Labels[T]{
		max: max, value: value, other: &other,
		owners: map[string]string{Other: ""},
	}
}

// Use returns the value of key's label, or that of Other. It is lock-free for
// a key that has a label, and for all others once none is left.
func (l *Labels[T]) Use(key string) *T {
	e := l.find(key)
	if e == nil {
		if l.full.Load() {
			return l.other
		}
		if e = l.add(key); e == nil {
			return l.other
		}
	}
	if !e.used.Load() { // so that a busy key's flag is read by many cores, and not written
		e.used.Store(true)
	}
	return &e.value
}

// Label returns key's label, and whether it is its own. A key without one gets
// it if there is room.
func (l *Labels[T]) Label(key string) (label string, own bool) {
	e := l.find(key)
	if e == nil {
		e = l.add(key)
	}
	if e == nil {
		return Other, false
	}
	return e.label, true
}

// Keys returns the keys that have a label.
func (l *Labels[T]) Keys() (keys []string) {
	l.byKey.Range(func(key, _ any) bool {
		keys = append(keys, key.(string))
		return true
	})
	return keys
}

// find returns nil for a key without a label.
func (l *Labels[T]) find(key string) *labelled[T] {
	e, _ := l.byKey.Load(key)
	found, _ := e.(*labelled[T])
	return found
}

// noRoom requires l.mu.
func (l *Labels[T]) noRoom() bool { return len(l.owners)-1 >= l.max } // Other is an owner, too

// add returns nil where there is no room, or where another key, or Other, has
// the label.
func (l *Labels[T]) add(key string) *labelled[T] {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.find(key); e != nil {
		return e
	}
	label := labelOf(key)
	if _, taken := l.owners[label]; taken || l.noRoom() {
		l.full.Store(l.noRoom())
		return nil
	}
	e := &labelled[T]{label: label, value: l.value(label)}
	l.owners[label] = key
	l.byKey.Store(key, e)
	l.full.Store(l.noRoom())
	return e
}

// Drop takes the label from each key that gone names and that has not been
// used since the Drop before; removed is told of each.
func (l *Labels[T]) Drop(gone func(key string) bool, removed func(label string)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.byKey.Range(func(k, v any) bool {
		key, e := k.(string), v.(*labelled[T])
		if used := e.used.Swap(false); used || !gone(key) {
			return true
		}
		l.byKey.Delete(key)
		delete(l.owners, e.label)
		removed(e.label)
		return true
	})
	l.full.Store(l.noRoom())
}

// labelOf writes a key as valid UTF-8 that is not empty.
func labelOf(key string) string {
	if key == "" || !utf8.ValidString(key) {
		return strconv.Quote(key)
	}
	return key
}
