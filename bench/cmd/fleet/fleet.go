package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/redistest"
)

var (
	ctx     = context.Background()
	errDown = errors.New("down")
)

// A lab stands in for the test that redistest starts a server for.
type lab struct {
	testing.TB // nil: what redistest uses of it is below
	ends       []func()
}

// inLab runs do with a server, and ends all that was started.
func inLab(do func(l *lab, s *redistest.Server) error) (err error) {
	l := new(lab)
	defer func() {
		for _, end := range slices.Backward(l.ends) {
			end()
		}
		switch failed := recover().(type) {
		case nil:
		case labError:
			err = failed
		default:
			panic(failed)
		}
	}()
	return do(l, redistest.Start(l))
}

type labError string

func (e labError) Error() string { return string(e) }

func (l *lab) Helper()                      {}
func (l *lab) Cleanup(end func())           { l.ends = append(l.ends, end) }
func (l *lab) Fatal(args ...any)            { panic(labError(fmt.Sprint(args...))) }
func (l *lab) Fatalf(f string, args ...any) { panic(labError(fmt.Sprintf(f, args...))) }
func (l *lab) Skip(args ...any)             { l.Fatal(args...) }

func (l *lab) TempDir() string {
	dir, err := os.MkdirTemp("", "fleet")
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// A fleet is a number of processes that share a server.
type fleet struct {
	processes []*breaker.Breaker
	opened    atomic.Int64 // transitions to open
	degraded  atomic.Int64 // times that a process found the store failing
}

func newFleet(l *lab, s *redistest.Server, n int, store breaker.RedisConfig, p breaker.Policy, hook redis.Hook) (*fleet, error) {
	f := new(fleet)
	for i := range n {
		client := s.Client(&redis.Options{ContextTimeoutEnabled: true})
		if hook != nil {
			client.AddHook(hook)
		}
		b, err := breaker.New(breaker.NewRedisStore(client, store), breaker.Config{
			Policy: p, Instance: fmt.Sprint("process-", i), StoreTimeout: 5 * time.Second, Observer: watcher{f: f},
		})
		if err != nil {
			return nil, err
		}
		l.Cleanup(func() { _ = b.Close() })
		f.processes = append(f.processes, b)
	}
	return f, nil
}

type watcher struct {
	breaker.NopObserver
	f *fleet
}

func (w watcher) StoreDegraded(error) { w.f.degraded.Add(1) }

func (w watcher) Transitioned(t breaker.Transition) {
	if t.To == breaker.StateOpen {
		w.f.opened.Add(1)
	}
}

// call makes a call that ends with err.
func call(b *breaker.Breaker, key string, err error) error {
	return b.Execute(ctx, key, func(context.Context) error { return err })
}

// at returns the value below which a share of the sorted ds lies.
func at(ds []time.Duration, share float64) time.Duration {
	if len(ds) == 0 {
		return 0
	}
	return ds[min(int(share*float64(len(ds))), len(ds)-1)]
}

// bare times n bare round trips on a client of its own, sorted.
func bare(client *redis.Client, n int, pause time.Duration) (trips []time.Duration) {
	for range n {
		began := time.Now()
		if client.Ping(ctx).Err() == nil {
			trips = append(trips, time.Since(began))
		}
		time.Sleep(pause)
	}
	slices.Sort(trips)
	return trips
}
