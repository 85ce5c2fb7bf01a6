package notify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakertest"
)

var (
	bg      = context.Background()
	errDown = errors.New("connection refused")
)

// A mailbox is a channel of the test: it takes messages, or does what do says.
type mailbox struct {
	mu    sync.Mutex
	start time.Time
	do    func(ctx context.Context, try int) error
	tried []time.Duration // since the test began
	got   []Message
}

func newMailbox() *mailbox { return &mailbox{start: time.Now()} }

func (b *mailbox) send(ctx context.Context, m Message) error {
	b.mu.Lock()
	b.tried = append(b.tried, time.Since(b.start))
	do, try := b.do, len(b.tried)
	b.mu.Unlock()
	if do != nil {
		if err := do(ctx, try); err != nil {
			return err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.got = append(b.got, m)
	return nil
}

// kinds are the events of each message so far, as "opened a, closed b".
func (b *mailbox) kinds() (all []string) {
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.got {
		text := ""
		for i, e := range m.Events {
			if i > 0 {
				text += ", "
			}
			text += string(e.Kind) + " " + e.Key
		}
		all = append(all, text)
	}
	return all
}

func hang(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() }

// begin starts a Notifier over mailboxes; it is closed when the test ends.
func begin(t *testing.T, cfg Config, boxes ...*mailbox) *Notifier {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.fill()
	var lanes []*lane
	for i, b := range boxes {
		lanes = append(lanes, newLane(fmt.Sprintf("box[%d]", i), b.send, &cfg))
	}
	n := start(cfg, lanes)
	t.Cleanup(func() { _ = n.Close() })
	return n
}

func newBreaker(t *testing.T, store breaker.Store, p breaker.Policy, o breaker.Observer) *breaker.Breaker {
	t.Helper()
	b, err := breaker.New(store, breaker.Config{Policy: p, Observer: o, Instance: "web-1", Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, b.Close()) })
	return b
}

func memory() breaker.Store { return breaker.NewMemoryStore(breaker.MemoryConfig{}) }

func calls(b *breaker.Breaker, n int, key string, err error) {
	for range n {
		_ = b.Execute(bg, key, func(context.Context) error { return err })
	}
}

func TestOpeningAndRecoveryAreToldOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box := newMailbox()
		b := newBreaker(t, memory(), breaker.Policy{}, begin(t, Config{}, box))
		calls(b, 5, "stripe", errDown)
		time.Sleep(time.Minute)
		calls(b, 1, "stripe", errDown) // a probe: no news
		time.Sleep(time.Minute)
		calls(b, 1, "stripe", nil)
		time.Sleep(time.Minute)
		require.Equal(t, []string{"opened stripe", "closed stripe"}, box.kinds())
		opened := box.got[0]
		assert.Equal(t, "Circuit stripe opened", opened.Subject)
		assert.Equal(t, fmt.Sprintf("stripe opened: 5 failures in a row; next try at %s; seen by web-1\n",
			opened.Events[0].Transition.RetryAt.UTC().Format("15:04:05 MST")), opened.text())
		assert.Equal(t, 5, opened.Events[0].Transition.Counts.ConsecutiveFailures)
		assert.Contains(t, box.got[1].text(), "stripe closed: its probes succeeded")
	})
}

func TestEachKindIsToldOfWhereAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box := newMailbox()
		n := begin(t, Config{Kinds: []Kind{Opened, HalfOpen, Reopened, Closed}, Group: -1}, box)
		b := newBreaker(t, memory(), breaker.Policy{}, n)
		calls(b, 5, "k", errDown)
		time.Sleep(time.Minute)
		calls(b, 1, "k", errDown)
		time.Sleep(time.Minute)
		calls(b, 1, "k", nil)
		synctest.Wait()
		require.NoError(t, b.Force(bg, "k", breaker.Override{State: breaker.StateOpen}))
		synctest.Wait()
		require.NoError(t, b.Reset(bg, "k"))
		assert.Equal(t, []string{"opened k", "half-open k", "reopened k", "half-open k", "closed k", "opened k", "closed k"}, box.kinds())
		assert.Contains(t, box.got[5].text(), "an operator holds it")
	})
}

func TestChangesWithinAFewSecondsAreOneMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box := newMailbox()
		b := newBreaker(t, memory(), breaker.Policy{ConsecutiveFailures: 1}, begin(t, Config{Group: 3 * time.Second}, box))
		for _, key := range []string{"a", "b", "c"} {
			calls(b, 1, key, errDown)
			time.Sleep(time.Second - time.Nanosecond)
		}
		require.Empty(t, box.kinds(), "the three seconds are not over")
		time.Sleep(time.Second)
		calls(b, 1, "late", errDown)
		time.Sleep(time.Minute)
		assert.Equal(t, []string{"opened a, opened b, opened c", "opened late"}, box.kinds())
		assert.Equal(t, "Circuits: 3 opened", box.got[0].Subject)
		assert.Equal(t, 3*time.Second, box.tried[0])
	})
}

// flap opens a circuit of one failure and closes it again.
func flap(b *breaker.Breaker, key string) {
	calls(b, 1, key, errDown)
	time.Sleep(time.Minute)
	calls(b, 1, key, nil)
}

func TestACircuitThatOpensAgainAndAgainIsToldOfOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box := newMailbox()
		n := begin(t, Config{Kinds: []Kind{Chronic}, ChronicOpenings: 3, ChronicWindow: 10 * time.Minute}, box)
		b := newBreaker(t, memory(), breaker.Policy{ConsecutiveFailures: 1}, n)
		flap(b, "k")
		flap(b, "k")
		flap(b, "another")
		require.NoError(t, b.Force(bg, "k", breaker.Override{State: breaker.StateOpen}))
		require.NoError(t, b.ClearOverride(bg, "k"))
		time.Sleep(time.Minute)
		require.Empty(t, box.kinds(), "an operator's doing does not count")
		for range 4 {
			flap(b, "k") // the first makes three
		}
		time.Sleep(time.Minute)
		require.Equal(t, []string{"chronic k"}, box.kinds())
		assert.Equal(t, "Circuit k opening again and again", box.got[0].Subject)
		assert.Equal(t, "k opened 3 times within 10m0s; it does not recover for good\n", box.got[0].text())
		time.Sleep(time.Hour)
		flap(b, "k")
		flap(b, "k")
		flap(b, "k")
		time.Sleep(time.Minute)
		assert.Equal(t, []string{"chronic k", "chronic k"}, box.kinds(), "a new episode")
	})
}

// Failed recoveries are openings: a long outage is chronic too.
func TestALongOutageIsChronic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box := newMailbox()
		n := begin(t, Config{Kinds: []Kind{Chronic}}, box)
		b := newBreaker(t, memory(), breaker.Policy{ConsecutiveFailures: 1}, n)
		for range 120 {
			calls(b, 1, "k", errDown)
			time.Sleep(time.Minute)
		}
		assert.Equal(t, []string{"chronic k"}, box.kinds())
	})
}

// Each process hears of the openings it made itself only; the shared history
// lets one of them, and no other, see when they are enough.
func TestAFleetTellsOfEverythingOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, box := memory(), newMailbox()
		var fleet []*breaker.Breaker
		for range 20 {
			n := begin(t, Config{Group: -1}, box)
			b := newBreaker(t, store, breaker.Policy{ConsecutiveFailures: 1}, n)
			n.Watch(b)
			fleet = append(fleet, b)
		}
		var want []string
		for i := range 7 {
			var wg sync.WaitGroup
			for _, b := range fleet {
				wg.Go(func() { calls(b, 1, "k", errDown) })
			}
			wg.Wait()
			synctest.Wait()
			want = append(want, "opened k")
			if i == 4 {
				want[len(want)-1] = "opened k, chronic k"
			}
			time.Sleep(time.Minute)
			calls(fleet[i], 1, "k", nil)
			synctest.Wait()
			want = append(want, "closed k")
		}
		assert.Equal(t, want, box.kinds())
	})
}

