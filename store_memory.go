package breaker

import (
	"context"
	"iter"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// MemoryConfig configures a MemoryStore; its zero value will do.
type MemoryConfig struct {
	// MaxKeys bounds the circuits kept. Default 100,000. Past it, a circuit
	// that holds nothing worth keeping makes room: one that is closed, without
	// an override, and has counted no failure for a Window. If none is found,
	// the new key's calls run uncounted.
	MaxKeys int
}

// A MemoryStore keeps circuits in this process. It is for programs of one
// process and for unit tests. Breakers may share one, as processes share a
// server; a Breaker's keys are then the same circuits as the other's. It has
// no goroutine and no timer and needs no closing.
//
// A process that suspends, or whose wall clock is set, loses no cooldown: the
// store counts on the monotonic clock.
type MemoryStore struct {
	circuits   *table[memoryCircuit]
	start      time.Time
	startNanos int64         // start.UnixNano()
	owners     atomic.Uint64 // probes named so far
	floor      atomic.Uint64 // the first generation of a new circuit
}

var (
	_ Store      = (*MemoryStore)(nil)
	_ Controller = (*MemoryStore)(nil)
	_ Lister     = (*MemoryStore)(nil)
	_ Historian  = (*MemoryStore)(nil)
)

// A memoryCircuit is a Circuit and its lock.
type memoryCircuit struct {
	// healthy is the generation + 1 of a closed circuit without an override
	// and without a streak; 0 of any other. It is written under mu only. A
	// call that reads it instead of taking mu acts as if it had come at the
	// instant of the read: such a circuit admits every call, and a success
	// changes nothing in it (but for rates, which are counted under mu).
	healthy atomic.Uint64

	// shut is set while the circuit is open by its own rules, so that a call
	// which comes before the cooldown is over needs no lock either.
	shut atomic.Pointer[memoryShut]

	mu        sync.Mutex
	circuit   *Circuit // nil: nothing has happened yet
	base      uint64   // generation while circuit is nil
	keepUntil int64    // while closed: when its counts have lost their meaning
	retired   bool     // the table has dropped it
}

// A memoryShut is what a rejected call is told.
type memoryShut struct {
	generation uint64
	until      int64
	refusals   refusals
}

// rejection returns the error of a call that comes too early, nil if the
// circuit has to be asked.
func (e *memoryCircuit) rejection(s *MemoryStore, key string) (uint64, *RejectedError) {
	shut := e.shut.Load()
	if shut == nil {
		return 0, nil
	}
	left := shut.until - s.millis()
	if left <= 0 {
		return 0, nil
	}
	return shut.generation, shut.refusals.after(key, durationOf(left))
}

// unmoved reports whether a success changes nothing: the circuit is as healthy
// as it was when the permit was given.
func (e *memoryCircuit) unmoved(p *Policy, pm *Permit) bool {
	return !p.rates() && e.still(pm.Generation)
}

// admits returns the generation of a healthy circuit; ok is false if it has to
// be asked.
func (e *memoryCircuit) admits() (generation uint64, ok bool) {
	word := e.healthy.Load()
	return word - 1, word != 0
}

// still reports whether the circuit is as healthy as it was in that generation.
func (e *memoryCircuit) still(generation uint64) bool { return e.healthy.Load() == generation+1 }

// count counts a success under a rate, if the circuit is as healthy as it was
// in that generation: then it changes nothing else.
func (e *memoryCircuit) count(s *MemoryStore, p *Policy, generation uint64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.still(generation) {
		return false
	}
	if e.circuit == nil {
		e.circuit = &Circuit{Generation: e.base}
	}
	now := s.millis()
	e.circuit.Counted.add(p, now, now, "", 1, 0, 0)
	e.keepUntil = now + millis(p.Window)
	return true
}

// NewMemoryStore returns an empty store.
func NewMemoryStore(cfg MemoryConfig) *MemoryStore {
	if cfg.MaxKeys <= 0 {
		cfg.MaxKeys = 100_000
	}
	s := &MemoryStore{start: time.Now()}
	s.startNanos = s.start.UnixNano()
	s.circuits = newTable(cfg.MaxKeys, s.retire)
	return s
}

// now is the wall clock as it was at the start, moved on by the monotonic one.
func (s *MemoryStore) now() time.Time { return s.start.Add(time.Since(s.start)) }

// millis is now().UnixMilli(), in half the time.
func (s *MemoryStore) millis() int64 {
	return (s.startNanos + int64(time.Since(s.start))) / int64(time.Millisecond)
}

func (s *MemoryStore) moment(instance string) Moment {
	return Moment{Now: s.now(), Jitter: rand.Float64(), Instance: instance}
}

func (s *MemoryStore) fresh() *memoryCircuit {
	e := &memoryCircuit{base: s.floor.Load()}
	e.healthy.Store(e.base + 1)
	return e
}

// retire is the table's: it drops a circuit that holds nothing worth keeping.
func (s *MemoryStore) retire(e *memoryCircuit) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.circuit; c != nil {
		if c.visible() != StateClosed || c.Override != nil || s.millis() < e.keepUntil {
			return false
		}
		// Generations go on where they were, so that a result still under way
		// does not count in another life of its circuit.
		s.floor.Store(max(s.floor.Load(), c.Generation+1)) // retire runs under the table's lock
	}
	e.retired = true
	e.healthy.Store(0) // for who still holds it; it is not open
	return true
}

