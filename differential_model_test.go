package breaker

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strconv"
	"time"
)

// The Go side of the differential test: Circuit, and around it what each store
// does besides running the rules.

// A diffClock is the time on all sides of a sequence, and what else the
// step at hand says of the world around it.
type diffClock struct {
	now    time.Time // the servers'
	local  time.Time // the processes', which is never set back
	jitter float64
	twice  bool // what is sent arrives twice
}

// A diffProcess is a process that uses the one circuit of a sequence.
type diffProcess interface {
	Store
	Controller

	// speak tells what the process knows, as its background work does.
	speak(ctx context.Context, key string, p Policy) (*Transition, error)
}

// A diffSide is one implementation: a server, and processes that join it.
type diffSide interface {
	begin(clock *diffClock, settle time.Duration) error // all is new; a negative settle is none
	tick() error                                        // clock.now has changed
	join(process string) diffProcess
	lose() error                         // the server loses the circuit
	circuit() (Circuit, error)           // as the server has it
	history(key string) ([]Event, error) // newest first
}

// A modelSide does what RedisStore does, with a Circuit for the server.
type modelSide struct {
	clock    *diffClock
	settle   time.Duration
	c        Circuit
	recorded bool // the server has a record of the circuit
}

func (s *modelSide) begin(clock *diffClock, settle time.Duration) error {
	*s = modelSide{clock: clock, settle: max(settle, 0)}
	return nil
}

func (s *modelSide) tick() error               { return nil }
func (s *modelSide) circuit() (Circuit, error) { return s.c, nil }

func (s *modelSide) lose() error {
	s.c, s.recorded = Circuit{}, false
	return nil
}

func (s *modelSide) history(key string) ([]Event, error) { return historyOf(&s.c, key), nil }

// historyOf is the log as a Historian gives it.
func historyOf(c *Circuit, key string) []Event {
	events := slices.Clone(c.Log)
	slices.Reverse(events)
	for i := range events {
		if t := events[i].Transition; t != nil {
			keyed := *t
			events[i].Transition = named(&keyed, key)
		}
	}
	return events
}

func (s *modelSide) join(process string) diffProcess { return &modelProcess{side: s, name: process} }

type modelProcess struct {
	side   *modelSide
	name   string
	ledger ledger
	seq    uint64
}

func (s *modelProcess) id() string {
	s.seq++
	return s.name + "-" + strconv.FormatUint(s.seq, 36)
}

// moment is what a message of the process says. It takes the ledger's tallies
// as told.
func (s *modelProcess) moment(instance string, l *ledger) Moment {
	e := l.evidence(s.name, s.side.clock.local)
	return Moment{Now: s.side.clock.now, Settle: s.side.settle, Jitter: s.side.clock.jitter,
		Instance: instance, Evidence: &e}
}

// change runs do on the circuit, and sees whether that made a record of it.
func (s *modelProcess) change(key string, do func(c *Circuit) *Transition) (*Transition, error) {
	t := do(&s.side.c)
	s.side.recorded = s.side.recorded || !reflect.DeepEqual(s.side.c, Circuit{})
	if s.side.clock.twice { // there was nothing left to do, says the reply that comes back
		return nil, nil
	}
	return named(t, key), nil
}

func (s *modelProcess) Acquire(ctx context.Context, key string, p Policy) (Permit, error) {
	c := &s.side.c
	if s.ledger.healthy() {
		closed := c.State == StateClosed && c.Override == nil && c.MetAt == 0
		s.ledger.saw(sight{generation: c.Generation, recorded: s.side.recorded, healthy: closed}, nil)
		if closed {
			return Permit{Generation: c.Generation, streak: uint64(c.StreakSince)}, nil
		}
	}
	m := s.moment(InstanceOf(ctx), &s.ledger)
	m.heard = !s.side.recorded // a call makes no record, so that there is nothing to say it to
	pm, rejected := c.Acquire(m, p, s.id())
	s.ledger.saw(sight{generation: pm.Generation, recorded: true, healthy: rejected == nil && pm.Probe == "" && !pm.Forced}, nil)
	if s.side.clock.twice {
		pm.Transitions = nil
	}
	return answerOf(pm, rejected, key)
}

func answerOf(pm Permit, rejected *RejectedError, key string) (Permit, error) {
	nameAll(pm.Transitions, key)
	if rejected != nil {
		rejected.Key = key
		return pm, rejected
	}
	return pm, nil
}

func (s *modelProcess) Report(_ context.Context, key string, p Policy, pm Permit, r Result) (*Transition, error) {
	l, now := &s.ledger, s.side.clock.local
	switch {
	case pm.Forced:
		return nil, nil
	case pm.Probe != "":
	case r.Outcome == Failure:
		l.failed(pm.Generation, time.Now())
	case r.Outcome != Success:
		return nil, nil
	case l.success(&pm, now) || p.slow(r.Elapsed):
	default:
		if p.rates() {
			l.tally(pm.Generation, now, p.Window, time.Second)
		}
		return nil, nil
	}
	s.id()
	t, err := s.change(key, func(c *Circuit) *Transition { return c.Report(s.moment(r.Instance, l), p, pm, r) })
	s.look()
	return t, err
}

