package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/redistest"
)

var (
	bg      = context.Background()
	errDown = errors.New("dial tcp 10.0.0.7:443: connect: connection refused")
)

// A ctl runs breakerctl as its user does, but in this process.
type ctl struct {
	t   *testing.T
	env map[string]string
	in  string
}

// A ran is what a run came to.
type ran struct {
	code     int
	out, err string
}

func (c ctl) run(args ...string) ran {
	c.t.Helper()
	var out, errs bytes.Buffer
	args = append([]string{}, args...) // with nil, the command would take the test's own
	code := run(bg, args, terminal{strings.NewReader(c.in), &out, &errs, func(name string) string { return c.env[name] }})
	return ran{code, out.String(), errs.String()}
}

// ok runs a command that must succeed, and returns what it printed.
func (c ctl) ok(args ...string) string {
	c.t.Helper()
	r := c.run(args...)
	require.Equal(c.t, exitDone, r.code, r.err)
	require.Empty(c.t, r.err)
	return r.out
}

// fails runs a command that must end with code, and returns what it said.
func (c ctl) fails(code int, args ...string) string {
	c.t.Helper()
	r := c.run(args...)
	require.Equal(c.t, code, r.code, "%s%s", r.out, r.err)
	require.True(c.t, strings.HasPrefix(r.err, "breakerctl: "), r.err)
	return r.err
}

// on returns a ctl for a server.
func on(t *testing.T, server *redistest.Server) ctl {
	return ctl{t: t, env: map[string]string{"BREAKER_REDIS_URL": "redis://" + server.Addr}}
}

// fleet returns a Breaker of another process, on the same server.
func fleet(t *testing.T, client redis.UniversalClient) *breaker.Breaker {
	t.Helper()
	b, err := breaker.New(breaker.NewRedisStore(client, breaker.RedisConfig{MaxStaleness: -1}), breaker.Config{
		Instance: "web-1", StoreTimeout: 10 * time.Second, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, b.Close()) })
	return b
}

func calls(b *breaker.Breaker, n int, key string, err error) {
	for range n {
		_ = b.Execute(bg, key, func(context.Context) error { return err })
	}
}

// A screen is an output that is read while it is written.
type screen struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
