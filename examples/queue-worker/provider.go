package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"

	"github.com/hibiken/asynq"

	"github.com/breakerkit/breaker"
)

// A provider takes orders, a real HTTP server on this machine. It remembers
// each order it has taken, and counts those it turned away.
type provider struct {
	*httptest.Server
	mu     sync.Mutex
	down   bool
	taken  map[string]int
	turned int
}

func newProvider() *provider {
	p := &provider{taken: make(map[string]int)}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		order, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		time.Sleep(10 * time.Millisecond) // it takes a moment, as they do
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.down {
			p.turned++
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		p.taken[string(order)]++
	}))
	return p
}

func (p *provider) setDown(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
}

// orders returns how many orders were taken, how many of them more than once,
// and how often one was turned away.
func (p *provider) orders() (taken, twice, turned int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range p.taken {
		taken++
		if n > 1 {
			twice++
		}
	}
	return taken, twice, p.turned
}

// order is the job: it sends its payload to the provider.
func (p *provider) order(ctx context.Context, task *asynq.Task) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.URL, bytes.NewReader(task.Payload()))
	if err != nil {
		return breaker.Ignore(err) // our own mistake says nothing of the provider
	}
	resp, err := p.Client().Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return breaker.CheckResponse(resp)
}
