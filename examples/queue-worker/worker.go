package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/hibiken/asynq"

	"github.com/breakerkit/breaker"
)

// newServer returns a server whose jobs may be rejected by a breaker. A
// rejected job goes back for the time the rejection names. It has not failed:
// that takes none of its attempts, however often it happens.
func newServer(redis asynq.RedisConnOpt, queue string) *asynq.Server {
	return asynq.NewServer(redis, asynq.Config{
		Queues:                   map[string]int{queue: 1},
		Concurrency:              8,
		IsFailure:                func(err error) bool { return err != nil && !rejected(err) },
		RetryDelayFunc:           backIn,
		TaskCheckInterval:        50 * time.Millisecond,
		DelayedTaskCheckInterval: 50 * time.Millisecond,
		LogLevel:                 asynq.ErrorLevel,
	})
}

func rejected(err error) bool {
	return errors.Is(err, breaker.ErrOpen) || errors.Is(err, breaker.ErrBusy)
}

// backIn says when a job is to be tried again.
func backIn(retried int, err error, task *asynq.Task) time.Duration {
	wait, ok := breaker.RetryAfter(err)
	if !ok {
		return min(asynq.DefaultRetryDelayFunc(retried, err, task), time.Second) // a short story needs short waits
	}
	wait += rand.N(wait/4 + 1) // so that not all of them come at once
	// asynq keeps whole seconds, rounded down: a job would come back up to a
	// second too early, to be rejected again.
	return wait + time.Second - 1
}

// attempts makes MaxRetry the number of attempts a job has, at least one.
//
// asynq archives a job whose last attempt ends in any error, a rejection too.
// So no attempt is the last that asynq knows of: it is here that a job which
// really failed for the last time is given up.
func attempts(next asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		err := next.ProcessTask(ctx, task)
		if err == nil || rejected(err) {
			return err
		}
		failed, _ := asynq.GetRetryCount(ctx)
		if most, _ := asynq.GetMaxRetry(ctx); failed+1 >= most {
			return fmt.Errorf("%w (attempt %d, the last): %w", err, failed+1, asynq.SkipRetry)
		}
		return err
	})
}

// protected makes each job a call of the breaker. The handler's context has
// the deadline of Policy.CallTimeout, and its error is the job's.
func protected(b *breaker.Breaker, key string, next asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		return b.Execute(ctx, key, func(ctx context.Context) error { return next.ProcessTask(ctx, task) })
	})
}