// A history that can't be read leaves what this process knows.
func TestAStoreThatFailsDoesNotSilenceTheNotices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box, store := newMailbox(), breakertest.NewFlakyStore(nil)
		n := begin(t, Config{ChronicOpenings: 2}, box)
		b := newBreaker(t, store, breaker.Policy{}, n)
		n.Watch(b)
		store.Fail(nil)
		at := time.Now()
		n.Transitioned(breaker.Transition{Key: "k", To: breaker.StateOpen, Generation: 1, At: at})
		n.Transitioned(breaker.Transition{Key: "k", To: breaker.StateOpen, Generation: 3, At: at.Add(time.Second)})
		time.Sleep(time.Minute)
		assert.Equal(t, []string{"opened k, opened k, chronic k"}, box.kinds())
	})
}

func TestAMessageIsTriedAgainLongerAndLongerApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box := newMailbox()
		box.do = func(_ context.Context, try int) error {
			if try < 6 {
				return errDown
			}
			return nil
		}
		n := begin(t, Config{Group: -1, MaxBackoff: 5 * time.Second}, box)
		n.Transitioned(breaker.Transition{Key: "k", To: breaker.StateOpen})
		time.Sleep(time.Hour)
		require.Equal(t, []string{"opened k"}, box.kinds())
		assert.Equal(t, []time.Duration{0, 1 * time.Second, 3 * time.Second, 7 * time.Second, 12 * time.Second, 17 * time.Second}, box.tried)
		assert.Equal(t, []ChannelStats{{Name: "box[0]", Sent: 1}}, n.Stats())
	})
}

func TestAMessageIsGivenUpAndTheNextOneSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		box := newMailbox()
		box.do = func(_ context.Context, try int) error {
			if try <= 3 {
				return errDown
			}
			return nil
		}
		n := begin(t, Config{Group: -1, Attempts: 3, Logger: slog.New(slog.NewTextHandler(&log, nil))}, box)
		n.Transitioned(breaker.Transition{Key: "first", To: breaker.StateOpen})
		time.Sleep(time.Minute)
		require.Empty(t, box.kinds())
		assert.Contains(t, log.String(), "gave a message up")
		n.Transitioned(breaker.Transition{Key: "second", To: breaker.StateOpen})
		n.Transitioned(breaker.Transition{Key: "third", To: breaker.StateOpen})
		require.Equal(t, []string{"opened second", "opened third"}, box.kinds())
		assert.Contains(t, box.got[0].text(), "1 earlier messages could not be sent here.")
		assert.NotContains(t, box.got[1].text(), "could not be sent", "that has been said")
		assert.Equal(t, []ChannelStats{{Name: "box[0]", Sent: 2, Failed: 1}}, n.Stats())
	})
}

func TestAPermanentErrorIsNotTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box := newMailbox()
		box.do = func(context.Context, int) error { return permanentError{errDown} }
		n := begin(t, Config{Group: -1}, box)
		n.Transitioned(breaker.Transition{Key: "k", To: breaker.StateOpen})
		time.Sleep(time.Hour)
		assert.Empty(t, box.kinds())
		assert.Len(t, box.tried, 1)
		assert.EqualValues(t, 1, n.Stats()[0].Failed)
	})
}

