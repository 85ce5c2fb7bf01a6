package faults_test

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker/internal/redistest"
)

var bg = context.Background()

// single is a world of one server.
func single(t *testing.T, args ...string) (w world, srv *redistest.Server, admin *redis.Client) {
	srv = redistest.Start(t, args...)
	w.dial = func() redis.UniversalClient { return redis.NewClient(&redis.Options{Addr: srv.Addr}) }
	return w, srv, srv.Client(nil)
}

// config sets what the server is to do while the fault lasts, and what else.
func config(admin *redis.Client, name, during, else_ string) (begin, end func()) {
	set := func(value string) func() {
		return func() {
			if err := admin.ConfigSet(bg, name, value).Err(); err != nil {
				panic(err)
			}
		}
	}
	return set(during), set(else_)
}

var faults = []fault{
	{name: "kill -9, and started again empty", forgets: true, start: func(t *testing.T) world {
		w, srv, _ := single(t)
		w.begin, w.end = srv.Kill, srv.Restart
		return w
	}},
	{name: "kill -9, and started again from its append-only file", start: func(t *testing.T) world {
		w, srv, _ := single(t, redistest.Durable(t)...)
		w.begin, w.end = srv.Kill, srv.Restart
		return w
	}},
	{name: "SIGSTOP for 2 s", start: func(t *testing.T) world {
		w, srv, _ := single(t)
		w.begin, w.end, w.lasts = srv.Freeze, srv.Thaw, 2*time.Second
		return w
	}},
	{name: "memory full, noeviction", start: func(t *testing.T) world {
		w, _, admin := single(t, "--maxmemory-policy", "noeviction")
		w.begin, w.end = config(admin, "maxmemory", "1", "0")
		return w
	}},
	{name: "memory full, allkeys-random evicts", forgets: true, start: func(t *testing.T) world {
		w, _, admin := single(t, "--maxmemory-policy", "allkeys-random")
		value, n := strings.Repeat("x", 10_000), 0
		add := func() {
			n++
			admin.Set(bg, fmt.Sprint("cache:", n), value, time.Hour)
		}
		evicted := func() int {
			n, err := strconv.Atoi(admin.InfoMap(bg, "stats").Item("Stats", "evicted_keys"))
			require.NoError(t, err)
			return n
		}
		fill, stop := every(t, time.Millisecond, add)
		w.begin = func() {
			require.NoError(t, admin.ConfigSet(bg, "maxmemory", "3mb").Err())
			for range 1000 { // 10 MB: however slow the machine, it is full now
				add()
			}
			require.Positive(t, evicted())
			fill()
		}
		w.end = func() {
			stop()
			require.NoError(t, admin.ConfigSet(bg, "maxmemory", "0").Err())
		}
		return w
	}},
	{name: "SCRIPT FLUSH every millisecond", unseen: true, start: func(t *testing.T) world {
		w, _, admin := single(t)
		w.begin, w.end = every(t, time.Millisecond, func() { admin.ScriptFlush(bg) })
		return w
	}},
	{name: "CLIENT KILL of all, every 5 ms", start: func(t *testing.T) world {
		w, _, admin := single(t)
		w.begin, w.end = every(t, 5*time.Millisecond, func() {
			admin.ClientKillByFilter(bg, "TYPE", "normal")
			admin.ClientKillByFilter(bg, "TYPE", "pubsub")
		})
		return w
	}},
	{name: "FLUSHALL every 20 ms", forgets: true, start: func(t *testing.T) world {
		w, _, admin := single(t)
		w.begin, w.end = every(t, 20*time.Millisecond, func() { admin.FlushAll(bg) })
		return w
	}},
	{name: "another tenant's script runs for 1.5 s", start: func(t *testing.T) world {
		w, srv, _ := single(t)
		w.begin, w.end = busy(srv)
		return w
	}},
	{name: "another tenant's script runs for 1.5 s, answered BUSY", start: func(t *testing.T) world {
		w, srv, _ := single(t, "--lua-time-limit", "100")
		w.begin, w.end = busy(srv)
		return w
	}},
	{name: "made a read-only replica", start: func(t *testing.T) world {
		w, _, admin := single(t)
		other := redistest.Start(t)
		host, port, _ := net.SplitHostPort(other.Addr)
		w.begin = func() {
			require.NoError(t, admin.ConfigSet(bg, "replica-serve-stale-data", "yes").Err())
			require.NoError(t, admin.ReplicaOf(bg, host, port).Err())
		}
		w.end = func() { require.NoError(t, admin.ReplicaOf(bg, "NO", "ONE").Err()) }
		return w
	}, forgets: true},
	{name: "wrong password", start: func(t *testing.T) world {
		srv := redistest.Start(t, "--requirepass", "right")
		admin := srv.Client(&redis.Options{Password: "right"})
		set := func(password string) func() {
			return func() { // those who are connected stay, so they are thrown out
				require.NoError(t, admin.ConfigSet(bg, "requirepass", password).Err())
				admin.ClientKillByFilter(bg, "TYPE", "normal", "SKIPME", "yes")
				admin.ClientKillByFilter(bg, "TYPE", "pubsub")
			}
		}
		return world{begin: set("another"), end: set("right"), dial: func() redis.UniversalClient {
			return redis.NewClient(&redis.Options{Addr: srv.Addr, Password: "right"})
		}}
	}},
	{name: "least rights", unseen: true, start: func(t *testing.T) world {
		_, srv, admin := single(t)
		rules := strings.Fields("on >secret resetkeys resetchannels ~breaker:* &breaker:changes -@all " +
			"+hmget +evalsha +eval +lrange +zscan +subscribe +ping +time +hgetall +hset +lpush +ltrim " +
			"+pexpire +persist +zadd +zremrangebyscore +zremrangebyrank +publish")
		require.NoError(t, admin.ACLSetUser(bg, "breaker", rules...).Err())
		return world{begin: func() {}, dial: func() redis.UniversalClient {
			return redis.NewClient(&redis.Options{Addr: srv.Addr, Username: "breaker", Password: "secret"})
		}}
	}},
	{name: "RESP2", unseen: true, start: func(t *testing.T) world {
		_, srv, _ := single(t)
		return world{begin: func() {}, dial: func() redis.UniversalClient {
			return redis.NewClient(&redis.Options{Addr: srv.Addr, Protocol: 2})
		}}
	}},
	{name: "RESP3", unseen: true, start: func(t *testing.T) world {
		_, srv, _ := single(t)
		return world{begin: func() {}, dial: func() redis.UniversalClient {
			return redis.NewClient(&redis.Options{Addr: srv.Addr, Protocol: 3})
		}}
	}},
	{name: "TLS, with a certificate of nobody", start: func(t *testing.T) world {
		authority, nobody := redistest.NewAuthority(t), redistest.NewAuthority(t)
		srv, addr := redistest.StartTLS(t, authority)
		admin := srv.Client(nil)
		use := func(a *redistest.Authority) func() {
			return func() {
				cert, key := a.Certificate()
				require.NoError(t, admin.Do(bg, "config", "set", "tls-cert-file", cert, "tls-key-file", key).Err())
				admin.ClientKillByFilter(bg, "TYPE", "normal", "SKIPME", "yes")
				admin.ClientKillByFilter(bg, "TYPE", "pubsub")
			}
		}
		return world{begin: use(nobody), end: use(authority), dial: func() redis.UniversalClient {
			return redis.NewClient(&redis.Options{Addr: addr, TLSConfig: authority.Trust()})
		}}
	}},
	{name: "Sentinel fails over", forgets: true, start: func(t *testing.T) world {
		s := redistest.StartSentinels(t, 500*time.Millisecond)
		return world{begin: s.Master.Kill, dial: func() redis.UniversalClient {
			return redis.NewFailoverClient(&redis.FailoverOptions{MasterName: s.Name, SentinelAddrs: s.Addrs()})
		}}
	}},
	{name: "Cluster fails over", forgets: true, start: func(t *testing.T) world {
		w, c := cluster(t)
		w.begin = c.Masters[c.OwnerOf("breaker:{one}")].Kill
		return w
	}},
	{name: "Cluster moves the slot there and back", start: func(t *testing.T) world {
		w, c := cluster(t)
		home := c.OwnerOf("breaker:{one}")
		away := (home + 1) % 3
		w.begin = func() { c.Move("breaker:{one}", c.Masters[home], c.Masters[away]) }
		w.end = func() { c.Move("breaker:{one}", c.Masters[away], c.Masters[home]) }
		return w
	}},
	{name: "each command 20 to 80 ms late", start: func(t *testing.T) world {
		w, p := proxied(t)
		w.begin = func() {
			p.Delay(func(words []string) time.Duration { return time.Duration(20+len(words)*7%60) * time.Millisecond })
		}
		w.end = func() { p.Delay(nil) }
		return w
	}},
	{name: "20 kB a second for each connection", start: func(t *testing.T) world {
		w, p := proxied(t)
		w.begin, w.end = func() { p.Throttle(20_000) }, func() { p.Throttle(0) }
		return w
	}},
	{name: "every tenth reply cut in two", start: func(t *testing.T) world {
		w, p := proxied(t)
		w.begin = func() { n := 0; p.Decide(nth(&n, 10, redistest.CutReply)) }
		w.end = func() { p.Decide(nil) }
		return w
	}},
	{name: "a proxy that knows few commands", unseen: true, start: func(t *testing.T) world {
		w, p := proxied(t)
		known := strings.Fields("hmget evalsha eval ping lrange zscan")
		p.Decide(func(words []string) redistest.Fate {
			for _, k := range known {
				if words[0] == k {
					return redistest.Pass
				}
			}
			return redistest.Refuse
		})
		w.begin = func() {}
		return w
	}},
}

