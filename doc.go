// Package breaker is a circuit breaker for calls to things that fail: for any
// number of keys, in one process or shared by a fleet through Redis.
//
//	b, err := breaker.New(breaker.NewMemoryStore(breaker.MemoryConfig{}), breaker.Config{})
//	...
//	err = b.Execute(ctx, "stripe", func(ctx context.Context) error {
//		return charge(ctx)
//	})
//
// # The model
//
// Each key has a circuit. It is closed while calls go well, and counts what
// comes of them: a Success, a Failure, or neither. When a rule of its Policy is
// met it opens, and calls are rejected without being made. After a cooldown the
// next call is a probe: the circuit is half-open, and lets through no more
// probes at once than the policy says, in the whole fleet. Enough probes that
// succeed in a row close it; one that fails opens it again.
//
//	          a rule is met              cooldown over, next call
//	closed ------------------> open ------------------------------> half-open
//	  ^                          ^                                    |   |
//	  |                          +------------------------------------+   |
//	  |                                     a probe fails                 |
//	  +-------------------------------------------------------------------+
//	                         enough probes succeed
//
// Each transition, reset and override begins a new generation. A result of an
// earlier one, or of a probe that outlived its lease, changes nothing.
//
// # The parts
//
// A Breaker runs calls. A Store keeps the circuits and decides: MemoryStore in
// this process, RedisStore for a fleet. A Policy says when to open, for how
// long and how to recover. A Classifier says what an error means. An Observer
// is told what happens. A store that fails is not the dependency's failure:
// Config.OnStoreError says what calls do then.
package breaker
