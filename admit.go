package breaker

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// How a call gets leave to be made: from memory, from a view, from the store, or
// without one.

// admit asks for leave to make a call.
func (c *call) admit(ctx context.Context) (err error) {
	b := c.b
	c.dead = ctx.Err() != nil
	if b.memory != nil {
		err = c.acquireFrom(b.memory)
	} else {
		err = c.acquire(ctx)
	}
	if err == nil {
		return nil
	}
	if rejected, ok := err.(*RejectedError); ok {
		return c.reject(rejected)
	}
	if errors.Is(err, ErrStore) && b.cfg.Fallback == nil {
		err = c.withoutStore(err)
	}
	return err
}

// lookUp finds the policy of a key and, in a MemoryStore, its circuit if it has
// one.
func (b *Breaker) lookUp(key string) (p *Policy, e *memoryCircuit, err error) {
	if p, err = b.policyOf(key); err == nil && b.memory != nil {
		e = b.memory.circuits.get(key)
	}
	return p, e, err
}

func (b *Breaker) policyOf(key string) (*Policy, error) {
	if err := checkKey(key); err != nil {
		return nil, err
	}
	return b.policies.Load().of(key)
}

// acquireFrom asks a MemoryStore, whose steps neither block nor fail.
func (c *call) acquireFrom(m *MemoryStore) (err error) {
	if c.entry != nil {
		if generation, ok := c.entry.admits(); ok {
			c.permit.Generation = generation
			return nil
		}
		if _, rejected := c.entry.rejection(m, c.key); rejected != nil {
			return rejected
		}
	}
	ticket := c.b.notes.begin()
	c.permit, err = m.acquire(c.b.cfg.Instance, c.key, c.policy)
	c.b.notes.end(ticket, c.permit.Transitions...)
	return err
}

// acquire takes leave from the view of the circuit, or asks the store for it.
func (c *call) acquire(ctx context.Context) error {
	b := c.b
	if b.redis != nil {
		c.ledger = b.redis.ledger(c.key)
		// While the store fails, what is done without it is Config.OnStoreError's
		// to say, not a view's that can't be refreshed.
		if !b.outage.down.Load() {
			if rejected, ok := b.redis.viewed(c.key, c.ledger, &c.permit); rejected != nil {
				return rejected
			} else if ok {
				return nil
			}
		}
	}
	began := time.Now()
	err := c.ask(ctx, began)
	c.asked = time.Since(began)
	return err
}

// ask asks the store in bounded steps. The caller waits for all of them together
// no longer than StoreTimeout.
func (c *call) ask(ctx context.Context, began time.Time) error {
	b := c.b
	if b.redis == nil {
		return c.decide(ctx, 0, b.store.Acquire)
	}
	p, l := c.policy, c.ledger
	var spent time.Duration
	if l.healthy() {
		if done, err := c.read(ctx); done {
			return err
		}
		spent = time.Since(began)
	}
	return c.decide(ctx, spent, func(ctx context.Context, key string, _ Policy) (Permit, error) {
		return b.redis.decide(ctx, key, p, l, &b.background)
	})
}

// read reads a circuit that was healthy when last read, on the caller's own
// goroutine if the client can be trusted to come back. done is false where the
// store has to decide.
func (c *call) read(ctx context.Context) (done bool, err error) {
	b := c.b
	deadline, ok := ctx.Deadline()
	outstays := ok && time.Until(deadline) < b.cfg.StoreTimeout
	var got struct { // apart from c, which a late step must not keep
		permit Permit
		done   bool
	}
	key, p, l := c.key, c.policy, c.ledger
	err = b.outage.ask(ctx, step{
		op: "acquire", key: key, limit: b.cfg.StoreTimeout, inline: b.inline && !outstays,
		do: func(ctx context.Context) (err error) {
			got.permit, got.done, err = b.redis.read(ctx, key, p, l, &b.background)
			return err
		},
		proven: true,
	})
	if err != nil {
		return true, err
	}
	c.permit = got.permit
	return got.done, nil
}

// decide has the store decide in a bounded step, of whose time some is spent.
func (c *call) decide(ctx context.Context, spent time.Duration, acquire func(context.Context, string, Policy) (Permit, error)) error {
	b, key, p := c.b, c.key, c.policy
	var got struct { // apart from c, which a late step must not keep
		permit   Permit
		rejected *RejectedError
	}
	err := b.outage.ask(withInstance(ctx, b.cfg.Instance), step{
		op: "acquire", key: key, limit: b.cfg.StoreTimeout, spent: spent,
		do: func(ctx context.Context) (err error) {
			ticket := b.notes.begin()
			defer func() { b.notes.end(ticket, got.permit.Transitions...) }()
			defer context.AfterFunc(ctx, func() { b.notes.giveUp(ticket) })()
			got.permit, err = acquire(ctx, key, *p)
			if errors.As(err, &got.rejected) {
				return nil
			}
			return err
		},
		proven: true,
		late: func() {
			if got.permit.Probe != "" { // nobody will make this probe
				b.giveBack(key, p, got.permit)
			}
		},
	})
	if err != nil {
		return err
	}
	if got.rejected != nil {
		return got.rejected
	}
	c.permit = got.permit
	return nil
}

// giveBack frees the slot of a probe that came too late to be made, even while
// calls leave the store alone.
func (b *Breaker) giveBack(key string, p *Policy, pm Permit) {
	_ = b.operate(context.Background(), "report", key, func(ctx context.Context) error {
		return b.noting(ctx, func() (*Transition, error) {
			return b.store.Report(ctx, key, *p, pm, Result{Outcome: Ignored, Instance: b.cfg.Instance})
		})
	})
}

// reject returns the rejection, unless the policy only pretends.
func (c *call) reject(err *RejectedError) error {
	if c.policy.Shadow {
		c.free = true
		return nil
	}
	if o := c.b.cfg.Observer; o != nil {
		c.b.notes.guarded(func() { o.Rejected(c.key, err) })
	}
	return err
}

// withoutStore does what OnStoreError says.
func (c *call) withoutStore(storeErr error) error {
	switch c.b.cfg.OnStoreError {
	case FailClosed:
		return storeErr
	case FailLocal:
		c.local = c.b.outage.fallbackStore()
		permit, err := c.local.acquire(c.b.cfg.Instance, c.key, c.policy)
		c.permit = permit
		if rejected, ok := err.(*RejectedError); ok {
			return c.reject(rejected)
		}
		return err
	default:
		c.free = true
		return nil
	}
}

// fallback has Config.Fallback decide about the call c that found no store.
func (b *Breaker) fallback(ctx context.Context, c call, fn func(context.Context) error, storeErr error) error {
	c.free = true
	var used atomic.Bool
	run := func(ctx context.Context) error {
		if !used.CompareAndSwap(false, true) {
			return configError("Fallback %.32q: run was called before", c.key)
		}
		if ctx == nil {
			ctx = context.Background()
		}
		return c.run(ctx, fn)
	}
	return b.cfg.Fallback(ctx, c.key, run, storeErr)
}
