package breaker_test

import (
	"bytes"
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

// splitConn hands a published message over in two parts, the second after the
// deadline of the read that got the first.
type splitConn struct {
	net.Conn
	rest  []byte
	stall bool
	until time.Time
}

func (c *splitConn) SetReadDeadline(t time.Time) error { c.until = t; return c.Conn.SetReadDeadline(t) }
func (c *splitConn) Read(p []byte) (int, error) {
	if c.stall {
		c.stall = false
		time.Sleep(500 * time.Millisecond)
		return 0, timeoutErr{}
	}
	if len(c.rest) > 0 {
		n := copy(p, c.rest)
		c.rest = c.rest[n:]
		return n, nil
	}
	n, err := c.Conn.Read(p)
	if i := bytes.Index(p[:n], []byte("message\r\n")); i >= 0 {
		first := bytes.LastIndex(p[:i], []byte("$"))
		c.rest = append([]byte(nil), p[first:n]...)
		c.stall = true
		return first, nil
	}
	return n, err
}

type timeoutErr struct{}

func (timeoutErr) Error() string   { return "i/o timeout" }
func (timeoutErr) Timeout() bool   { return true }
func (timeoutErr) Temporary() bool { return true }

func TestMessageCutInTwoIsALostConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMiniRedis(t)
		l := &listening{w: watch(m), degraded: new(degradations)}
		cfg := breaker.Config{Policy: breaker.Policy{ConsecutiveFailures: 1, Cooldown: time.Hour}}
		l.a = newBreaker(t, m.store(t), cfg)
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379", PoolSize: 1000, Protocol: 2,
			Dialer: func(context.Context, string, string) (net.Conn, error) {
				c, err := m.Dial()
				return &splitConn{Conn: c}, err
			}})
		t.Cleanup(func() { _ = client.Close() })
		l.b = newBreaker(t, breaker.NewRedisStore(client, breaker.RedisConfig{}), cfg)
		l.calls(t, 3*time.Second)
		began := time.Now()
		trip(t, l.a, "k", 1)
		for execute(l.b, "k", nil) == nil {
			require.Less(t, time.Since(began), 20*time.Second)
			time.Sleep(time.Millisecond)
		}
		assert.LessOrEqual(t, time.Since(began), time.Second+staleness)
	})
}
