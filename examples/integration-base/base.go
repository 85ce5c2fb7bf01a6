package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/breakerkit/breaker"
)

// newBreaker makes the one Breaker of the program. A customer's credentials
// that no longer work are as good a reason to stop as a provider that is down,
// so 401 and 403 count as failures here.
func newBreaker(o breaker.Observer) (*breaker.Breaker, error) {
	return breaker.New(breaker.NewMemoryStore(breaker.MemoryConfig{}), breaker.Config{
		Policy: breaker.Policy{ConsecutiveFailures: 3, Cooldown: time.Hour, CallTimeout: 10 * time.Second},
		Classifier: breaker.HTTPClassifier{FailureStatus: func(code int) bool {
			return code >= 500 || code == http.StatusTooManyRequests ||
				code == http.StatusUnauthorized || code == http.StatusForbidden
		}},
		Observer: o,
	})
}

// A Base is what every integration embeds. All of its calls go through a
// circuit of its own provider and customer; the integration need not know.
type Base struct {
	breaker *breaker.Breaker
	key     string
	url     string
	client  *http.Client

	mu    sync.Mutex
	token string
}

// NewBase connects a customer's account with a provider.
func NewBase(b *breaker.Breaker, provider, customer, url, token string) *Base {
	return &Base{breaker: b, key: provider + "/" + customer, url: url, client: new(http.Client), token: token}
}

// Reconnect takes new credentials and forgets what came of the old ones, in
// every process that shares the store: the next call is made at once.
func (b *Base) Reconnect(ctx context.Context, token string) error {
	b.mu.Lock()
	b.token = token
	b.mu.Unlock()
	return b.breaker.Reset(ctx, b.key)
}

// Call sends in, unless it is nil, as JSON, and reads the answer into out.
func (b *Base) Call(ctx context.Context, method, path string, in, out any) error {
	return b.breaker.Execute(ctx, b.key, func(ctx context.Context) error {
		req, err := b.request(ctx, method, path, in)
		if err != nil {
			return breaker.Ignore(err) // our own mistake says nothing of the provider
		}
		resp, err := b.client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if err := breaker.CheckResponse(resp); err != nil {
			return fmt.Errorf("%s %s: %w", method, path, err)
		}
		return json.NewDecoder(resp.Body).Decode(out)
	})
}

func (b *Base) request(ctx context.Context, method, path string, in any) (*http.Request, error) {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, b.url+path, body)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	req.Header.Set("Authorization", "Bearer "+b.token)
	return req, nil
}
