package main

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/redistest"
)

// limit is for what takes ten seconds or so.
const limit = time.Minute

// The example says itself, by its exit status, whether it came out as it should.
func TestTheExampleComesOut(t *testing.T) {
	program := filepath.Join(t.TempDir(), "queue-worker")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput()
	require.NoError(t, err, string(out))
	run := func(t *testing.T, args ...string) {
		t.Parallel() // it waits more than it works
		out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
		require.NoError(t, err, string(out))
		assert.Regexp(t, `(?m)^done +200   0 of them more than once$`, string(out))
		assert.Regexp(t, `(?m)^given up +0$`, string(out))
		assert.Regexp(t, `(?m)^rejected +[1-9]\d* `, string(out))
		assert.Less(t, strings.Index(string(out), "GOES DOWN"), strings.Index(string(out), "IS UP AGAIN"))
	}
	t.Run("on the Redis within", func(t *testing.T) { run(t) })
	t.Run("on a real server, which keeps nothing of it", func(t *testing.T) {
		server := redistest.Start(t)
		run(t, "-redis", server.Addr)
		left, err := server.Client(nil).Keys(t.Context(), "*breaker-example*").Result()
		require.NoError(t, err)
		assert.Empty(t, left)
		queues, err := server.Client(nil).SMembers(t.Context(), "asynq:queues").Result()
		require.NoError(t, err)
		assert.Empty(t, queues)
	})
	t.Run("without a server it says so", func(t *testing.T) {
		out, err := exec.CommandContext(t.Context(), program, "-redis", "127.0.0.1:1").CombinedOutput()
		assert.Error(t, err)
		assert.Contains(t, string(out), "queue-worker: no Redis at 127.0.0.1:1: ")
	})
}

// A desk is a queue on a real server, with one kind of job.
type desk struct {
	breaker   *breaker.Breaker
	client    *asynq.Client
	inspector *asynq.Inspector
	rejected  atomic.Int32
}

func newDesk(t *testing.T, job asynq.HandlerFunc) *desk {
	opt := asynq.RedisClientOpt{Addr: redistest.Start(t).Addr}
	b, err := breaker.New(breaker.NewMemoryStore(breaker.MemoryConfig{}), breaker.Config{})
	require.NoError(t, err)
	d := &desk{breaker: b, client: asynq.NewClient(opt), inspector: asynq.NewInspector(opt)}
	server := newServer(opt, "q")
	guarded := protected(b, circuit, job)
	require.NoError(t, server.Start(attempts(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		err := guarded.ProcessTask(ctx, task)
		if rejected(err) {
			d.rejected.Add(1)
		}
		return err
	}))))
	t.Cleanup(func() {
		server.Shutdown()
		assert.NoError(t, d.client.Close())
		assert.NoError(t, d.inspector.Close())
		assert.NoError(t, b.Close())
	})
	return d
}

func (d *desk) enqueue(t *testing.T, tries int) {
	t.Helper()
	_, err := d.client.Enqueue(asynq.NewTask("job", nil), asynq.Queue("q"), asynq.MaxRetry(tries))
	require.NoError(t, err)
}

func (d *desk) info(t *testing.T) *asynq.QueueInfo {
	t.Helper()
	info, err := d.inspector.GetQueueInfo("q")
	require.NoError(t, err)
	return info
}

// asynq would archive a job that is rejected when no retry is left.
func TestARejectionDoesNotCostTheLastAttempt(t *testing.T) {
	t.Parallel() // it waits more than it works
	var made, used atomic.Int32
	var d *desk
	ready := make(chan struct{})
	d = newDesk(t, func(ctx context.Context, _ *asynq.Task) error {
		<-ready
		if made.Add(1) == 1 { // one attempt is used, and one is left
			_ = d.breaker.Force(ctx, circuit, breaker.Override{State: breaker.StateOpen, For: 1500 * time.Millisecond})
			return errors.New("really failed")
		}
		n, _ := asynq.GetRetryCount(ctx)
		used.Store(int32(n))
		return nil
	})
	close(ready)
	d.enqueue(t, 2)
	require.Eventually(t, func() bool { return d.info(t).Size == 0 }, limit, 20*time.Millisecond)
	assert.Equal(t, int32(2), made.Load())
	assert.Equal(t, int32(1), used.Load())
	assert.Positive(t, d.rejected.Load())
	assert.Zero(t, d.info(t).Archived)
}

func TestAJobThatReallyFailsIsGivenUpAfterItsAttempts(t *testing.T) {
	t.Parallel() // it waits more than it works
	var made atomic.Int32
	d := newDesk(t, func(context.Context, *asynq.Task) error {
		made.Add(1)
		return breaker.AsSuccess(errors.New("no such customer"))
	})
	d.enqueue(t, 2)
	require.Eventually(t, func() bool { return d.info(t).Archived == 1 }, limit, 20*time.Millisecond)
	assert.Equal(t, int32(2), made.Load())
	archived, err := d.inspector.ListArchivedTasks("q")
	require.NoError(t, err)
	require.Len(t, archived, 1)
	assert.Contains(t, archived[0].LastErr, "no such customer (attempt 2, the last)")
}

// asynq keeps whole seconds: what is due half a second from now must not be
// due at once.
func TestAJobIsNotBackBeforeItsTime(t *testing.T) {
	err := &breaker.RejectedError{Key: circuit, State: breaker.StateOpen, RetryAfter: 1500 * time.Millisecond}
	for range 1000 {
		now := time.Now()
		due := time.Unix(now.Add(backIn(0, err, nil)).Unix(), 0)
		require.False(t, due.Before(now.Add(err.RetryAfter).Truncate(time.Microsecond)), "due %v", due.Sub(now))
		require.LessOrEqual(t, due.Sub(now), err.RetryAfter*5/4+time.Second)
	}
	assert.Equal(t, time.Second, backIn(100, errors.New("other"), nil))
}
