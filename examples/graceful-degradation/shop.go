package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"

	"github.com/breakerkit/breaker"
)

// A rate of exchange, and whether it is one kept from an earlier answer.
type rate struct {
	EURUSD float64 `json:"eur_usd"`
	Kept   bool    `json:"-"`
}

var errNothingKept = errors.New("no earlier rate is known")

// A shop needs a rate on every page.
type shop struct {
	breaker *breaker.Breaker
	client  *http.Client
	url     string
	last    atomic.Pointer[rate]
}

// rate returns a fresh rate, or the last one known when there is an error:
// whether the provider failed, or the breaker did not let it be asked.
func (s *shop) rate(ctx context.Context) (rate, error) {
	return breaker.DoWithFallback(ctx, s.breaker, "rates", s.fetch, s.kept)
}

func (s *shop) fetch(ctx context.Context) (r rate, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
	if err != nil {
		return r, breaker.Ignore(err) // our own mistake says nothing of the provider
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return r, err
	}
	defer resp.Body.Close()
	if err := breaker.CheckResponse(resp); err != nil {
		return r, err
	}
	if err := json.NewDecoder(resp.Body).Decode(&r); err != nil {
		return r, fmt.Errorf("rates: %w", err)
	}
	s.last.Store(&r)
	return r, nil
}

// kept is the fallback. The error says why it is asked: a real shop would log
// it, unless it is breaker.ErrOpen, which says nothing new.
func (s *shop) kept(context.Context, error) (rate, error) {
	last := s.last.Load()
	if last == nil {
		return rate{}, errNothingKept
	}
	r := *last
	r.Kept = true
	return r, nil
}
