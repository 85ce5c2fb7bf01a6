package main

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"time"
)

// A provider is the HTTP server that the fleet calls. It is well or sick, and
// counts what it gets.
type provider struct {
	*httptest.Server

	mu       sync.Mutex
	sick     bool
	received int
	failed   int
	inFlight int

	// While the circuit is open, whatever comes is a probe.
	watching bool
	probes   int
	atOnce   int // the most of them at the same time
}

func newProvider() *provider {
	p := &provider{}
	p.Server = httptest.NewServer(p)
	return p
}

func (p *provider) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	p.arrive()
	time.Sleep(20 * time.Millisecond) // its work
	w.WriteHeader(p.answer())
}

func (p *provider) arrive() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.received++
	p.inFlight++
	if p.watching {
		p.probes++
		p.atOnce = max(p.atOnce, p.inFlight)
	}
}

func (p *provider) answer() (status int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inFlight--
	if p.sick {
		p.failed++
		return http.StatusServiceUnavailable
	}
	p.watching = false // a probe that succeeds closes the circuit
	return http.StatusOK
}

func (p *provider) setSick(sick bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sick = sick
}

// watchProbes begins to count probes once the calls that were under way when
// the circuit opened are over.
func (p *provider) watchProbes() {
	for range 100 {
		time.Sleep(policy.Cooldown / 4)
		if p.watchIfIdle() {
			return
		}
	}
}

func (p *provider) watchIfIdle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watching = p.inFlight == 0
	return p.watching
}

// calls returns how many calls came so far, and how many of them failed.
func (p *provider) calls() (received, failed int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.received, p.failed
}

// probed returns how many probes came, and how many of them at once.
func (p *provider) probed() (probes, atOnce int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.probes, p.atOnce
}
