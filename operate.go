package breaker

import (
	"context"
	"errors"
	"fmt"
	"iter"
)

// Snapshot reads the circuit of key. It changes nothing and takes no probe.
func (b *Breaker) Snapshot(ctx context.Context, key string) (Snapshot, error) {
	p, err := b.policyOf(key)
	if err != nil {
		return Snapshot{}, err
	}
	return look(b, ctx, "snapshot", key, func(ctx context.Context) (Snapshot, error) {
		return b.store.Snapshot(ctx, key, *p)
	})
}

// Keys ranges over the keys whose circuits the store knows, healthy ones
// included, in no order. After an error it ends. A store that can't list gives
// errors.ErrUnsupported.
func (b *Breaker) Keys(ctx context.Context) iter.Seq2[string, error] {
	lister, ok := b.store.(Lister)
	if !ok {
		return func(yield func(string, error) bool) { yield("", unsupported("list keys", b.store)) }
	}
	if ctx == nil {
		ctx = context.Background()
	}
	return func(yield func(string, error) bool) {
		for key, err := range lister.Keys(withInstance(ctx, b.cfg.Instance)) {
			if err != nil {
				yield("", &StoreError{"keys", "", err})
				return
			}
			if !yield(key, nil) {
				return
			}
		}
	}
}

// History returns the last events of the circuit of key, newest first, at most
// MaxHistory. A store that keeps none gives errors.ErrUnsupported.
func (b *Breaker) History(ctx context.Context, key string) ([]Event, error) {
	historian, ok := b.store.(Historian)
	if !ok {
		return nil, unsupported("keep history", b.store)
	}
	if err := checkKey(key); err != nil {
		return nil, err
	}
	return look(b, ctx, "history", key, func(ctx context.Context) ([]Event, error) {
		return historian.History(ctx, key)
	})
}

type operatorKey struct{}

// WithOperator returns a context that names who asks Reset, ClearOverride or
// Force for it, for the history. Without a name it is Config.Instance.
func WithOperator(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, operatorKey{}, clip(name))
}

// operator is who the history says asked for it.
func (b *Breaker) operator(ctx context.Context) string {
	if ctx != nil {
		if name, _ := ctx.Value(operatorKey{}).(string); name != "" {
			return name
		}
	}
	return b.cfg.Instance
}

// Reset closes the circuit of key and clears its counts and its override.
// Calls under way change it no more. A store that can't be steered gives
// errors.ErrUnsupported.
func (b *Breaker) Reset(ctx context.Context, key string) error {
	return b.steer(ctx, "reset", key, func(ctx context.Context, c Controller, p Policy) (*Transition, error) {
		return c.Reset(ctx, key, p, b.operator(ctx))
	})
}

// Force holds the circuit of key open (no call runs) or closed (all run,
// nothing trips), in every process, for o.For or until ClearOverride or Reset.
// It replaces an earlier override. Until is ignored.
func (b *Breaker) Force(ctx context.Context, key string, o Override) error {
	if o.State != StateOpen && o.State != StateClosed {
		return configError("Force %.32q: Override.State is %v: must be open or closed", key, o.State)
	}
	if o.For < 0 {
		return configError("Force %.32q: Override.For is %v: must not be negative", key, o.For)
	}
	setDefault(&o.By, b.operator(ctx))
	o.By, o.Reason = clip(o.By), clip(o.Reason)
	return b.steer(ctx, "force", key, func(ctx context.Context, c Controller, p Policy) (*Transition, error) {
		return c.Force(ctx, key, p, o)
	})
}

// ClearOverride ends an override: the circuit is again what it knows itself.
// Without an override it does nothing.
func (b *Breaker) ClearOverride(ctx context.Context, key string) error {
	return b.steer(ctx, "clear override", key, func(ctx context.Context, c Controller, p Policy) (*Transition, error) {
		return c.ClearOverride(ctx, key, p, b.operator(ctx))
	})
}

func (b *Breaker) steer(ctx context.Context, op, key string, do func(context.Context, Controller, Policy) (*Transition, error)) error {
	controller, ok := b.store.(Controller)
	if !ok {
		return unsupported(op, b.store)
	}
	p, err := b.policyOf(key)
	if err != nil {
		return err
	}
	return b.operate(ctx, op, key, func(ctx context.Context) error {
		return b.noting(ctx, func() (*Transition, error) { return do(ctx, controller, *p) })
	})
}

// operate takes a step that an operator asked for: it is tried even while
// calls leave the store alone.
func (b *Breaker) operate(ctx context.Context, op, key string, do func(context.Context) error) error {
	if ctx == nil {
		ctx = context.Background()
	}
	s := step{op: op, key: key, limit: b.cfg.StoreTimeout, do: do}
	return s.run(withInstance(ctx, b.cfg.Instance), b.notes, func(error) {})
}

// look is operate for a step that reads something. A step that comes too late
// still writes what it read, but nobody looks at it then.
func look[T any](b *Breaker, ctx context.Context, op, key string, read func(context.Context) (T, error)) (T, error) {
	var got T
	err := b.operate(ctx, op, key, func(ctx context.Context) (err error) {
		got, err = read(ctx)
		return err
	})
	if err != nil {
		var zero T
		return zero, err
	}
	return got, nil
}

// noting runs a store operation and tells of the transition it made.
func (b *Breaker) noting(ctx context.Context, do func() (*Transition, error)) error {
	ticket := b.notes.begin()
	var made []Transition
	defer func() { b.notes.end(ticket, made...) }()
	defer context.AfterFunc(ctx, func() { b.notes.giveUp(ticket) })()
	t, err := do()
	if t != nil {
		made = []Transition{*t}
	}
	return err
}

func unsupported(what string, s Store) error {
	return fmt.Errorf("breaker: %T can't %s: %w", s, what, errors.ErrUnsupported)
}
