package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/go-resty/resty/v2"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/httpbreaker"
)

// newClients returns a client of net/http and one of resty over the same
// Transport: what one of them finds out, the other knows.
func newClients(b *breaker.Breaker) (*http.Client, *resty.Client) {
	transport := &httpbreaker.Transport{Breaker: b} // a circuit for each host
	plain := &http.Client{Transport: transport, Timeout: 5 * time.Second}
	rest := resty.New().SetTransport(transport).SetTimeout(5 * time.Second).SetLogger(silent{}).
		SetRetryCount(3).SetRetryWaitTime(10 * time.Millisecond).AddRetryCondition(worthRetrying)
	return plain, rest
}

// silent drops the lines that resty logs about each try; callers get the error.
type silent struct{}

func (silent) Errorf(string, ...any) {}
func (silent) Warnf(string, ...any)  {}
func (silent) Debugf(string, ...any) {}

// worthRetrying is the one thing a client that retries must be told: a call
// that was rejected is not worth another try before breaker.RetryAfter(err).
func worthRetrying(resp *resty.Response, err error) bool {
	if errors.Is(err, breaker.ErrOpen) || errors.Is(err, breaker.ErrBusy) {
		return false
	}
	return err != nil || resp.StatusCode() >= 500
}

// Each call below returns an error for a bad status too. The Transport itself
// returns a 503 as the response it is.

func getPlain(ctx context.Context, client *http.Client, url string) (rate float64, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if err := breaker.CheckResponse(resp); err != nil {
		return 0, err
	}
	var out struct {
		Rate float64 `json:"rate"`
	}
	err = json.NewDecoder(resp.Body).Decode(&out)
	return out.Rate, err
}

func getResty(ctx context.Context, client *resty.Client, url string) (rate float64, err error) {
	var out struct {
		Rate float64 `json:"rate"`
	}
	resp, err := client.R().SetContext(ctx).SetResult(&out).Get(url)
	if err == nil && resp.IsError() {
		err = breaker.CheckResponse(resp.RawResponse)
	}
	return out.Rate, err
}

// front serves the rate to others. While the provider is spared, it says so,
// and when to come back.
func front(client *http.Client, url string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		rate, err := getPlain(req.Context(), client, url)
		switch {
		case err == nil:
			_ = json.NewEncoder(w).Encode(map[string]float64{"rate": rate})
		case httpbreaker.WriteRejection(w, err):
		default:
			http.Error(w, "the provider failed", http.StatusBadGateway)
		}
	})
}
