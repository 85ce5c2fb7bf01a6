package storetest

import (
	"context"
	"errors"
	"iter"

	"github.com/breakerkit/breaker"
)

// A flaw is what is wrong with a store. What is nil is right.
type flaw struct {
	policy   func(p *breaker.Policy)                                                      // judges by another policy
	acquired func(pm *breaker.Permit, rejected **breaker.RejectedError, p breaker.Policy) // gives another answer
	reported func(s jsonStore, key string, p breaker.Policy, pm *breaker.Permit, r *breaker.Result) (drop bool)
	told     func(t *breaker.Transition) *breaker.Transition
	read     func(s jsonStore, p breaker.Policy, snap *breaker.Snapshot)
	key      func(key string) string
	listed   func(keys []string) []string
	history  func(events []breaker.Event) []breaker.Event
	override func(o *breaker.Override)
	reset    func(s jsonStore, key string, p breaker.Policy) (*breaker.Transition, error)
	clear    func(s jsonStore, key string, p breaker.Policy) (*breaker.Transition, error)
	wrote    func(before, after *breaker.Circuit)
	torn     bool     // steps see each other half done
	alone    bool     // shares nothing with other processes
	breaks   []string // checks that must find it
}

// A flawedStore is a jsonStore with a flaw.
type flawedStore struct {
	jsonStore
	flaw
}

func (s flawedStore) in(key *string, p *breaker.Policy) {
	if s.flaw.key != nil {
		*key = s.flaw.key(*key)
	}
	if s.policy != nil {
		s.policy(p)
	}
}

func (s flawedStore) Acquire(ctx context.Context, key string, p breaker.Policy) (breaker.Permit, error) {
	s.in(&key, &p)
	pm, err := s.jsonStore.Acquire(ctx, key, p)
	if s.acquired == nil {
		return pm, err
	}
	var rejected *breaker.RejectedError
	if err != nil && !errors.As(err, &rejected) {
		return pm, err
	}
	s.acquired(&pm, &rejected, p)
	if rejected != nil {
		return pm, rejected
	}
	return pm, nil
}

func (s flawedStore) Report(ctx context.Context, key string, p breaker.Policy, pm breaker.Permit, r breaker.Result) (*breaker.Transition, error) {
	s.in(&key, &p)
	if s.reported != nil && s.reported(s.jsonStore, key, p, &pm, &r) {
		return nil, nil
	}
	return s.tell(s.jsonStore.Report(ctx, key, p, pm, r))
}

func (s flawedStore) tell(t *breaker.Transition, err error) (*breaker.Transition, error) {
	if s.told != nil {
		t = s.told(t)
	}
	return t, err
}

func (s flawedStore) Snapshot(ctx context.Context, key string, p breaker.Policy) (breaker.Snapshot, error) {
	s.in(&key, &p)
	snap, err := s.jsonStore.Snapshot(ctx, key, p)
	if s.flaw.read != nil {
		s.flaw.read(s.jsonStore, p, &snap)
	}
	return snap, err
}

func (s flawedStore) Force(ctx context.Context, key string, p breaker.Policy, o breaker.Override) (*breaker.Transition, error) {
	s.in(&key, &p)
	if s.override != nil {
		s.override(&o)
	}
	return s.tell(s.jsonStore.Force(ctx, key, p, o))
}

func (s flawedStore) ClearOverride(ctx context.Context, key string, p breaker.Policy, by string) (*breaker.Transition, error) {
	s.in(&key, &p)
	if s.clear != nil {
		return s.clear(s.jsonStore, key, p)
	}
	return s.tell(s.jsonStore.ClearOverride(ctx, key, p, by))
}

func (s flawedStore) Reset(ctx context.Context, key string, p breaker.Policy, by string) (*breaker.Transition, error) {
	s.in(&key, &p)
	if s.reset != nil {
		return s.reset(s.jsonStore, key, p)
	}
	return s.tell(s.jsonStore.Reset(ctx, key, p, by))
}

func (s flawedStore) Keys(ctx context.Context) iter.Seq2[string, error] {
	if s.listed == nil {
		return s.jsonStore.Keys(ctx)
	}
	var names []string
	for name := range s.jsonStore.Keys(ctx) {
		names = append(names, name)
	}
	return func(yield func(string, error) bool) {
		for _, name := range s.listed(names) {
			if !yield(name, nil) {
				return
			}
		}
	}
}

func (s flawedStore) History(ctx context.Context, key string) ([]breaker.Event, error) {
	s.in(&key, &breaker.Policy{})
	events, err := s.jsonStore.History(ctx, key)
	if s.flaw.history != nil {
		events = s.flaw.history(events)
	}
	return events, err
}
