package breaker_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

// A wire counts the commands that a miniRedis gets, and may refuse some.
type wire struct {
	mu     sync.Mutex
	sent   map[string]int
	refuse string // the command it refuses; empty: none
	mute   bool   // PINGs and what is published get no answer
	late   string // the command that takes the time lag
	lag    time.Duration
}

func (w *wire) delay(cmd string, lag time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.late, w.lag = cmd, lag
}

func watch(m miniRedis) *wire {
	w := &wire{sent: make(map[string]int)}
	conn, err := m.Dial() // which starts the server
	if err != nil {
		panic(err)
	}
	_ = conn.Close()
	m.Server().SetPreHook(func(p *server.Peer, cmd string, _ ...string) bool {
		cmd = strings.ToLower(cmd)
		lag := time.Duration(0)
		w.mu.Lock()
		w.sent[cmd]++
		if cmd == w.late {
			lag = w.lag
		}
		w.mu.Unlock()
		time.Sleep(lag)
		w.mu.Lock()
		defer w.mu.Unlock()
		switch {
		case cmd == w.refuse:
			p.WriteError("NOPERM this user has no permissions to run the '" + cmd + "' command")
			return true
		case w.mute && (cmd == "ping" || cmd == "publish"):
			if cmd == "publish" {
				p.WriteInt(0)
			}
			return true
		}
		return false
	})
	return w
}

// since returns what was sent since the last time, without what only connects.
func (w *wire) since() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	sent := make(map[string]int)
	for _, cmd := range []string{"hmget", "evalsha", "eval", "subscribe", "unsubscribe", "ping"} {
		if n := w.sent[cmd]; n > 0 {
			sent[cmd] = n
		}
	}
	w.sent = make(map[string]int)
	return sent
}

// announced returns how often a script has published since the last time.
func (w *wire) announced() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.sent["publish"]
	w.sent["publish"] = 0
	return n
}

func total(sent map[string]int) (n int) {
	for _, k := range sent {
		n += k
	}
	return n
}

func (w *wire) set(refuse string, mute bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refuse, w.mute = refuse, mute
}

// A name on its way to the server is listed by whoever asks meanwhile.
func TestNameThatIsBeingSaidIsListed(t *testing.T) {
	viewed(t, breaker.RedisConfig{NoPush: true}, func(t *testing.T, w *wire, join join) {
		b := join(breaker.Config{})
		require.NoError(t, execute(b, "k", nil))
		w.delay("eval", 80*time.Millisecond) // what says names for the first time, after a second
		time.Sleep(time.Second + 10*time.Millisecond)
		w.delay("", 0)
		require.Equal(t, 1, w.since()["eval"], "it is on its way")
		var keys []string
		for key, err := range b.Keys(bg) {
			require.NoError(t, err)
			keys = append(keys, key)
		}
		assert.Equal(t, []string{"k"}, keys)
	})
}

// viewed runs a test in virtual time with processes that have views.
func viewed(t *testing.T, cfg breaker.RedisConfig, test func(t *testing.T, w *wire, join join)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := newMiniRedis(t)
		test(t, watch(m), func(c breaker.Config) *breaker.Breaker {
			return newBreaker(t, breaker.NewRedisStore(m.client(t), cfg), c)
		})
	})
}

// eachView runs a test in both ways to keep views fresh.
func eachView(t *testing.T, test func(t *testing.T, w *wire, join join)) {
	t.Helper()
	t.Run("read", func(t *testing.T) { viewed(t, breaker.RedisConfig{NoPush: true}, test) })
	t.Run("push", func(t *testing.T) { viewed(t, breaker.RedisConfig{}, test) })
}

const staleness = 100 * time.Millisecond // the default of MaxStaleness

func TestBusyCircuitCostsFewCommands(t *testing.T) {
	eachView(t, func(t *testing.T, w *wire, join join) {
		for name, b := range map[string]*breaker.Breaker{
			"closed": join(breaker.Config{}),
			"open":   join(breaker.Config{Policy: breaker.Policy{ConsecutiveFailures: 1, Cooldown: time.Hour}}),
		} {
			err := error(nil)
			if name == "open" {
				trip(t, b, name, 1)
				err = breaker.ErrOpen
			}
			w.since()
			const calls = 10_000
			for range calls {
				require.ErrorIs(t, execute(b, name, nil), err)
				time.Sleep(time.Millisecond)
			}
			sent := w.since()
			t.Logf("%s: %d calls in 10s sent %v", name, calls, sent)
			assert.Less(t, float64(total(sent)), 0.02*calls)
		}
	})
}

