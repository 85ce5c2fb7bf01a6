package notify_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/notify"
)

// A receiver checks who sent a webhook before it reads it.
func Example() {
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if err := notify.Verify("s3cret", r.Header, body, 5*time.Minute); err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		fmt.Println("got a signed message")
	}))
	defer receiver.Close()

	notices, err := notify.New(notify.Config{Channels: []notify.Channel{{URL: receiver.URL, Secret: "s3cret"}}})
	if err != nil {
		panic(err)
	}
	b, err := breaker.New(breaker.NewMemoryStore(breaker.MemoryConfig{}), breaker.Config{Observer: notices})
	if err != nil {
		panic(err)
	}
	notices.Watch(b)
	for range 5 {
		_ = b.Execute(context.Background(), "stripe", func(context.Context) error { return errors.New("connection refused") })
	}
	_ = b.Close()
	fmt.Println(notices.Close())
	// Output:
	// got a signed message
	// <nil>
}
