package breaker

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// Execute calls fn, at most once, if the circuit of key lets it, and counts
// what came of it. It returns fn's own error, unchanged; a *RejectedError if fn
// was not called; or, depending on Config.OnStoreError, a *StoreError.
//
// fn's context is ctx, with the deadline of Policy.CallTimeout if there is one.
// If fn panics or ends its goroutine, that is a Failure, and the panic goes on
// as it was. A ctx that is done already is handed to fn all the same. An error
// from such a call is Ignored, as is any error after the caller cancelled ctx;
// nil is a Success.
func (b *Breaker) Execute(ctx context.Context, key string, fn func(context.Context) error) error {
	if fn == nil {
		return configError("Execute %.32q: fn is nil", key)
	}
	if ctx == nil {
		ctx = context.Background()
	}
	p, e, err := b.lookUp(key)
	if err != nil {
		return err
	}
	// The ways of nearly every call on a MemoryStore: the circuit is healthy, and
	// nothing is measured; or it is open, and nobody is told. They are safe since
	// one atomic load says so, before the call and after it: whatever changes the
	// circuit in between, or at the same time, is as if it had come just after.
	if e != nil {
		if generation, ok := e.admits(); ok && !b.timed && p.CallTimeout <= 0 && !p.rates() {
			return b.runHealthy(ctx, key, p, e, generation, fn)
		}
		if !p.Shadow && b.cfg.Observer == nil {
			if _, rejected := e.rejection(b.memory, key); rejected != nil {
				return rejected
			}
		}
	}
	c := call{b: b, key: key, policy: p, entry: e}
	err = c.admit(ctx)
	if err == nil {
		return c.run(ctx, fn)
	}
	if b.cfg.Fallback != nil && errors.Is(err, ErrStore) {
		return b.fallback(ctx, c, fn, err)
	}
	return err
}

// Do is Execute for a function with a value: it returns what fn returned, both.
// The value is T's zero value if fn was not called.
func Do[T any](ctx context.Context, b *Breaker, key string, fn func(context.Context) (T, error)) (v T, err error) {
	if fn == nil {
		return v, configError("Do %.32q: fn is nil", key)
	}
	err = b.Execute(ctx, key, func(ctx context.Context) (err error) {
		v, err = fn(ctx)
		return err
	})
	return v, err
}

// DoWithFallback is Do with something else to offer when there is an error,
// whether fn returned it or was not called: fallback gets the error, and what
// it returns is returned. If it fails too, the error matches both.
func DoWithFallback[T any](ctx context.Context, b *Breaker, key string,
	fn func(context.Context) (T, error), fallback func(context.Context, error) (T, error)) (T, error) {
	if fallback == nil {
		var zero T
		return zero, configError("DoWithFallback %.32q: fallback is nil", key)
	}
	if ctx == nil {
		ctx = context.Background()
	}
	v, err := Do(ctx, b, key, fn)
	if err == nil {
		return v, nil
	}
	v, second := fallback(ctx, err)
	if second == nil || contains(second, err) {
		return v, second
	}
	return v, fmt.Errorf("%w (fallback after: %w)", second, err)
}

// contains is errors.Is, and false where the two can't be compared.
func contains(err, target error) (is bool) {
	defer func() { _ = recover() }()
	return errors.Is(err, target)
}

// Allow is Execute in two steps, for calls that are not one function. It
// returns a Call, on which Done must be called, or the error that Execute
// would return. Config.Fallback has no part in it. A probe on which Done is
// never called holds its slot until Policy.ProbeLease is over.
func (b *Breaker) Allow(ctx context.Context, key string) (*Call, error) {
	if ctx == nil {
		ctx = context.Background()
	}
	p, e, err := b.lookUp(key)
	if err != nil {
		return nil, err
	}
	c := call{b: b, key: key, policy: p, entry: e}
	err = c.admit(ctx)
	if errors.Is(err, ErrStore) && b.cfg.Fallback != nil {
		err = c.withoutStore(err)
	}
	if err != nil {
		return nil, err
	}
	allowed := &Call{call: c, outer: ctx}
	allowed.inner = allowed.call.enter(ctx)
	return allowed, nil
}

