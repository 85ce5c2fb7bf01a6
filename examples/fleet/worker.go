package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/breakerkit/breaker"
)

const (
	circuit = "payments"            // the key that all workers use
	pace    = 50 * time.Millisecond // between two calls of a worker
)

// policy is the same in all workers: the failures of the whole fleet count
// together, and so do its probes.
var policy = breaker.Policy{
	ConsecutiveFailures: 5,
	Cooldown:            time.Second,
	MaxProbes:           1,
	CallTimeout:         2 * time.Second,
}

// sharedBreaker returns a Breaker whose circuits are in Redis, for all
// processes that use the same server and prefix.
func sharedBreaker(client *redis.Client, prefix, instance string, o breaker.Observer) (*breaker.Breaker, error) {
	return breaker.New(breaker.NewRedisStore(client, breaker.RedisConfig{Prefix: prefix}), breaker.Config{
		Policy:       policy,
		Observer:     o,
		Instance:     instance,
		StoreTimeout: time.Second, // a crowd of processes on one machine may be slow
	})
}

// A report is what a worker tells the parent, in a line of JSON.
type report struct {
	Worker     string
	Ready      bool                // its first call went well
	Transition *breaker.Transition // its Breaker made one
	Degraded   string              // Redis failed
	Tally      *tally              // when it ends
}

// A tally is what became of a worker's calls.
type tally struct{ OK, Failed, Spared, OKSinceSpared int }

// runWorker calls the provider until standard input ends, which it also does
// when the parent dies.
func runWorker(name, redisAddr, prefix, url string) error {
	client := redis.NewClient(&redis.Options{Addr: redisAddr})
	defer client.Close()
	parent := &parent{worker: name, out: json.NewEncoder(os.Stdout)}
	b, err := sharedBreaker(client, prefix, name, parent)
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()

	var t tally
	call := func(ctx context.Context) error { return pay(ctx, url) }
	for running := true; running; {
		err := b.Execute(context.Background(), circuit, call)
		switch {
		case err == nil:
			t.OK++
			t.OKSinceSpared++
			if t.OK == 1 {
				parent.tell(report{Ready: true})
			}
		case errors.Is(err, breaker.ErrOpen), errors.Is(err, breaker.ErrBusy):
			t.Spared++
			t.OKSinceSpared = 0
		default: // the provider's own error
			t.Failed++
		}
		select {
		case <-ended:
			running = false
		case <-time.After(pace):
		}
	}
	if err := b.Close(); err != nil { // brings the last notices
		return err
	}
	parent.tell(report{Tally: &t})
	return nil
}

// pay is any call that may fail.
func pay(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return breaker.CheckResponse(resp)
}

// A parent is the worker's line to it. It is also the worker's Observer: of
// all the Breakers, only the one that made a transition hears of it.
type parent struct {
	breaker.NopObserver
	worker string
	mu     sync.Mutex
	out    *json.Encoder
}

func (p *parent) tell(r report) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.Worker = p.worker
	_ = p.out.Encode(r) // without a parent, standard input ends too
}

func (p *parent) Transitioned(t breaker.Transition) { p.tell(report{Transition: &t}) }
func (p *parent) StoreDegraded(err error)           { p.tell(report{Degraded: err.Error()}) }