func TestRareCallReadsOnce(t *testing.T) {
	viewed(t, breaker.RedisConfig{NoPush: true}, func(t *testing.T, w *wire, join join) {
		b := join(breaker.Config{})
		require.NoError(t, execute(b, "k", nil))
		time.Sleep(10 * time.Second) // names are said
		w.since()
		for range 100 {
			require.NoError(t, execute(b, "k", nil))
			time.Sleep(staleness)
		}
		assert.Equal(t, map[string]int{"hmget": 100}, w.since())
	})
}

func TestCircuitThatNobodyCallsCostsNothing(t *testing.T) {
	eachView(t, func(t *testing.T, w *wire, join join) {
		b := join(breaker.Config{})
		for i := range 100 {
			require.NoError(t, execute(b, fmt.Sprint("k", i), nil))
		}
		time.Sleep(time.Minute)
		w.since()
		time.Sleep(time.Hour)
		assert.Empty(t, w.since())
	})
}

// What another process does is seen within MaxStaleness, or at once where it is
// announced.
func TestChangeByAnotherProcessIsSeenInTime(t *testing.T) {
	for _, way := range []struct {
		name   string
		cfg    breaker.RedisConfig
		within time.Duration
	}{
		{"read", breaker.RedisConfig{NoPush: true}, staleness},
		{"longer", breaker.RedisConfig{NoPush: true, MaxStaleness: time.Second}, time.Second},
		{"push", breaker.RedisConfig{}, 2 * time.Millisecond},
	} {
		t.Run(way.name, func(t *testing.T) {
			viewed(t, way.cfg, func(t *testing.T, w *wire, join join) {
				a := join(breaker.Config{Policy: breaker.Policy{ConsecutiveFailures: 1, Cooldown: 10 * time.Second}})
				b := join(breaker.Config{Policy: breaker.Policy{ConsecutiveFailures: 1, Cooldown: 10 * time.Second}})
				until := func(want error) (took time.Duration) { // b calls flat out
					began := time.Now()
					for ; time.Since(began) < 2*way.within; time.Sleep(time.Millisecond) {
						if err := execute(b, "k", nil); want == nil && err == nil || want != nil && err != nil {
							require.ErrorIs(t, err, want)
							break
						}
					}
					return time.Since(began)
				}
				for round := range 20 {
					for range 300 + round { // so that it listens, and views have any age
						require.NoError(t, execute(b, "k", nil))
						time.Sleep(time.Millisecond)
					}
					trip(t, a, "k", 1)
					assert.LessOrEqual(t, until(breaker.ErrOpen), way.within, "the trip")
					require.NoError(t, a.Reset(bg, "k"))
					assert.LessOrEqual(t, until(nil), way.within, "the recovery")
				}
			})
		})
	}
}

func TestOwnChangesAreSeenAtOnce(t *testing.T) {
	t.Parallel()
	eachView(t, func(t *testing.T, w *wire, join join) {
		b := join(breaker.Config{Policy: breaker.Policy{ConsecutiveFailures: 3, Cooldown: time.Hour}})
		for range 100 {
			executeN(t, b, "k", 5, nil)
			executeN(t, b, "k", 3, errDown)
			require.ErrorIs(t, execute(b, "k", nil), breaker.ErrOpen)
			require.NoError(t, b.Reset(bg, "k"))
			require.NoError(t, execute(b, "k", nil))
			require.NoError(t, b.Force(bg, "k", breaker.Override{State: breaker.StateOpen}))
			require.ErrorIs(t, execute(b, "k", nil), breaker.ErrOpen)
			require.NoError(t, b.ClearOverride(bg, "k"))
			time.Sleep(time.Millisecond)
		}
	})
}