// A Call is the leave to make one call, given by Allow.
type Call struct {
	call         call
	outer, inner context.Context
	done         atomic.Bool
}

// Context returns the context to make the call with: Allow's, with the
// deadline of Policy.CallTimeout if there is one. Done ends it.
func (c *Call) Context() context.Context { return c.inner }

// Done says how the call went; nil is a Success. The first time counts, any
// other is a no-op. Call it before you cancel the context given to Allow: an
// error after that is Ignored.
func (c *Call) Done(err error) {
	if c.done.CompareAndSwap(false, true) {
		c.call.leave(c.outer, true, err)
	}
}

// A call is one call under way.
type call struct {
	b      *Breaker
	key    string
	policy *Policy
	permit Permit
	ledger *ledger        // what a RedisStore remembers of the circuit; nil: another store's
	entry  *memoryCircuit // what a MemoryStore has of it; nil: nothing yet, or another store's
	local  *MemoryStore   // whose permit it is, if FailLocal took over
	free   bool           // it has no permit, and nothing is counted
	dead   bool           // its context was done before it began
	asked  time.Duration  // how long it waited for the store's leave
	timed  bool
	began  time.Time
	cancel context.CancelFunc
}

var errNotReturned = errors.New("the call panicked or ended its goroutine")

// run makes the call. Nothing is recovered: a panic goes on as it was.
func (c *call) run(ctx context.Context, fn func(context.Context) error) (err error) {
	inner, returned := c.enter(ctx), false
	defer func() {
		// The way out of nearly every call. It is safe since unmoved answers
		// from one atomic load: a change that comes with it is as if it had
		// come just after, and nobody else waits for this call.
		if returned && err == nil && !c.timed && !c.free && c.cancel == nil && c.unmoved(0) {
			return
		}
		c.leave(ctx, returned, err)
	}()
	err = fn(inner)
	returned = true
	return err
}

// runHealthy is run for a healthy circuit of a MemoryStore whose calls have
// neither a deadline nor a length. Most calls need no more to be kept of them
// than this.
func (b *Breaker) runHealthy(ctx context.Context, key string, p *Policy, e *memoryCircuit, generation uint64, fn func(context.Context) error) (err error) {
	dead, returned := ctx.Err() != nil, false
	defer func() {
		if returned && err == nil && e.still(generation) {
			return
		}
		c := call{b: b, key: key, policy: p, entry: e, permit: Permit{Generation: generation}, dead: dead}
		c.leave(ctx, returned, err)
	}()
	err = fn(ctx)
	returned = true
	return err
}

// enter begins the call and returns the context to make it with.
func (c *call) enter(ctx context.Context) context.Context {
	if c.policy.CallTimeout > 0 {
		ctx, c.cancel = context.WithTimeout(ctx, c.policy.CallTimeout)
	}
	if c.timed = c.b.timed || c.policy.SlowRate > 0; c.timed {
		c.began = time.Now()
	}
	return ctx
}

// leave settles the call, also where the Classifier or the Observer panics or
// ends the goroutine.
func (c *call) leave(ctx context.Context, returned bool, err error) {
	var elapsed time.Duration
	if c.timed {
		elapsed = time.Since(c.began)
	}
	v := Verdict{Outcome: Failure}
	if !returned {
		err = errNotReturned
	}
	defer func() { c.settle(ctx, v, elapsed, err) }()
	if c.cancel != nil {
		defer c.cancel()
	}
	switch {
	case err == nil:
		v.Outcome = Success
	case returned:
		v = c.judge(ctx, err)
	}
	if o := c.b.cfg.Observer; o != nil {
		c.b.notes.guarded(func() { o.CallDone(c.key, v.Outcome, elapsed) })
	}
}