func (s *modelProcess) speak(ctx context.Context, key string, p Policy) (*Transition, error) {
	s.id()
	m := s.moment(InstanceOf(ctx), &s.ledger)
	m.heard = !s.side.recorded
	t, err := s.change(key, func(c *Circuit) *Transition { return c.Hear(m, p) })
	if s.side.recorded {
		s.look()
	}
	return t, err
}

// look takes in the circuit as it is after an operation that brings its head.
func (s *modelProcess) look() {
	c := &s.side.c
	s.ledger.saw(sight{generation: c.Generation, recorded: s.side.recorded, streak: uint64(c.StreakSince),
		healthy: c.State == StateClosed && c.Override == nil && c.MetAt == 0}, nil)
}

func (s *modelProcess) Snapshot(_ context.Context, key string, p Policy) (Snapshot, error) {
	snap := s.side.c.Snapshot(Moment{Now: s.side.clock.now, Settle: s.side.settle, Evidence: &Evidence{}, Jitter: 0.5}, p)
	snap.Key = key
	return snap, nil
}

func (s *modelProcess) Force(ctx context.Context, key string, p Policy, o Override) (*Transition, error) {
	return s.steer(ctx, key, func(c *Circuit, m Moment) *Transition { return c.Force(m, p, o) })
}

func (s *modelProcess) ClearOverride(ctx context.Context, key string, p Policy, by string) (*Transition, error) {
	return s.steer(ctx, key, func(c *Circuit, m Moment) *Transition { return c.ClearOverride(m, p, by) })
}

func (s *modelProcess) Reset(ctx context.Context, key string, p Policy, by string) (*Transition, error) {
	return s.steer(ctx, key, func(c *Circuit, m Moment) *Transition { return c.Reset(m, p, by) })
}

func (s *modelProcess) steer(ctx context.Context, key string, do func(*Circuit, Moment) *Transition) (*Transition, error) {
	s.id()
	m := s.moment(InstanceOf(ctx), new(ledger)) // an operator has seen no calls
	return s.change(key, func(c *Circuit) *Transition { return do(c, m) })
}

// A plainSide is what MemoryStore must equal: a Circuit to which every result
// is reported, so that there is no evidence.
type plainSide struct {
	clock  *diffClock
	c      Circuit
	owners uint64
}

func (s *plainSide) begin(clock *diffClock, _ time.Duration) error {
	*s = plainSide{clock: clock}
	return nil
}

func (s *plainSide) tick() error                         { return nil }
func (s *plainSide) circuit() (Circuit, error)           { return s.c, nil }
func (s *plainSide) history(key string) ([]Event, error) { return historyOf(&s.c, key), nil }
func (s *plainSide) join(string) diffProcess             { return s }
func (s *plainSide) lose() error                         { return errors.ErrUnsupported }

func (s *plainSide) moment(instance string) Moment {
	return Moment{Now: s.clock.now, Instance: instance}
}

func (s *plainSide) Acquire(ctx context.Context, key string, p Policy) (Permit, error) {
	healthy := s.c.State == StateClosed && s.c.Override == nil && s.c.Streak == 0
	shut := s.c.State == StateOpen && s.c.Override == nil && s.clock.now.UnixMilli() < s.c.RetryAt
	if !healthy && !shut { // they are not asked
		s.owners++
	}
	pm, rejected := s.c.Acquire(s.moment(InstanceOf(ctx)), p, strconv.FormatUint(s.owners, 36))
	return answerOf(pm, rejected, key)
}

func (s *plainSide) Report(_ context.Context, key string, p Policy, pm Permit, r Result) (*Transition, error) {
	return named(s.c.Report(s.moment(r.Instance), p, pm, r), key), nil
}

func (s *plainSide) speak(context.Context, string, Policy) (*Transition, error) { return nil, nil }

func (s *plainSide) Snapshot(_ context.Context, key string, p Policy) (Snapshot, error) {
	snap := s.c.Snapshot(Moment{Now: s.clock.now}, p)
	snap.Key = key
	return snap, nil
}

func (s *plainSide) Force(ctx context.Context, key string, p Policy, o Override) (*Transition, error) {
	return named(s.c.Force(s.moment(InstanceOf(ctx)), p, o), key), nil
}

func (s *plainSide) ClearOverride(ctx context.Context, key string, p Policy, by string) (*Transition, error) {
	return named(s.c.ClearOverride(s.moment(InstanceOf(ctx)), p, by), key), nil
}

func (s *plainSide) Reset(ctx context.Context, key string, p Policy, by string) (*Transition, error) {
	return named(s.c.Reset(s.moment(InstanceOf(ctx)), p, by), key), nil
}