// A long probe does not cost a command for each call that it makes wait, and
// its end is seen by all.
func TestBusyCircuitIsAnsweredFromTheView(t *testing.T) {
	eachView(t, func(t *testing.T, w *wire, join join) {
		p := breaker.Policy{ConsecutiveFailures: 1, Cooldown: time.Second, ProbeLease: time.Minute}
		a, b := join(breaker.Config{Policy: p}), join(breaker.Config{Policy: p})
		trip(t, a, "k", 1)
		time.Sleep(time.Second)
		probe, err := a.Allow(bg, "k")
		require.NoError(t, err)
		time.Sleep(2 * time.Second)
		require.ErrorIs(t, execute(b, "k", nil), breaker.ErrBusy)
		time.Sleep(10 * time.Millisecond)
		w.since()
		for range 1000 {
			left := requireRejected(t, execute(b, "k", nil), breaker.ErrBusy).RetryAfter
			assert.LessOrEqual(t, left, 58*time.Second)
			time.Sleep(time.Millisecond)
		}
		sent := w.since()
		assert.LessOrEqual(t, total(sent), 20, "%v", sent)

		probe.Done(breaker.Ignore(errDown)) // frees the slot, and says nothing
		time.Sleep(staleness)
		next, err := b.Allow(bg, "k")
		require.NoError(t, err, "the slot is free")
		next.Done(nil)
		assert.NoError(t, execute(b, "k", nil))
		time.Sleep(staleness)
		assert.NoError(t, execute(a, "k", nil))
	})
}

// A probe is granted by the server alone: a crowd that has the same view of a
// circuit whose cooldown ends makes one.
func TestProbeIsNeverGrantedFromAView(t *testing.T) {
	eachView(t, func(t *testing.T, w *wire, join join) {
		p := breaker.Policy{ConsecutiveFailures: 1, Cooldown: time.Second}
		var crowd []*breaker.Breaker
		for range 5 {
			crowd = append(crowd, join(breaker.Config{Policy: p}))
		}
		trip(t, crowd[0], "k", 1)
		var mu sync.Mutex
		probes := 0
		var wg sync.WaitGroup
		for _, b := range crowd {
			for range 20 {
				wg.Go(func() {
					for range 150 {
						if call, err := b.Allow(bg, "k"); err == nil {
							mu.Lock()
							probes++
							mu.Unlock()
							time.Sleep(200 * time.Millisecond)
							call.Done(errDown)
						}
						time.Sleep(10 * time.Millisecond)
					}
				})
			}
		}
		wg.Wait()
		assert.Equal(t, 1, probes)
	})
}

func TestFleetOfManyHealthyKeysSendsNothing(t *testing.T) {
	t.Parallel()
	large(t)
	const keys, seconds = 10_000, 10
	run := func(t *testing.T, w *wire, join join) map[string]int {
		b := join(breaker.Config{})
		second := func() {
			for i := range keys {
				require.NoError(t, execute(b, fmt.Sprint("k", i), nil))
				if i%100 == 99 {
					time.Sleep(10 * time.Millisecond)
				}
			}
		}
		second()
		second()
		time.Sleep(0)
		w.since()
		for range seconds {
			second()
		}
		return w.since()
	}
	t.Run("push", func(t *testing.T) {
		viewed(t, breaker.RedisConfig{}, func(t *testing.T, w *wire, join join) {
			sent := run(t, w, join)
			t.Logf("%d keys once a second for %ds: %v", keys, seconds, sent)
			assert.LessOrEqual(t, total(sent), 10*seconds)
			assert.LessOrEqual(t, float64(total(sent)), 2.5*seconds+1, "signs of life")
		})
	})
	t.Run("read", func(t *testing.T) {
		viewed(t, breaker.RedisConfig{NoPush: true}, func(t *testing.T, w *wire, join join) {
			sent := run(t, w, join)
			t.Logf("%d keys once a second for %ds: %v", keys, seconds, sent)
			assert.Equal(t, keys*seconds, sent["hmget"])
			assert.LessOrEqual(t, total(sent)-sent["hmget"], keys/100, "names")
		})
	})
}

