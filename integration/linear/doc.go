// Package linear checks that a circuit is linearizable: whatever many clients
// do to it at once, there is an order of their operations, none before it began
// or after it ended, in which a single breaker.Circuit gives the same answers.
package linear
