package admin_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/admin"
)

// Over a real connection: the events arrive one by one, past the write limit
// of the server.
func TestEventsArriveOverHTTP(t *testing.T) {
	feed := new(admin.Feed)
	b := newBreaker(t, nil, breaker.Config{Observer: feed})
	h := admin.New(b, admin.Config{Token: token, Feed: feed, Logger: silent})
	server := httptest.NewUnstartedServer(h)
	server.Config.WriteTimeout = 300 * time.Millisecond
	server.Config.RegisterOnShutdown(h.Close)
	server.Start()
	defer server.Close()
	r, err := http.NewRequestWithContext(t.Context(), "GET", server.URL+"/api/v1/events", nil)
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+token)
	got, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer got.Body.Close()
	require.Equal(t, "text/event-stream", got.Header.Get("Content-Type"))

	lines := bufio.NewScanner(got.Body)
	until := func(want string) {
		for lines.Scan() {
			if lines.Text() == want {
				return
			}
		}
		t.Fatalf("the stream ended before %q: %v", want, lines.Err())
	}
	until("event: totals")
	began := time.Now()
	for n := 0; time.Since(began) < 2*server.Config.WriteTimeout; n++ {
		fail(b, fmt.Sprint("stripe", n), 5)
		until("event: transition")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	assert.NoError(t, server.Config.Shutdown(ctx), "it does not wait for the stream")
}

// redisProcesses returns a Redis in the bubble, and what makes a process on it.
func redisProcesses(t *testing.T) (server *miniredis.Miniredis, process func() *breaker.Breaker) {
	server = miniredis.NewMiniRedis()
	server.ClockTTL(true)
	t.Cleanup(server.Close)
	return server, func() *breaker.Breaker {
		client := redis.NewClient(&redis.Options{
			Addr: "127.0.0.1:6379", PoolSize: 1000, // not dialled
			Dialer: func(context.Context, string, string) (net.Conn, error) { return server.Dial() },
		})
		t.Cleanup(func() { _ = client.Close() })
		return newBreaker(t, breaker.NewRedisStore(client, breaker.RedisConfig{}), breaker.Config{})
	}
}

// Two processes on one Redis: what one of them does, the other's page tells.
func TestAnotherProcessOnRedisIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, process := redisProcesses(t)
		here, other := process(), process()
		h := admin.New(here, admin.Config{Token: token, Logger: silent})
		l := listen(t, h)
		fail(other, "stripe", 5)
		time.Sleep(3 * time.Second) // the name is said a second later
		assert.Equal(t, []string{"stripe: closed>open"}, l.transitions())
		call(t, h, "POST", circuits+"/stripe/reset", `{"by":"ann"}`, 200)
		assert.NoError(t, succeed(other, "stripe"))
		assert.Equal(t, []string{"stripe: open>closed"}, l.transitions())
		time.Sleep(5 * time.Second)
		assert.Empty(t, l.heard("transition gone trouble"))
		l.stop()
		<-l.done
		time.Sleep(2 * time.Second)
	})
}

// A Redis that lost its circuits gives them low generations again.
func TestACircuitThatBeganAnewIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, process := redisProcesses(t)
		here := process()
		h := admin.New(here, admin.Config{Token: token, Poll: 10 * time.Second, Logger: silent})
		for range 3 {
			fail(here, "stripe", 5)
			require.NoError(t, here.Reset(bg, "stripe"))
		}
		l := listen(t, h)
		server.FlushAll()
		fail(process(), "stripe", 5) // which says the name before the next reading
		time.Sleep(12 * time.Second)
		assert.Equal(t, []string{"stripe: closed>open"}, l.transitions())
		l.stop()
		<-l.done
		time.Sleep(2 * time.Second)
	})
}
