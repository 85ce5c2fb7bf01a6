package breaker_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

// What goes between the test and a worker, a line of JSON each.
type (
	workerSetup struct {
		Name, Addr string
		Policy     breaker.Policy
	}

	workerOrder struct {
		Do     string // call, hold (a call, until release), release, hammer (Calls of them), flush
		Key    string
		Result workerResult // of the call
		Calls  int
	}

	workerResult struct {
		Fail       bool
		RetryAfter time.Duration
	}

	workerSaid struct {
		Got    string         // holding, or what came of the order; ran, open and busy of a call
		Tally  map[string]int // of a hammer: how often it got what
		Notice *breaker.Transition
	}
)

var workerSuccess, workerFailure = workerResult{}, workerResult{Fail: true}

func (r workerResult) err() error {
	if r.Fail {
		return &breaker.StatusError{Code: http.StatusServiceUnavailable, RetryAfter: r.RetryAfter}
	}
	return nil
}

// A workerProcess is the test's end of a process.
type workerProcess struct {
	t       *testing.T
	name    string
	process *os.Process
	in      *json.Encoder
	out     chan workerSaid
	noticed []breaker.Transition // as far as heard
	dead    bool
}

func startWorkerProcess(t *testing.T, setup workerSetup) *workerProcess {
	t.Helper()
	text, err := json.Marshal(setup)
	require.NoError(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), workerEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())

	w := &workerProcess{t: t, name: setup.Name, process: cmd.Process, in: json.NewEncoder(in), out: make(chan workerSaid, 1000)}
	go func() {
		defer close(w.out)
		for lines := json.NewDecoder(out); ; {
			var s workerSaid
			if lines.Decode(&s) != nil {
				return
			}
			w.out <- s
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // also if it is stopped
		for range w.out {
		}
		_ = cmd.Wait()
	})
	return w
}

func (w *workerProcess) tell(o workerOrder) {
	w.t.Helper()
	require.NoError(w.t, w.in.Encode(o), w.name)
}

// hear returns what came of an order, and keeps the notices that come before.
func (w *workerProcess) hear() workerSaid {
	w.t.Helper()
	timeout := time.After(fleetPatience)
	for {
		select {
		case s, ok := <-w.out:
			require.True(w.t, ok, "%s has ended", w.name)
			if s.Notice == nil {
				return s
			}
			w.noticed = append(w.noticed, *s.Notice)
		case <-timeout:
			require.FailNow(w.t, "no answer", w.name)
		}
	}
}

func (w *workerProcess) do(o workerOrder) workerSaid {
	w.t.Helper()
	w.tell(o)
	return w.hear()
}

func (w *workerProcess) signal(s os.Signal) {
	w.t.Helper()
	require.NoError(w.t, w.process.Signal(s))
}

// workerMain is the worker's side: it obeys until its standard input ends.
func workerMain(text string) {
	var setup workerSetup
	if err := json.Unmarshal([]byte(text), &setup); err != nil {
		panic(err)
	}
	voice := &workerVoice{out: json.NewEncoder(os.Stdout)}
	store := breaker.NewRedisStore(redis.NewClient(&redis.Options{Addr: setup.Addr}), breaker.RedisConfig{})
	newBreaker := func() *breaker.Breaker {
		b, err := breaker.New(store, breaker.Config{Policy: setup.Policy, Instance: setup.Name, Observer: voice,
			OnStoreError: breaker.FailClosed, StoreTimeout: fleetPatience})
		if err != nil {
			panic(err)
		}
		return b
	}
	b := newBreaker()
	release := make(chan workerResult)
	for orders := json.NewDecoder(os.Stdin); ; {
		var o workerOrder
		if orders.Decode(&o) != nil {
			return
		}
		switch o.Do {
		case "call":
			voice.say(workerSaid{Got: workerCall(b, o.Key, o.Result.err)})
		case "hold":
			go func(b *breaker.Breaker) {
				voice.say(workerSaid{Got: workerCall(b, o.Key, func() error {
					voice.say(workerSaid{Got: "holding"})
					return (<-release).err()
				})})
			}(b)
		case "release":
			release <- o.Result
		case "hammer":
			voice.say(workerSaid{Tally: workerHammer(b, o)})
		case "flush":
			got := "flushed"
			if err := b.Close(); err != nil { // it brings the last notices
				got = err.Error()
			}
			b = newBreaker()
			voice.say(workerSaid{Got: got})
		}
	}
}

// workerHammer makes calls on four goroutines at once.
func workerHammer(b *breaker.Breaker, o workerOrder) map[string]int {
	const goroutines = 4
	var mu sync.Mutex
	tally := make(map[string]int)
	var all sync.WaitGroup
	for range goroutines {
		all.Go(func() {
			for range o.Calls / goroutines {
				got := workerCall(b, o.Key, o.Result.err)
				mu.Lock()
				tally[got]++
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return tally
}

// workerCall makes a call and says what came of it; its own result is "ran".
func workerCall(b *breaker.Breaker, key string, do func() error) string {
	err := b.Execute(context.Background(), key, func(context.Context) error { return do() })
	var status *breaker.StatusError
	switch {
	case err == nil, errors.As(err, &status):
		return "ran"
	case errors.Is(err, breaker.ErrOpen):
		return "open"
	case errors.Is(err, breaker.ErrBusy):
		return "busy"
	default:
		return err.Error()
	}
}

// A workerVoice is the worker's standard output, and its Observer.
type workerVoice struct {
	breaker.NopObserver
	mu  sync.Mutex
	out *json.Encoder
}

func (m *workerVoice) say(s workerSaid) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_ = m.out.Encode(s) // if the test is gone, so is standard input
}

func (m *workerVoice) Transitioned(t breaker.Transition) { m.say(workerSaid{Notice: &t}) }

// StoreDegraded is the answer to an order nobody gave: the test fails.
func (m *workerVoice) StoreDegraded(err error) { m.say(workerSaid{Got: err.Error()}) }