// busy has another tenant's script run.
func busy(srv *redistest.Server) (begin, end func()) {
	tenant, done := srv.Client(&redis.Options{ReadTimeout: time.Minute}), make(chan struct{})
	return func() {
		go func() {
			defer close(done)
			tenant.Eval(bg, `local function now() local t = redis.call('TIME') return t[1] + t[2] / 1000000 end
				local over = now() + 1.5
				while now() < over do end`, nil)
		}()
	}, func() { <-done }
}

func cluster(t *testing.T) (world, *redistest.Cluster) {
	c := redistest.StartClusterOf(t, 3, 500*time.Millisecond)
	return world{dial: func() redis.UniversalClient {
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs()})
	}}, c
}

func proxied(t *testing.T) (world, *redistest.Proxy) {
	p := redistest.NewProxy(t, redistest.Start(t).Addr)
	return world{dial: func() redis.UniversalClient { return redis.NewClient(&redis.Options{Addr: p.Addr}) }}, p
}

// nth does fate to every n-th script or read.
func nth(count *int, n int, fate redistest.Fate) func([]string) redistest.Fate {
	return func(words []string) redistest.Fate {
		if words[0] != "evalsha" && words[0] != "hmget" {
			return redistest.Pass
		}
		if *count++; *count%n == 0 {
			return fate
		}
		return redistest.Pass
	}
}
