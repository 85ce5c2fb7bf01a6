// Queue-worker shows jobs of a queue (asynq) whose provider goes down for a
// while. Jobs that the breaker rejects go back into the queue for as long as
// it says, without losing an attempt, and none is lost:
//
//	go run .                          # with a small Redis within the program
//	go run . -redis localhost:6379    # with a real one
//
// worker.go is what a program of yours would look like.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/breakerkit/breaker"
)

func main() {
	addr := flag.String("redis", "", "`host:port` of a Redis server (default: one within this program)")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute) // whatever happens, it ends
	defer cancel()
	if err := run(ctx, *addr); err != nil {
		fmt.Fprintln(os.Stderr, "queue-worker:", err)
		cancel()
		os.Exit(1)
	}
}

const (
	circuit = "provider"
	batches = 40 // of jobs, one every 100ms
	batch   = 5  // jobs in it
	jobs    = batches * batch
	tries   = 3 // attempts that a job has
)

func run(ctx context.Context, addr string) (err error) {
	if addr == "" {
		server, err := miniredis.Run()
		if err != nil {
			return err
		}
		defer server.Close()
		addr = server.Addr()
	}
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	if err := client.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("no Redis at %s: %w", addr, err)
	}
	name := fmt.Sprintf("breaker-example-%d", time.Now().UnixNano()) // a queue and a circuit that nobody has used
	defer func() { err = errors.Join(err, forget(client, name)) }()

	b, err := breaker.New(breaker.NewRedisStore(client, breaker.RedisConfig{Prefix: name}), breaker.Config{
		Policy: breaker.Policy{ConsecutiveFailures: 5, Cooldown: time.Second,
			CallTimeout: 2 * time.Second, ProbeLease: 3 * time.Second},
		StoreTimeout: time.Second, // the Redis within shares this machine
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()

	p := newProvider()
	defer p.Close()
	var rejections, used atomic.Int64 // used: attempts that asynq took from jobs
	counted := func(next asynq.Handler) asynq.Handler {
		return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			err := next.ProcessTask(ctx, task)
			if n, _ := asynq.GetRetryCount(ctx); err == nil {
				used.Add(int64(n))
			} else if rejected(err) {
				rejections.Add(1)
			}
			return err
		})
	}
	opt := asynq.RedisClientOpt{Addr: addr}
	server := newServer(opt, name)
	if err := server.Start(counted(attempts(protected(b, circuit, asynq.HandlerFunc(p.order))))); err != nil {
		return err
	}
	inspector := asynq.NewInspector(opt)
	defer inspector.Close()
	defer server.Shutdown()
	enqueuer := asynq.NewClient(opt)
	defer enqueuer.Close()

	for i := range batches {
		switch i {
		case 0:
			fmt.Println("THE PROVIDER IS UP; 50 jobs a second come in")
		case 10:
			fmt.Println("THE PROVIDER GOES DOWN")
			p.setDown(true)
		case 30:
			snap, err := b.Snapshot(ctx, circuit)
			if err != nil {
				return err
			}
			if snap.State == breaker.StateClosed {
				return errors.New("the circuit did not open")
			}
			_, _, turned := p.orders()
			fmt.Printf("   %d jobs were turned away by it, %d rejected by the breaker\n", turned, rejections.Load())
			fmt.Println("THE PROVIDER IS UP AGAIN")
			p.setDown(false)
		}
		for j := range batch {
			task := asynq.NewTask("order", fmt.Appendf(nil, "order %d", i*batch+j))
			if _, err := enqueuer.EnqueueContext(ctx, task, asynq.Queue(name), asynq.MaxRetry(tries)); err != nil {
				return err
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	info, err := drain(ctx, inspector, name)
	if err != nil {
		return err
	}
	taken, twice, turned := p.orders()
	fmt.Printf(`
jobs            %3d
done            %3d   %d of them more than once
given up        %3d
turned away     %3d   times by the provider, each an attempt
rejected        %3d   times by the breaker, no attempt
`, jobs, taken, twice, info.Archived, turned, rejections.Load())
	switch {
	case taken != jobs || twice > 0 || info.Archived > 0:
		return errors.New("not every job was done once")
	case rejections.Load() == 0:
		return errors.New("no job was rejected")
	case int(used.Load()) != turned:
		return fmt.Errorf("%d attempts were used, but the provider turned %d away", used.Load(), turned)
	case turned >= int(rejections.Load()):
		return fmt.Errorf("the provider had to turn away %d jobs", turned)
	}
	return nil
}

// forget deletes the queue, the circuit and all else with this name in it.
func forget(client *redis.Client, name string) error {
	ctx := context.Background()
	if err := client.SRem(ctx, "asynq:queues", name).Err(); err != nil {
		return err
	}
	for keys := client.Scan(ctx, 0, "*"+name+"*", 1000).Iterator(); ; {
		if !keys.Next(ctx) {
			return keys.Err()
		}
		if err := client.Del(ctx, keys.Val()).Err(); err != nil {
			return err
		}
	}
}

// drain waits until no job is left to do.
func drain(ctx context.Context, inspector *asynq.Inspector, queue string) (*asynq.QueueInfo, error) {
	for {
		info, err := inspector.GetQueueInfo(queue)
		if err != nil {
			return nil, err
		}
		if info.Size == info.Archived {
			return info, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%d jobs are still in the queue: %w", info.Size, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}