// change runs do on the circuit of key under its lock. It returns false if the
// store is full.
func (s *MemoryStore) change(key string, p *Policy, do func(c *Circuit)) bool {
	for {
		e := s.circuits.add(key, s.fresh)
		if e == nil {
			return false
		}
		if e.change(s, p, do) {
			return true
		}
		// The table dropped it in between, so the next add makes a new one.
	}
}

func (e *memoryCircuit) change(s *MemoryStore, p *Policy, do func(c *Circuit)) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.retired {
		return false
	}
	if e.circuit == nil {
		e.circuit = &Circuit{Generation: e.base}
	}
	c := e.circuit
	do(c)
	word := uint64(0)
	if c.State == StateClosed && c.Override == nil && c.Streak == 0 {
		word = c.Generation + 1
	}
	e.healthy.Store(word)
	e.shut.Store(shutOf(c))
	e.keepUntil = s.millis() + millis(p.Window)
	return true
}

func shutOf(c *Circuit) *memoryShut {
	if c.State != StateOpen || c.Override != nil {
		return nil
	}
	shut := &memoryShut{generation: c.Generation, until: c.RetryAt, refusals: refusals{state: StateOpen}}
	if c.LastFailure != nil {
		shut.refusals.lastError = c.LastFailure.Error
	}
	return shut
}

// Acquire implements Store. It never fails.
func (s *MemoryStore) Acquire(ctx context.Context, key string, p Policy) (Permit, error) {
	return s.acquire(InstanceOf(ctx), key, &p)
}

func (s *MemoryStore) acquire(instance, key string, p *Policy) (Permit, error) {
	if e := s.circuits.add(key, s.fresh); e != nil {
		if word := e.healthy.Load(); word != 0 {
			return Permit{Generation: word - 1}, nil
		}
		if generation, rejected := e.rejection(s, key); rejected != nil {
			return Permit{Generation: generation}, rejected
		}
	}
	var pm Permit
	var rejected *RejectedError
	owner := strconv.FormatUint(s.owners.Add(1), 36)
	kept := s.change(key, p, func(c *Circuit) {
		pm, rejected = c.Acquire(s.moment(instance), *p, owner)
	})
	if !kept {
		return Permit{Forced: true}, nil
	}
	nameAll(pm.Transitions, key)
	if rejected != nil {
		rejected.Key = key
		return pm, rejected
	}
	return pm, nil
}

// Report implements Store. It never fails.
func (s *MemoryStore) Report(_ context.Context, key string, p Policy, pm Permit, r Result) (*Transition, error) {
	return s.report(key, &p, pm, r), nil
}

func (s *MemoryStore) report(key string, p *Policy, pm Permit, r Result) (t *Transition) {
	if e := s.circuits.get(key); e != nil && r.Outcome == Success && e.unmoved(p, &pm) {
		return nil
	}
	s.change(key, p, func(c *Circuit) { t = c.Report(s.moment(r.Instance), *p, pm, r) })
	return named(t, key)
}

// Snapshot implements Store. It never fails.
func (s *MemoryStore) Snapshot(_ context.Context, key string, p Policy) (Snapshot, error) {
	m := Moment{Now: s.now()}
	snap := new(Circuit).Snapshot(m, p)
	s.read(key, func(c *Circuit) { snap = c.Snapshot(m, p) })
	snap.Key = key
	return snap, nil
}

// read runs do on the circuit of key, if it has one, under its lock.
func (s *MemoryStore) read(key string, do func(c *Circuit)) {
	if e := s.circuits.get(key); e != nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.circuit != nil {
			do(e.circuit)
		}
	}
}

// Force implements Controller. It fails only where the store is full of
// circuits worth keeping.
func (s *MemoryStore) Force(ctx context.Context, key string, p Policy, o Override) (*Transition, error) {
	return s.steer(ctx, key, &p, func(c *Circuit, m Moment) *Transition { return c.Force(m, p, o) })
}

// ClearOverride implements Controller, as Force does.
func (s *MemoryStore) ClearOverride(ctx context.Context, key string, p Policy, by string) (*Transition, error) {
	return s.steer(ctx, key, &p, func(c *Circuit, m Moment) *Transition { return c.ClearOverride(m, p, by) })
}

// Reset implements Controller, as Force does.
func (s *MemoryStore) Reset(ctx context.Context, key string, p Policy, by string) (*Transition, error) {
	return s.steer(ctx, key, &p, func(c *Circuit, m Moment) *Transition { return c.Reset(m, p, by) })
}

func (s *MemoryStore) steer(ctx context.Context, key string, p *Policy, do func(*Circuit, Moment) *Transition) (*Transition, error) {
	var t *Transition
	if !s.change(key, p, func(c *Circuit) { t = do(c, s.moment(InstanceOf(ctx))) }) {
		return nil, errFull
	}
	return named(t, key), nil
}

// Keys implements Lister: every circuit called or steered, healthy or not.
func (s *MemoryStore) Keys(context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		s.circuits.keys(func(key string) bool { return yield(key, nil) })
	}
}

// History implements Historian.
func (s *MemoryStore) History(_ context.Context, key string) ([]Event, error) {
	var events []Event
	s.read(key, func(c *Circuit) { events = slices.Clone(c.Log) })
	slices.Reverse(events)
	for i, e := range events {
		if e.Transition != nil {
			t := *e.Transition // the circuit's own has no key
			events[i].Transition = named(&t, key)
		}
		if e.Override != nil {
			o := *e.Override
			events[i].Override = &o
		}
	}
	return events, nil
}