// settle reports what came of the call.
func (c *call) settle(ctx context.Context, v Verdict, elapsed time.Duration, err error) {
	if c.free {
		if c.b.redis != nil && v.Outcome == Success {
			c.b.redis.succeeded(c.key)
		}
		return
	}
	if v.Outcome == Success && c.unmoved(elapsed) {
		return
	}
	r := Result{Outcome: v.Outcome, Elapsed: elapsed, RetryAfter: v.RetryAfter,
		Instance: c.b.cfg.Instance, later: &c.b.background}
	if v.Outcome == Failure {
		r.Error = errorText(err)
	}
	switch {
	case c.local != nil:
		if c.b.redis != nil && v.Outcome == Success {
			c.b.redis.succeeded(c.key) // it ends a streak of ours for the shared circuit, too
		}
		c.local.report(c.key, c.policy, c.permit, r)
	case c.b.memory != nil:
		c.reportTo(c.b.memory, r)
	case c.ledger != nil && !c.b.redis.mustTell(c.key, c.policy, &c.permit, &r):
		// This process remembers it, and that is enough.
	default:
		c.b.report(ctx, c.key, c.policy, c.permit, r, c.asked)
	}
}

// unmoved reports whether the call's success changes nothing: the circuit is
// as healthy as when it was admitted. Under a rate, it counts it.
func (c *call) unmoved(elapsed time.Duration) bool {
	switch {
	case c.permit.Probe != "" || c.permit.Forced || c.local != nil:
		return false
	case c.entry != nil:
		if c.policy.rates() {
			return !c.policy.slow(elapsed) && c.entry.count(c.b.memory, c.policy, c.permit.Generation)
		}
		return c.entry.unmoved(c.policy, &c.permit)
	case c.ledger != nil:
		return !c.policy.slow(elapsed) && c.b.redis.unmoved(c.ledger, c.policy, &c.permit)
	}
	return false
}

// judge says what an error tells of the dependency. A mark on the error comes
// first, then the caller's own doing, then the Classifier. An error, or a
// Classifier, that panics makes a Failure.
func (c *call) judge(ctx context.Context, err error) (v Verdict) {
	defer func() {
		if p := recover(); p != nil {
			c.b.cfg.Logger.Error("breaker: judging an error panicked", "key", c.key, "error", fmt.Sprintf("%T", err), "panic", p)
			v = Verdict{Outcome: Failure}
		}
	}()
	if mark := marked(err); mark != Undecided {
		return Verdict{Outcome: mark}
	}
	if c.dead || errors.Is(ctx.Err(), context.Canceled) || neverMade(err) {
		return Verdict{Outcome: Ignored}
	}
	v = c.b.classifier.Classify(err)
	if v.Outcome != Success && v.Outcome != Ignored {
		v.Outcome = Failure
	}
	return v
}

// neverMade reports whether err comes from a Breaker within fn that did not let
// the call through.
func neverMade(err error) bool {
	return errors.Is(err, ErrOpen) || errors.Is(err, ErrBusy) || errors.Is(err, ErrStore) || errors.Is(err, ErrConfig)
}

// reportTo reports to a MemoryStore.
func (c *call) reportTo(m *MemoryStore, r Result) {
	ticket := c.b.notes.begin()
	if t := m.report(c.key, c.policy, c.permit, r); t != nil {
		c.b.notes.end(ticket, *t)
		return
	}
	c.b.notes.end(ticket)
}

// report reports to the store in a bounded step that the caller's end does not
// cut short. What the store makes of it is not the caller's concern, who waits
// no longer than what asking left of StoreTimeout.
func (b *Breaker) report(ctx context.Context, key string, p *Policy, pm Permit, r Result, asked time.Duration) {
	tell := b.store.Report
	if b.redis != nil {
		tell = b.redis.tell
	}
	err := b.outage.ask(withInstance(context.WithoutCancel(ctx), b.cfg.Instance), step{
		op: "report", key: key, limit: b.cfg.StoreTimeout, spent: asked, inline: b.inline && asked == 0,
		do: func(ctx context.Context) error {
			return b.noting(ctx, func() (*Transition, error) { return tell(ctx, key, *p, pm, r) })
		},
	})
	if err != nil && b.redis != nil { // if only perhaps: it is said again, then
		b.redis.ledger(key).untold()
	}
}

// errorText is err's text, cut to what is kept. An error whose Error method
// panics has none.
func errorText(err error) (text string) {
	defer func() {
		if v := recover(); v != nil {
			text = fmt.Sprintf("%T, whose Error method panicked", err)
		}
	}()
	return clip(err.Error())
}
