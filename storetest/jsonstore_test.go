package storetest

import (
	"context"
	"encoding/json"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/breakerkit/breaker"
)

// A jsonStore is a Store as it is written over a database with transactions:
// each step loads a Circuit, calls the method of its own name and saves it.
type jsonStore struct{ db *database }

// A database has one table, of circuits as JSON, and a clock.
type database struct {
	mu     sync.Mutex // the transaction
	rows   map[string][]byte
	now    time.Time
	owners int

	torn  bool                                 // the transaction is none
	wrote func(before, after *breaker.Circuit) // spoils what is saved; nil: nothing does
}

var (
	_ breaker.Store      = jsonStore{}
	_ breaker.Controller = jsonStore{}
	_ breaker.Lister     = jsonStore{}
	_ breaker.Historian  = jsonStore{}
)

func newDatabase() *database {
	return &database{rows: make(map[string][]byte), now: time.UnixMilli(1_800_000_000_000)}
}

func (db *database) advance(d time.Duration) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.now = db.now.Add(d)
}

// load requires db.mu.
func (db *database) load(key string) (*breaker.Circuit, error) {
	c := new(breaker.Circuit)
	if row, ok := db.rows[key]; ok {
		return c, json.Unmarshal(row, c)
	}
	return c, nil
}

func (s jsonStore) read(key string, do func(c *breaker.Circuit, m breaker.Moment)) error {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	c, err := s.db.load(key)
	if err == nil {
		do(c, breaker.Moment{Now: s.db.now})
	}
	return err
}

func (s jsonStore) update(instance, key string, do func(c *breaker.Circuit, m breaker.Moment)) error {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	c, err := s.db.load(key)
	if err != nil {
		return err
	}
	if s.db.torn {
		s.db.mu.Unlock()
		time.Sleep(time.Nanosecond) // in a bubble: until all have come this far
		s.db.mu.Lock()
	}
	before := *c
	before.Leases = slices.Clone(c.Leases)
	do(c, breaker.Moment{Now: s.db.now, Jitter: rand.Float64(), Instance: instance})
	if s.db.wrote != nil {
		s.db.wrote(&before, c)
	}
	row, err := json.Marshal(c)
	s.db.rows[key] = row
	return err
}

func (s jsonStore) Acquire(ctx context.Context, key string, p breaker.Policy) (pm breaker.Permit, err error) {
	var rejected *breaker.RejectedError
	err = s.update(breaker.InstanceOf(ctx), key, func(c *breaker.Circuit, m breaker.Moment) {
		s.db.owners++
		pm, rejected = c.Acquire(m, p, strconv.Itoa(s.db.owners))
	})
	for i := range pm.Transitions {
		pm.Transitions[i].Key = key
	}
	if rejected != nil {
		rejected.Key = key
		return pm, rejected
	}
	return pm, err
}

func (s jsonStore) Report(_ context.Context, key string, p breaker.Policy, pm breaker.Permit, r breaker.Result) (t *breaker.Transition, err error) {
	err = s.update(r.Instance, key, func(c *breaker.Circuit, m breaker.Moment) { t = c.Report(m, p, pm, r) })
	return named(t, key), err
}

func (s jsonStore) Snapshot(_ context.Context, key string, p breaker.Policy) (snap breaker.Snapshot, err error) {
	err = s.read(key, func(c *breaker.Circuit, m breaker.Moment) { snap = c.Snapshot(m, p) })
	snap.Key = key
	return snap, err
}

func (s jsonStore) Force(ctx context.Context, key string, p breaker.Policy, o breaker.Override) (t *breaker.Transition, err error) {
	err = s.update(breaker.InstanceOf(ctx), key, func(c *breaker.Circuit, m breaker.Moment) { t = c.Force(m, p, o) })
	return named(t, key), err
}

func (s jsonStore) ClearOverride(ctx context.Context, key string, p breaker.Policy, by string) (t *breaker.Transition, err error) {
	err = s.update(breaker.InstanceOf(ctx), key, func(c *breaker.Circuit, m breaker.Moment) { t = c.ClearOverride(m, p, by) })
	return named(t, key), err
}

func (s jsonStore) Reset(ctx context.Context, key string, p breaker.Policy, by string) (t *breaker.Transition, err error) {
	err = s.update(breaker.InstanceOf(ctx), key, func(c *breaker.Circuit, m breaker.Moment) { t = c.Reset(m, p, by) })
	return named(t, key), err
}

func (s jsonStore) Keys(context.Context) iter.Seq2[string, error] {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	names := slices.Collect(maps.Keys(s.db.rows))
	return func(yield func(string, error) bool) {
		for _, name := range names {
			if !yield(name, nil) {
				return
			}
		}
	}
}

func (s jsonStore) History(_ context.Context, key string) (events []breaker.Event, err error) {
	err = s.read(key, func(c *breaker.Circuit, _ breaker.Moment) { events = c.Log })
	slices.Reverse(events)
	for _, e := range events {
		named(e.Transition, key)
	}
	return events, err
}

// named sets the key that a Circuit does not know.
func named(t *breaker.Transition, key string) *breaker.Transition {
	if t != nil {
		t.Key = key
	}
	return t
}
