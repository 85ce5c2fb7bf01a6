package httpbreaker

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/breakerkit/breaker"
)

// WriteRejection answers a request that could not be served because a circuit
// rejected a call, and reports whether err is, or wraps, such a rejection. The
// answer is 503 with a Retry-After in whole seconds, rounded up, and a body of
// type application/problem+json. It names neither the circuit nor its last
// failure, which are not for every client's eyes.
//
// For any other error, nil and a *breaker.StoreError included, it returns false
// and writes nothing: what such an error means to a client is for the server to
// say. Call it before anything else is written to w.
func WriteRejection(w http.ResponseWriter, err error) bool {
	if !errors.Is(err, breaker.ErrOpen) && !errors.Is(err, breaker.ErrBusy) {
		return false
	}
	wait, ok := breaker.RetryAfter(err)
	h := w.Header()
	h.Del("Content-Length") // of another body
	h.Set("Content-Type", "application/problem+json")
	h.Set("X-Content-Type-Options", "nosniff")
	problem := struct {
		Title  string `json:"title"`
		Status int    `json:"status"`
		Detail string `json:"detail"`
	}{
		Title:  http.StatusText(http.StatusServiceUnavailable),
		Status: http.StatusServiceUnavailable,
		Detail: "A service that this request needs is unavailable at the moment.",
	}
	if ok {
		seconds := wholeSeconds(wait)
		h.Set("Retry-After", strconv.FormatInt(seconds, 10))
		problem.Detail += fmt.Sprintf(" Try again in %d s.", seconds)
	}
	w.WriteHeader(http.StatusServiceUnavailable)
	_ = json.NewEncoder(w).Encode(problem)
	return true
}

// wholeSeconds rounds up.
func wholeSeconds(d time.Duration) int64 {
	seconds := int64(d / time.Second)
	if d%time.Second > 0 {
		seconds++
	}
	return seconds
}
