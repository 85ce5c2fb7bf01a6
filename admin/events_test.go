package admin_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/admin"
	"github.com/breakerkit/breaker/breakertest"
)

// A listener is a client of an event stream, in the test's bubble.
type listener struct {
	stop context.CancelFunc
	done chan struct{} // closed when the stream has ended

	mu   sync.Mutex
	told []event
}

type event struct {
	name string
	data map[string]any
}

// streamWriter is a ResponseWriter that writes into a pipe.
type streamWriter struct {
	header http.Header
	io.Writer
}

func (w *streamWriter) Header() http.Header { return w.header }
func (w *streamWriter) WriteHeader(int)     {}
func (w *streamWriter) Flush()              {}

func listen(t testing.TB, h http.Handler) *listener {
	ctx, stop := context.WithCancel(bg)
	l := &listener{stop: stop, done: make(chan struct{})}
	read, write := io.Pipe()
	go func() {
		defer close(l.done)
		h.ServeHTTP(&streamWriter{http.Header{}, write}, request("GET", "/api/v1/events", "").WithContext(ctx))
		write.Close()
	}()
	go func() {
		var e event
		for lines := bufio.NewScanner(read); lines.Scan(); {
			name, value, _ := strings.Cut(lines.Text(), ": ")
			switch {
			case name == "event":
				e.name = value
			case name == "data":
				e.data = parse(t, value)
			case lines.Text() == "" && e.name != "":
				l.mu.Lock()
				l.told = append(l.told, e)
				l.mu.Unlock()
				e = event{}
			}
		}
	}()
	t.Cleanup(func() { stop(); <-l.done })
	synctest.Wait()
	return l
}

// heard returns what came since it was last asked, but for what is not named.
func (l *listener) heard(names ...string) (told []event) {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.told {
		if strings.Contains(strings.Join(names, " "), e.name) {
			told = append(told, e)
		}
	}
	l.told = nil
	return told
}

// transitions returns those that came, as "stripe: closed>open".
func (l *listener) transitions() (path []string) {
	for _, e := range l.heard("transition") {
		path = append(path, fmt.Sprintf("%v: %v>%v", e.data["key"], e.data["from"], e.data["to"]))
	}
	return path
}

func totalsOf(told []event) (all []string) {
	for _, e := range told {
		if e.name == "totals" {
			all = append(all, fmt.Sprint(e.data["closed"], " ", e.data["half_open"], " ", e.data["open"]))
		}
	}
	return all
}

// A fed handler hears of its own process at once; with an hour between two
// readings of the store, nothing else could have told it.
func TestTransitionsOfThisProcessComeAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		feed := new(admin.Feed)
		b := newBreaker(t, nil, breaker.Config{Observer: feed})
		h := admin.New(b, admin.Config{Token: token, Feed: feed, Poll: time.Hour, Logger: silent})
		fail(b, "before", 5)
		l := listen(t, h)
		assert.Equal(t, []string{"0 0 1"}, totalsOf(l.heard("totals transition circuit")), "what was before is no news")

		fail(b, "stripe", 5)
		told := l.heard("transition circuit totals")
		require.Len(t, told, 3)
		assert.Equal(t, "transition", told[0].name)
		assert.Equal(t, "consecutive_failures", told[0].data["cause"])
		assert.EqualValues(t, 5, told[0].data["counts"].(map[string]any)["consecutive_failures"], "the counts before it")
		assert.Equal(t, "circuit", told[1].name)
		assert.Equal(t, "open", told[1].data["state"])
		assert.EqualValues(t, 5, told[1].data["consecutive_failures"])
		assert.Equal(t, []string{"0 0 2"}, totalsOf(told))

		time.Sleep(time.Minute)
		require.NoError(t, succeed(b, "stripe"))
		assert.Equal(t, []string{"stripe: open>half-open", "stripe: half-open>closed"}, l.transitions())
	})
}

