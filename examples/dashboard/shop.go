package main

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/breakerkit/breaker"
)

// Each provider's trouble comes once in so long a time.
const cycle = 10 * time.Second

// policies are shorter-tempered than those of a real service, so that one need
// not wait long for something to happen.
var policies = map[string]breaker.Policy{
	"payments": {ConsecutiveFailures: 5, Cooldown: 2 * time.Second},
	"stock":    {ConsecutiveFailures: 3, CallTimeout: 150 * time.Millisecond, Cooldown: 2 * time.Second, ProbeSuccesses: 3},
	"mail":     {FailureRate: 0.4, MinCalls: 10, Window: 5 * time.Second, Cooldown: 3 * time.Second, CooldownJitter: 0.2},
}

// A shop needs payments to sell; the rest can be seen to later.
type shop struct {
	b         *breaker.Breaker
	providers map[string]*httptest.Server
}

func newShop(b *breaker.Breaker) *shop {
	began := time.Now()
	during := func(from, to time.Duration) bool { // the part of each cycle with trouble
		at := time.Since(began) % cycle
		return from <= at && at < to
	}
	var mails atomic.Int64
	return &shop{b, map[string]*httptest.Server{
		"payments": provider(func(w http.ResponseWriter) {
			if during(time.Second, 4*time.Second) {
				http.Error(w, "down for maintenance", http.StatusServiceUnavailable)
			}
		}),
		"stock": provider(func(http.ResponseWriter) {
			if during(3*time.Second, 6*time.Second) {
				time.Sleep(400 * time.Millisecond)
			}
		}),
		"mail": provider(func(w http.ResponseWriter) {
			if during(5*time.Second, 8*time.Second) && mails.Add(1)%3 != 0 {
				http.Error(w, "mailbox busy", http.StatusInternalServerError)
			}
		}),
	}}
}

func provider(answer func(http.ResponseWriter)) *httptest.Server {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { answer(w) }))
}

func (s *shop) close() {
	for _, p := range s.providers {
		p.Close()
	}
}

// call asks a provider, unless its circuit is open.
func (s *shop) call(ctx context.Context, name string) error {
	return s.b.Execute(ctx, name, func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.providers[name].URL, nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		return breaker.CheckResponse(resp)
	})
}

// checkout sells something. What a breaker rejects is never a success: it is
// 503, with the time to come back.
func (s *shop) checkout(w http.ResponseWriter, r *http.Request) {
	err := s.call(r.Context(), "payments")
	if wait, rejected := breaker.RetryAfter(err); rejected {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
		http.Error(w, "payments are down, try again later", http.StatusServiceUnavailable)
		return
	}
	if err != nil {
		http.Error(w, "the payment failed", http.StatusBadGateway)
		return
	}
	text := "sold"
	if s.call(r.Context(), "stock") != nil {
		text += "; we can't say yet when it arrives"
	}
	if s.call(r.Context(), "mail") != nil {
		text += "; the receipt comes later"
	}
	fmt.Fprintln(w, text)
}