func TestViewsAreCounted(t *testing.T) {
	eachView(t, func(t *testing.T, w *wire, join join) {
		b := join(breaker.Config{})
		assert.Zero(t, b.Views())
		for range 3 {
			for i := range 10 {
				require.NoError(t, execute(b, fmt.Sprint("k", i), nil))
			}
			time.Sleep(25 * time.Millisecond)
		}
		stats := b.Views()
		assert.Equal(t, 10, stats.Circuits)
		assert.Positive(t, stats.Staleness)
		assert.LessOrEqual(t, stats.Staleness, staleness)
		time.Sleep(time.Minute)
		assert.Zero(t, b.Views(), "nobody calls")
	})
	assert.Zero(t, newBreaker(t, breaker.NewMemoryStore(breaker.MemoryConfig{}), breaker.Config{}).Views())
}

// However many there are, views that nobody uses go, and what keeps them with
// them.
func TestManyViewsOutOfUseCostNothing(t *testing.T) {
	viewed(t, breaker.RedisConfig{}, func(t *testing.T, w *wire, join join) {
		b := join(breaker.Config{})
		for range 3 {
			for i := range 2000 {
				require.NoError(t, execute(b, fmt.Sprint("k", i), nil))
			}
			time.Sleep(time.Second)
		}
		require.Equal(t, 2000, b.Views().Circuits)
		for range 25 { // one is used on
			require.NoError(t, execute(b, "k0", nil))
			time.Sleep(time.Second)
		}
		assert.Equal(t, 1, b.Views().Circuits)
		time.Sleep(30 * time.Second)
		assert.Zero(t, b.Views())
		w.since()
		time.Sleep(time.Hour)
		assert.Empty(t, w.since())
	})
}

// The server's clock decides, also where ours stood still or its own was set.
func TestViewGoesByTheServersClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMiniRedis(t)
		set, at := setsClock(t, m), time.Now()
		set(at)
		store := breaker.NewRedisStoreAt(m.client(t), breaker.RedisConfig{NoPush: true}, "clock")
		b := newBreaker(t, store, under(breaker.Policy{ConsecutiveFailures: 1, Cooldown: time.Hour}))
		executeN(t, b, "k", 1, errDown)
		requireRejected(t, execute(b, "k", nil), breaker.ErrOpen)
		set(at.Add(2 * time.Hour))
		for began := time.Now(); execute(b, "k", nil) != nil; time.Sleep(10 * time.Millisecond) {
			require.LessOrEqual(t, time.Since(began), 10*time.Second+staleness)
		}
	})
}

func TestMaxStalenessBelow5msIsStrict(t *testing.T) {
	for _, c := range []struct {
		staleness time.Duration
		reads     int
	}{{-1, 100}, {4 * time.Millisecond, 100}, {5 * time.Millisecond, 1}} {
		t.Run(c.staleness.String(), func(t *testing.T) {
			viewed(t, breaker.RedisConfig{MaxStaleness: c.staleness, NoPush: true}, func(t *testing.T, w *wire, join join) {
				b := join(breaker.Config{})
				for range 100 { // at one instant
					require.NoError(t, execute(b, "k", nil))
				}
				assert.Equal(t, map[string]int{"hmget": c.reads}, w.since())
			})
		})
	}
}

// A flood of rejections leaves nothing to collect, and each says the time left.
func TestRejectionsOfOneMillisecondShareAnError(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(under(breaker.Policy{ConsecutiveFailures: 1, Cooldown: time.Hour}))
		trip(t, b, "k", 1)
		first := requireRejected(t, execute(b, "k", nil), breaker.ErrOpen)
		assert.Equal(t, first, requireRejected(t, execute(b, "k", nil), breaker.ErrOpen))
		time.Sleep(time.Millisecond)
		later := requireRejected(t, execute(b, "k", nil), breaker.ErrOpen)
		assert.Equal(t, time.Hour, first.RetryAfter, "what was said is not changed")
		assert.Equal(t, time.Hour-time.Millisecond, later.RetryAfter)
	})
	memoryBubble(t, func(t *testing.T, join join) {
		b := join(under(breaker.Policy{ConsecutiveFailures: 1, Cooldown: time.Hour}))
		trip(t, b, "k", 1)
		assert.Same(t, requireRejected(t, execute(b, "k", nil), breaker.ErrOpen), requireRejected(t, execute(b, "k", nil), breaker.ErrOpen))
	})
}
