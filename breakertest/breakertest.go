// Package breakertest has doubles for testing code that uses a Breaker: a store
// that fails on command, and classifiers that don't look.
package breakertest

import (
	"context"
	"errors"
	"iter"
	"sync"

	"github.com/breakerkit/breaker"
)

// AlwaysTrip judges every error a Failure.
var AlwaysTrip breaker.Classifier = breaker.ClassifierFunc(func(error) breaker.Outcome { return breaker.Failure })

// NeverTrip judges every error a Success.
var NeverTrip breaker.Classifier = breaker.ClassifierFunc(func(error) breaker.Outcome { return breaker.Success })

// ErrDown is what a FlakyStore fails with unless told otherwise.
var ErrDown = errors.New("breakertest: the store is down")

// A FlakyStore is a store that fails, or hangs, when told to. Its zero value is
// not ready for use; make one with NewFlakyStore. It may be used concurrently.
type FlakyStore struct {
	store breaker.Store

	mu    sync.Mutex
	err   error
	hung  chan struct{} // closed by Recover; nil: not hanging
	steps int
}

var (
	_ breaker.Store      = (*FlakyStore)(nil)
	_ breaker.Controller = (*FlakyStore)(nil)
	_ breaker.Lister     = (*FlakyStore)(nil)
	_ breaker.Historian  = (*FlakyStore)(nil)
)

// NewFlakyStore returns a store that does what store does until told to fail.
// nil means a new MemoryStore.
func NewFlakyStore(store breaker.Store) *FlakyStore {
	if store == nil {
		store = breaker.NewMemoryStore(breaker.MemoryConfig{})
	}
	return &FlakyStore{store: store}
}

// Fail makes every step fail with err from now on; nil means ErrDown.
func (s *FlakyStore) Fail(err error) {
	if err == nil {
		err = ErrDown
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// Hang makes every step wait for Recover from now on, whatever its context
// says, as a client does whose server accepts and never answers.
func (s *FlakyStore) Hang() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hung == nil {
		s.hung = make(chan struct{})
	}
}

// Recover makes the store work again, and lets hanging steps go on.
func (s *FlakyStore) Recover() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = nil
	if s.hung != nil {
		close(s.hung)
		s.hung = nil
	}
}

// Steps returns how often the store has been asked, in vain or not.
func (s *FlakyStore) Steps() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.steps
}

// step is where every method passes.
func (s *FlakyStore) step() error {
	s.mu.Lock()
	s.steps++
	hung, err := s.hung, s.err
	s.mu.Unlock()
	if hung != nil {
		<-hung
	}
	return err
}

// Acquire implements breaker.Store.
func (s *FlakyStore) Acquire(ctx context.Context, key string, p breaker.Policy) (breaker.Permit, error) {
	if err := s.step(); err != nil {
		return breaker.Permit{}, err
	}
	return s.store.Acquire(ctx, key, p)
}

// Report implements breaker.Store.
func (s *FlakyStore) Report(ctx context.Context, key string, p breaker.Policy, pm breaker.Permit, r breaker.Result) (*breaker.Transition, error) {
	if err := s.step(); err != nil {
		return nil, err
	}
	return s.store.Report(ctx, key, p, pm, r)
}

// Snapshot implements breaker.Store.
func (s *FlakyStore) Snapshot(ctx context.Context, key string, p breaker.Policy) (breaker.Snapshot, error) {
	if err := s.step(); err != nil {
		return breaker.Snapshot{}, err
	}
	return s.store.Snapshot(ctx, key, p)
}

// Force implements breaker.Controller.
func (s *FlakyStore) Force(ctx context.Context, key string, p breaker.Policy, o breaker.Override) (*breaker.Transition, error) {
	return steer(s, func(c breaker.Controller) (*breaker.Transition, error) { return c.Force(ctx, key, p, o) })
}

// ClearOverride implements breaker.Controller.
func (s *FlakyStore) ClearOverride(ctx context.Context, key string, p breaker.Policy, by string) (*breaker.Transition, error) {
	return steer(s, func(c breaker.Controller) (*breaker.Transition, error) { return c.ClearOverride(ctx, key, p, by) })
}

// Reset implements breaker.Controller.
func (s *FlakyStore) Reset(ctx context.Context, key string, p breaker.Policy, by string) (*breaker.Transition, error) {
	return steer(s, func(c breaker.Controller) (*breaker.Transition, error) { return c.Reset(ctx, key, p, by) })
}

func steer(s *FlakyStore, do func(breaker.Controller) (*breaker.Transition, error)) (*breaker.Transition, error) {
	if err := s.step(); err != nil {
		return nil, err
	}
	c, ok := s.store.(breaker.Controller)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return do(c)
}

// Keys implements breaker.Lister.
func (s *FlakyStore) Keys(ctx context.Context) iter.Seq2[string, error] {
	err := s.step()
	l, ok := s.store.(breaker.Lister)
	switch {
	case err != nil:
	case ok:
		return l.Keys(ctx)
	default:
		err = errors.ErrUnsupported
	}
	return func(yield func(string, error) bool) { yield("", err) }
}

// History implements breaker.Historian.
func (s *FlakyStore) History(ctx context.Context, key string) ([]breaker.Event, error) {
	if err := s.step(); err != nil {
		return nil, err
	}
	h, ok := s.store.(breaker.Historian)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return h.History(ctx, key)
}