func TestChangesMadeHereShowAtOnceWithoutAFeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, nil, breaker.Config{})
		h := admin.New(b, admin.Config{Token: token, Poll: time.Hour, Logger: silent})
		fail(b, "stripe", 5)
		l := listen(t, h)
		call(t, h, "POST", circuits+"/stripe/reset", "", 200)
		assert.Equal(t, []string{"stripe: open>closed"}, l.transitions())
	})
}

// Other processes' transitions come with the next reading, all of them, once,
// and in every process the same.
func TestTransitionsOfOtherProcessesComeToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := breaker.NewMemoryStore(breaker.MemoryConfig{})
		feed := new(admin.Feed)
		here := newBreaker(t, store, breaker.Config{Observer: feed})
		others := make([]*breaker.Breaker, 20)
		for i := range others {
			others[i] = newBreaker(t, store, breaker.Config{})
		}
		h := admin.New(here, admin.Config{Token: token, Feed: feed, Logger: silent})
		l, second := listen(t, h), listen(t, h)
		for _, other := range others {
			fail(other, "stripe", 5) // one of them opens it
		}
		time.Sleep(2 * time.Second)
		assert.Equal(t, []string{"stripe: closed>open"}, l.transitions())
		time.Sleep(time.Minute)
		require.NoError(t, succeed(others[7], "stripe"))
		fail(here, "stripe", 5) // ours: the others' come before it all the same
		assert.Equal(t, []string{"stripe: open>half-open", "stripe: half-open>closed", "stripe: closed>open"}, l.transitions())
		time.Sleep(10 * time.Second)
		assert.Empty(t, l.transitions(), "nothing is told twice")
		assert.Len(t, second.transitions(), 4)
	})
}

// The totals count each circuit in one state, at all times.
func TestACircuitIsCountedInOneState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, h := newAdmin(t)
		require.NoError(t, succeed(b, "other"))
		fail(b, "stripe", 1)
		l := listen(t, h)
		fail(b, "stripe", 4)
		time.Sleep(62 * time.Second)
		require.NoError(t, succeed(b, "stripe"))
		time.Sleep(2 * time.Second)
		require.NoError(t, succeed(b, "third"))
		time.Sleep(2 * time.Second)
		assert.Equal(t, []string{"2 0 0", "1 0 1", "1 1 0", "2 0 0", "3 0 0"}, totalsOf(l.heard("totals")))
	})
}

func TestCountsBelowTheThresholdAreToldToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, h := newAdmin(t)
		l := listen(t, h)
		fail(b, "stripe", 3)
		time.Sleep(2 * time.Second)
		told := l.heard("circuit")
		require.Len(t, told, 1)
		assert.EqualValues(t, 3, told[0].data["consecutive_failures"])
		time.Sleep(time.Minute)
		assert.Empty(t, l.heard("circuit"), "nothing has changed")
	})
}

// forgetful is a store whose names can be taken away, as Redis forgets them.
type forgetful struct {
	*breaker.MemoryStore
	keys func() []string
}

func (s *forgetful) Keys(context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for _, key := range s.keys() {
			if !yield(key, nil) {
				return
			}
		}
	}
}

func TestAForgottenCircuitIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var forgotten atomic.Bool
		b := newBreaker(t, &forgetful{breaker.NewMemoryStore(breaker.MemoryConfig{}), func() []string {
			if forgotten.Load() {
				return []string{"stripe"}
			}
			return []string{"", "stripe"}
		}}, breaker.Config{})
		h := admin.New(b, admin.Config{Token: token, Logger: silent})
		l := listen(t, h)
		forgotten.Store(true)
		time.Sleep(2 * time.Second)
		told := l.heard("gone totals")
		require.Len(t, told, 3)
		assert.Equal(t, map[string]any{"key": "", "id": ","}, told[1].data)
		assert.Equal(t, []string{"2 0 0", "1 0 0"}, totalsOf(told))
	})
}

func TestAStoreThatCantBeReadIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := breakertest.NewFlakyStore(nil)
		b := newBreaker(t, store, breaker.Config{})
		other := newBreaker(t, store, breaker.Config{})
		h := admin.New(b, admin.Config{Token: token, Logger: silent})
		fail(other, "stripe", 4)
		l := listen(t, h)
		store.Fail(nil)
		time.Sleep(10 * time.Second)
		told := l.heard("trouble totals gone")
		require.Len(t, told, 2)
		assert.Equal(t, "trouble", told[1].name)
		assert.Contains(t, told[1].data["detail"], breakertest.ErrDown.Error())
		late := listen(t, h)
		assert.Len(t, late.heard("trouble"), 1, "also whoever comes later")

		store.Recover()
		time.Sleep(5 * time.Second)
		fail(other, "stripe", 1)
		time.Sleep(2 * time.Second)
		assert.Equal(t, []string{"1 0 0", "0 0 1"}, totalsOf(l.heard("totals")), "and when it is back")
		assert.Equal(t, []string{"stripe: closed>open"}, late.transitions())
	})
}

// Nobody watching, the store is left alone, and no goroutine is left behind:
// the bubble would not end.
func TestNobodyWatchingNothingIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := breakertest.NewFlakyStore(nil)
		b := newBreaker(t, store, breaker.Config{})
		require.NoError(t, succeed(b, "stripe"))
		h := admin.New(b, admin.Config{Token: token, Logger: silent})
		l := listen(t, h)
		l.stop()
		<-l.done
		synctest.Wait()
		before := store.Steps()
		time.Sleep(time.Hour)
		assert.Equal(t, before, store.Steps())

		again := listen(t, h)
		assert.Equal(t, []string{"1 0 0"}, totalsOf(again.heard("totals")))
		assert.Greater(t, store.Steps(), before)
	})
}

// Reading many circuits takes time; calls need the store too.
func TestReadingTakesAFifthOfTheTimeAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rounds atomic.Int64
		b := newBreaker(t, &forgetful{breaker.NewMemoryStore(breaker.MemoryConfig{}), func() []string {
			rounds.Add(1)
			time.Sleep(3 * time.Second)
			return nil
		}}, breaker.Config{})
		h := admin.New(b, admin.Config{Token: token, Logger: silent})
		l := listen(t, h)
		time.Sleep(15*10*time.Second + time.Second)
		assert.EqualValues(t, 11, rounds.Load())
		l.stop()
		time.Sleep(15 * time.Second) // the reading under way
	})
}

func TestCloseEndsTheStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, h := newAdmin(t)
		l := listen(t, h)
		h.Close()
		h.Close()
		<-l.done
		got := send(t, h, request("GET", "/api/v1/events", ""))
		assert.Equal(t, 503, got.StatusCode)
		call(t, h, "GET", circuits, "", 200) // the rest goes on
	})
}

func TestTooManyStreamsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, h := newAdmin(t)
		for range 99 {
			listen(t, h)
		}
		last := listen(t, h)
		assert.Equal(t, 503, send(t, h, request("GET", "/api/v1/events", "")).StatusCode)
		last.stop()
		<-last.done
		assert.Len(t, listen(t, h).heard("totals"), 1)
	})
}

// A client that takes nothing misses events, is told so, and costs no more
// memory than its backlog.
func TestASlowClientIsToldToReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, h := newAdmin(t)
		read, write := io.Pipe()
		ctx, stop := context.WithCancel(bg)
		defer stop()
		go func() {
			h.ServeHTTP(&streamWriter{http.Header{}, write}, request("GET", "/api/v1/events", "").WithContext(ctx))
			write.Close()
		}()
		synctest.Wait() // it hangs in its first write
		for i := range 3000 {
			require.NoError(t, succeed(b, fmt.Sprint(i)))
		}
		time.Sleep(3 * time.Second)
		lines := bufio.NewScanner(read)
		for n := 0; n < 100 && lines.Scan() && lines.Text() != "event: resync"; n++ {
			assert.NotEqual(t, "event: circuit", lines.Text(), "what waited is dropped")
		}
		assert.Equal(t, "event: resync", lines.Text())
		go func() { _, _ = io.Copy(io.Discard, read) }()
	})
}
