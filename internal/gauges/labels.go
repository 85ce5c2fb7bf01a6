// Package gauges has what the metrics modules share: a bounded set of label
// values for keys, and a bounded reading of the circuits for a scrape.
package gauges

import (
	"strconv"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"github.com/puzpuzpuz/xsync/v4"
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
	byKey *xsync.Map[string, *labelled[T]]

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
		byKey: xsync.NewMap[string, *labelled[T]](), owners: map[string]string{Other: ""},
	}
}

// Use returns the value of key's label, or that of Other. It is lock-free for
// a key that has a label, and for all others once none is left.
func (l *Labels[T]) Use(key string) *T {
	e, ok := l.byKey.Load(key)
	if !ok {
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
	e, ok := l.byKey.Load(key)
	if !ok {
		e = l.add(key)
	}
	if e == nil {
		return Other, false
	}
	return e.label, true
}

// Keys returns the keys that have a label.
func (l *Labels[T]) Keys() (keys []string) {
	l.byKey.Range(func(key string, _ *labelled[T]) bool {
		keys = append(keys, key)
		return true
	})
	return keys
}

// add returns nil where there is no room, or where another key, or Other, has
// the label.
func (l *Labels[T]) add(key string) *labelled[T] {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e, ok := l.byKey.Load(key); ok {
		return e
	}
	label := labelOf(key)
	if _, taken := l.owners[label]; taken || l.byKey.Size() >= l.max {
		l.full.Store(l.byKey.Size() >= l.max)
		return nil
	}
	e := &labelled[T]{label: label, value: l.value(label)}
	l.owners[label] = key
	l.byKey.Store(key, e)
	l.full.Store(l.byKey.Size() >= l.max)
	return e
}

// Drop takes the label from each key that gone names and that has not been
// used since the Drop before; removed is told of each.
func (l *Labels[T]) Drop(gone func(key string) bool, removed func(label string)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.byKey.Range(func(key string, e *labelled[T]) bool {
		if used := e.used.Swap(false); used || !gone(key) {
			return true
		}
		l.byKey.Delete(key)
		delete(l.owners, e.label)
		removed(e.label)
		return true
	})
	l.full.Store(l.byKey.Size() >= l.max)
}

// labelOf writes a key as valid UTF-8 that is not empty.
func labelOf(key string) string {
	if key == "" || !utf8.ValidString(key) {
		return strconv.Quote(key)
	}
	return key
}