// A channel that never answers holds up neither the calls nor the other one;
// what its queue can't hold is counted.
func TestADeadChannelSlowsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		dead, well := newMailbox(), newMailbox()
		dead.do = hang
		n := begin(t, Config{Group: -1, Queue: 10, Kinds: []Kind{Opened}, Logger: slog.New(slog.NewTextHandler(&log, nil))}, dead, well)
		b := newBreaker(t, memory(), breaker.Policy{ConsecutiveFailures: 1}, n)
		began := time.Now()
		for i := range 100 {
			calls(b, 1, fmt.Sprint(i), errDown)
			synctest.Wait()
		}
		assert.Zero(t, time.Since(began))
		assert.Len(t, well.kinds(), 100)
		assert.Empty(t, dead.kinds())
		stats := n.Stats()
		assert.EqualValues(t, 100-10-1, stats[0].Dropped)
		assert.Zero(t, stats[1].Dropped)
		assert.Contains(t, log.String(), "dropped=89")
		assert.Contains(t, log.String(), "channel=box[0]")
	})
}

func TestCloseSendsWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box := newMailbox()
		box.do = func(context.Context, int) error { time.Sleep(time.Second); return nil }
		n := begin(t, Config{Group: time.Hour}, box)
		b := newBreaker(t, memory(), breaker.Policy{ConsecutiveFailures: 1}, n)
		calls(b, 1, "a", errDown)
		calls(b, 1, "b", errDown)
		require.NoError(t, b.Close())
		require.NoError(t, n.Close())
		assert.Equal(t, []string{"opened a, opened b"}, box.kinds())
		require.NoError(t, n.Close())
		n.Transitioned(breaker.Transition{Key: "late"}) // no panic
	})
}

func TestCloseIsBoundedAndSaysWhatWasLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dead, well := newMailbox(), newMailbox()
		dead.do = hang
		n := begin(t, Config{Group: -1, CloseTimeout: 2 * time.Second}, dead, well)
		for i := range 4 {
			n.Transitioned(breaker.Transition{Key: fmt.Sprint(i), To: breaker.StateOpen})
		}
		synctest.Wait()
		began := time.Now()
		err := n.Close()
		assert.Equal(t, 2*time.Second, time.Since(began))
		assert.EqualError(t, err, "notify: box[0]: 4 messages could not be sent before Close")
		assert.Len(t, well.kinds(), 4)
	})
}

func TestAStormIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box, store := newMailbox(), breakertest.NewFlakyStore(nil)
		n := begin(t, Config{}, box)
		n.Watch(newBreaker(t, store, breaker.Policy{}, nil))
		store.Hang() // each look at the history takes StoreTimeout
		for i := range 3000 {
			n.Transitioned(breaker.Transition{Key: fmt.Sprint(i), To: breaker.StateOpen})
		}
		time.Sleep(time.Hour)
		store.Recover()
		require.NotEmpty(t, box.kinds())
		told, missed := 0, 0
		for _, m := range box.got {
			told += len(m.Events)
			missed += m.Missed
			assert.Less(t, len(m.text()), 5000)
		}
		assert.GreaterOrEqual(t, told, 1000)
		assert.Equal(t, 3000, told+missed)
	})
}

func TestTheFilterSaysWhichCircuits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box := newMailbox()
		n := begin(t, Config{Filter: func(key string) bool { return key == "ours" }}, box)
		n.Transitioned(breaker.Transition{Key: "theirs", To: breaker.StateOpen})
		n.Transitioned(breaker.Transition{Key: "ours", To: breaker.StateOpen})
		time.Sleep(time.Minute)
		assert.Equal(t, []string{"opened ours"}, box.kinds())
	})
}

func TestAKeyCanNotForgeALine(t *testing.T) {
	e := Event{Kind: Opened, Key: "a\r\nBcc: everyone\n", Transition: breaker.Transition{Cause: "x\ny", Instance: "\x00"}}
	m := newMessage([]Event{e}, 0, time.Now())
	assert.NotContains(t, m.Subject, "\n")
	assert.NotContains(t, e.line(), "\n")
	assert.NotContains(t, harmless.Replace("@everyone <!channel>"), "@everyone")
	assert.NotContains(t, harmless.Replace("@everyone <!channel>"), "<!")
}
