package breaker_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/breakerkit/breaker"
)

var errCardDeclined = errors.New("card declined")

func ExampleHTTPClassifier() {
	c := breaker.HTTPClassifier{
		// The errors that only this program knows come first.
		Next: breaker.ClassifierFunc(func(err error) breaker.Outcome {
			if errors.Is(err, errCardDeclined) {
				return breaker.Success
			}
			return breaker.Undecided
		}),
	}
	for _, err := range []error{
		fmt.Errorf("charge: %w", errCardDeclined),
		&breaker.StatusError{Code: http.StatusNotFound},
		&breaker.StatusError{Code: http.StatusBadGateway},
		errors.New("something else"),
	} {
		fmt.Printf("%v: %v\n", err, c.Classify(err).Outcome)
	}
	// Output:
	// charge: card declined: success
	// breaker: HTTP status 404 Not Found: success
	// breaker: HTTP status 502 Bad Gateway: failure
	// something else: failure
}

func ExampleCheckResponse() {
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "30")
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer provider.Close()

	// What one would hand to Execute.
	call := func() error {
		resp, err := http.Get(provider.URL)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		return breaker.CheckResponse(resp)
	}

	err := call()
	fmt.Println(err)
	fmt.Println(breaker.HTTPClassifier{}.Classify(err).RetryAfter)
	// Output:
	// breaker: HTTP status 503 Service Unavailable
	// 30s
}
