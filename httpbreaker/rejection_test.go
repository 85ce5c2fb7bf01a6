package httpbreaker_test

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/httpbreaker"
)

func TestWriteRejection(t *testing.T) {
	for _, c := range []struct {
		wait time.Duration
		want string
	}{
		{18 * time.Second, "18"},
		{18*time.Second + 1, "19"},
		{time.Nanosecond, "1"},
		{0, "0"},
		{-time.Second, "0"},
		{math.MaxInt64, "9223372037"},
	} {
		for _, state := range []breaker.State{breaker.StateOpen, breaker.StateHalfOpen} {
			err := fmt.Errorf("charge: %w", &breaker.RejectedError{
				Key: "secret-host", State: state, RetryAfter: c.wait, LastError: "secret reason"})
			w := httptest.NewRecorder()
			w.Header().Set("Content-Length", "7")
			assert.True(t, httpbreaker.WriteRejection(w, err))
			assert.Equal(t, http.StatusServiceUnavailable, w.Code)
			assert.Equal(t, http.Header{
				"Content-Type":           {"application/problem+json"},
				"Retry-After":            {c.want},
				"X-Content-Type-Options": {"nosniff"},
			}, w.Header())
			assert.JSONEq(t, `{"title":"Service Unavailable","status":503,
				"detail":"A service that this request needs is unavailable at the moment. Try again in `+c.want+` s."}`, w.Body.String())
			assert.NotContains(t, w.Body.String(), "secret")
		}
	}
	w := httptest.NewRecorder()
	assert.True(t, httpbreaker.WriteRejection(w, breaker.ErrOpen), "a rejection that lost its details")
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
	assert.Empty(t, w.Header()["Retry-After"])
}

func TestWriteRejectionLeavesOtherErrorsAlone(t *testing.T) {
	for _, err := range []error{
		nil, errors.New("no such user"), &breaker.StatusError{Code: 503, RetryAfter: time.Second},
		&breaker.StoreError{Op: "acquire", Key: "k", Err: errors.New("down")}, breaker.ErrConfig,
	} {
		w := httptest.NewRecorder()
		assert.False(t, httpbreaker.WriteRejection(w, err), err)
		assert.False(t, w.Flushed)
		assert.Empty(t, w.Header())
		assert.Empty(t, w.Body.String())
		w.WriteHeader(http.StatusTeapot) // it is still to be written
		assert.Equal(t, http.StatusTeapot, w.Code)
	}
}
