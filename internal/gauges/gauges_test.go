package gauges_test

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakertest"
	"github.com/breakerkit/breaker/internal/gauges"
)

// series is the value of a label in these tests.
type series struct {
	label string
	calls atomic.Int64
}

func newLabels(max int) *gauges.Labels[*series] {
	return gauges.NewLabels(max, func(label string) *series { return &series{label: label} })
}

func TestLabelsAreBoundedAndNothingIsLostToManyAtOnce(t *testing.T) {
	labels := newLabels(10)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range 1000 {
				(*labels.Use(fmt.Sprint(i % 100))).calls.Add(1)
			}
		})
	}
	all.Wait()
	require.Len(t, labels.Keys(), 10)
	sum := (*labels.Use("never seen")).calls.Load() // of all the others
	assert.EqualValues(t, 90*80, sum)
	for _, key := range labels.Keys() {
		sum += (*labels.Use(key)).calls.Load()
	}
	assert.EqualValues(t, 8000, sum)
}

func TestALabelIsFreedOnceItsKeyIsGoneAndUnused(t *testing.T) {
	labels := newLabels(1)
	gone := func(string) bool { return true }
	var removed []string
	drop := func() { labels.Drop(gone, func(label string) { removed = append(removed, label) }) }
	labels.Use("a")
	drop()
	require.Empty(t, removed, "it was in use")
	drop()
	require.Equal(t, []string{"a"}, removed)
	assert.Equal(t, "b", (*labels.Use("b")).label, "there is room again")
	label, own := labels.Label("a")
	assert.Equal(t, gauges.Other, label)
	assert.False(t, own)
}

// A lister counts how often it is listed and read, and may fail.
type lister struct {
	*breaker.MemoryStore
	lists, reads atomic.Int64
	keys         func(yield func(string, error) bool)
	snapshotErr  error
}

func (l *lister) Keys(context.Context) iter.Seq2[string, error] {
	l.lists.Add(1)
	return l.keys
}

func (l *lister) Snapshot(ctx context.Context, key string, p breaker.Policy) (breaker.Snapshot, error) {
	l.reads.Add(1)
	if l.snapshotErr != nil {
		return breaker.Snapshot{}, l.snapshotErr
	}
	return l.MemoryStore.Snapshot(ctx, key, p)
}

func newLister() *lister {
	return &lister{MemoryStore: breaker.NewMemoryStore(breaker.MemoryConfig{}), keys: func(yield func(string, error) bool) {
		for i := range 100 {
			if !yield(fmt.Sprint(i), nil) {
				return
			}
		}
	}}
}

// reader reads all circuits of a store.
func reader(t *testing.T, store breaker.Store) *gauges.Reader {
	t.Helper()
	b, err := breaker.New(store, breaker.Config{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, b.Close()) })
	r := &gauges.Reader{Limit: time.Second, Choose: func(listed map[string]struct{}, _ bool) (keys []string) {
		for key := range listed {
			keys = append(keys, key)
		}
		return keys
	}}
	r.Watch(b)
	return r
}

func TestAReadingHasAllCircuits(t *testing.T) {
	reading, ok := reader(t, newLister()).Read()
	require.True(t, ok)
	assert.True(t, reading.Complete)
	assert.Equal(t, 100, reading.Listed)
	assert.Len(t, reading.Snapshots, 100)
	_, ok = new(gauges.Reader).Read()
	assert.False(t, ok, "there is no Breaker")
}

func TestAReadingGivesUpAfterAFewErrors(t *testing.T) {
	store := newLister()
	store.snapshotErr = breakertest.ErrDown
	reading, _ := reader(t, store).Read()
	assert.False(t, reading.Complete)
	assert.Empty(t, reading.Snapshots)
	assert.Less(t, store.reads.Load(), int64(20))
}

func TestAListThatPanicsOrBreaksOffIsNotComplete(t *testing.T) {
	for name, keys := range map[string]func(func(string, error) bool){
		"panics":     func(yield func(string, error) bool) { yield("a", nil); panic("no") },
		"breaks off": func(yield func(string, error) bool) { _ = yield("a", nil) && yield("", breakertest.ErrDown) },
	} {
		store := newLister()
		store.keys = keys
		reading, ok := reader(t, store).Read()
		require.True(t, ok, name)
		assert.False(t, reading.Complete, name)
		assert.Zero(t, store.reads.Load(), name)
	}
}

// While a reading hangs, those who come share it, and later ones do not wait.
func TestScrapesShareAReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, release := newLister(), make(chan struct{})
		healthy := store.keys
		store.keys = func(yield func(string, error) bool) { <-release }
		r := reader(t, store)
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				began := time.Now()
				reading, _ := r.Read()
				assert.False(t, reading.Complete)
				assert.Equal(t, time.Second, time.Since(began))
			})
		}
		all.Wait()
		require.EqualValues(t, 1, store.lists.Load())
		time.Sleep(time.Minute)
		began := time.Now()
		r.Read()
		assert.Zero(t, time.Since(began), "it is not waited for again")
		require.EqualValues(t, 1, store.lists.Load())

		close(release)
		synctest.Wait()
		store.keys = healthy
		reading, _ := r.Read()
		assert.True(t, reading.Complete)
	})
}
