// Dashboard shows the circuits of a small shop on a page, and its metrics, with
// nothing to install:
//
//	go run ./examples/dashboard
//
// Then open the address that it prints, and sign in with the token. The shop
// calls three providers, real HTTP servers on this machine, and each has a
// trouble of its own: payments goes down, stock gets slow, mail fails now and
// then. Watch their circuits open, test and close; reset one, or hold it open.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/admin"
	"github.com/breakerkit/breaker/prombreaker"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "`address` to serve on; keep it on loopback")
	lasts := flag.Duration("for", 0, "how long to run; 0: until interrupted")
	flag.Parse()
	if flag.NArg() > 0 || *lasts < 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(*addr, *lasts); err != nil {
		fmt.Fprintln(os.Stderr, "dashboard:", err)
		os.Exit(1)
	}
}

func run(addr string, lasts time.Duration) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if lasts > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, lasts)
		defer cancel()
	}

	// The feed is the Breaker's Observer and the handler's: it brings what
	// happens here to the page at once.
	feed, tally := new(admin.Feed), newTally()
	metrics, err := prombreaker.New(prombreaker.Config{})
	if err != nil {
		return err
	}
	b, err := breaker.New(breaker.NewMemoryStore(breaker.MemoryConfig{}), breaker.Config{
		Observer: breaker.Observers(feed, tally, metrics),
		Policies: policies,
	})
	if err != nil {
		return err
	}
	metrics.Watch(b)
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	shop := newShop(b)
	defer shop.close()

	token := rand.Text()
	dashboard := admin.New(b, admin.Config{Token: token, Title: "The shop's circuits", Feed: feed})
	mux := http.NewServeMux()
	mux.Handle("/breakers/", dashboard)
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("/checkout", shop.checkout)

	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	server.RegisterOnShutdown(dashboard.Close) // else Shutdown waits for the pages that watch
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()

	url := "http://" + listener.Addr().String()
	fmt.Printf("dashboard  %s/breakers/\ntoken      %s\nmetrics    %s/metrics\nthe shop   %s/checkout, which customers use ten times a second\n", url, token, url, url)
	if lasts == 0 {
		fmt.Println("stop it with Ctrl-C")
	}
	var customers sync.WaitGroup
	customers.Go(func() { visit(ctx, url+"/checkout") })
	select {
	case <-ctx.Done():
	case err := <-served:
		return err
	}

	bounded, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	customers.Wait()
	err = errors.Join(server.Shutdown(bounded), b.Close()) // brings the last notices
	return errors.Join(err, tally.finish(lasts > 0))
}

// visit is the customers.
func visit(ctx context.Context, url string) {
	client := &http.Client{Timeout: 5 * time.Second}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if resp, err := client.Get(url); err == nil {
				resp.Body.Close()
			}
		}
	}
}
