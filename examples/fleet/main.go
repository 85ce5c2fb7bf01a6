// Fleet shows one circuit shared by several processes:
//
//	go run ./examples/fleet
//
// It starts a provider (an HTTP server) and worker processes that call it all
// the time. They share their circuit through Redis: with -redis host:port a
// real server, else a small one within this program. The provider gets sick
// for a while. The circuit opens once for all workers, one call at a time is
// let through to see whether the provider has recovered, and then all resume.
//
// worker.go is what a program of yours would look like.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

func main() {
	if len(os.Args) == 6 && os.Args[1] == "-worker" { // this process is one of the fleet's
		exit(runWorker(os.Args[2], os.Args[3], os.Args[4], os.Args[5]))
	}
	size := flag.Int("workers", 4, "how many worker processes, 1 to 50")
	redisAddr := flag.String("redis", "", "`host:port` of a Redis server to share state through (default: one within this program)")
	sick := flag.Duration("sick", 4*time.Second, "how long the provider is sick, up to 5m")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), "Several processes share one circuit breaker while the provider they call is sick.\n"+
			"Exit status 1 if they do not share it well.\n\nusage: fleet [flags]\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() > 0 || *size < 1 || *size > 50 || *sick < 0 || *sick > 5*time.Minute {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	ctx, cancel := context.WithTimeout(ctx, *sick+time.Minute) // whatever happens, it ends
	err := run(ctx, *size, *redisAddr, *sick)
	if ctx.Err() != nil { // whatever came of that
		err = context.Cause(ctx)
	}
	cancel()
	stop()
	exit(err)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func run(ctx context.Context, size int, redisAddr string, sick time.Duration) error {
	if redisAddr == "" {
		server, err := miniredis.Run()
		if err != nil {
			return err
		}
		defer server.Close()
		redisAddr = server.Addr()
	}
	client := redis.NewClient(&redis.Options{Addr: redisAddr})
	defer client.Close()
	if err := client.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("no Redis at %s: %w", redisAddr, err)
	}
	prefix := fmt.Sprintf("breaker-example-%d", time.Now().UnixNano()) // a circuit that nobody has used
	defer client.Del(context.Background(), prefix+":{"+circuit+"}", prefix+":{"+circuit+"}:log", prefix+":names")

	provider := newProvider()
	defer provider.Close()
	f, err := startFleet(ctx, size, redisAddr, prefix, provider)
	defer f.kill()
	if err != nil {
		return err
	}

	f.say("%d processes call the provider; Redis is at %s", size, redisAddr)
	if !f.until(10*time.Second, func() bool { return f.ready == size }) {
		return errors.New("not all workers came up")
	}
	f.goOn(time.Second)

	f.say("THE PROVIDER GETS SICK: it answers 503")
	provider.setSick(true)
	f.goOn(sick)
	if f.opened == 0 {
		return errors.New("the circuit did not open")
	}

	f.say("THE PROVIDER IS WELL AGAIN")
	provider.setSick(false)
	if !f.until(10*time.Second, func() bool { return f.closed > 0 }) {
		return errors.New("the circuit did not close again")
	}
	f.goOn(2 * time.Second)
	if !f.end(10 * time.Second) {
		return errors.New("not all workers ended when told to")
	}

	b, err := sharedBreaker(client, prefix, "parent", nil)
	if err != nil {
		return err
	}
	defer b.Close()
	snapshot, err := b.Snapshot(ctx, circuit)
	if err != nil {
		return err
	}
	return f.finish(snapshot)
}
