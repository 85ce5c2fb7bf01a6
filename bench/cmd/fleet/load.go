package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/redistest"
)

// load is what a fleet cost its server, a second.
type load struct {
	Processes int     `json:"processes"`
	Keys      int     `json:"keys"`
	Calls     float64 `json:"calls_a_second"`
	Commands  float64 `json:"commands_a_second"` // that clients sent
	CPU       float64 `json:"cpu"`               // of one processor
	Opened    int64   `json:"opened"`
	Degraded  int64   `json:"degraded"`
	Records   int     `json:"records"` // circuits that the server knows of
	Hash      int64   `json:"hash_bytes"`
	History   int64   `json:"history_bytes"`
	Name      float64 `json:"name_bytes"`
}

const (
	callEvery = 20 * time.Millisecond
	failing   = 0.01
)

// measureLoads measures the growth with processes and with keys.
func measureLoads(cfg breaker.RedisConfig, span time.Duration) (got []load, err error) {
	for _, point := range [][2]int{{25, 1000}, {50, 1000}, {100, 1000}, {200, 10}, {200, 100}, {200, 1000}} {
		p, err := measureLoad(cfg, point[0], point[1], span)
		if err != nil {
			return nil, err
		}
		fmt.Printf("%+v\n", p)
		got = append(got, p)
	}
	return got, nil
}

func measureLoad(cfg breaker.RedisConfig, processes, keys int, span time.Duration) (p load, err error) {
	p.Processes, p.Keys = processes, keys
	err = inLab(func(l *lab, s *redistest.Server) error {
		f, err := newFleet(l, s, processes, cfg, breaker.Policy{}, nil)
		if err != nil {
			return err
		}
		var calls atomic.Int64
		work, stop := context.WithCancel(ctx)
		defer stop()
		var wg, warm sync.WaitGroup
		for i, b := range f.processes {
			warm.Add(1)
			wg.Go(func() {
				// Each key once, so that the first call of each is not what is measured.
				for key := range keys {
					_ = call(b, keyName(key), nil)
				}
				warm.Done()
				r := rand.New(rand.NewPCG(uint64(i), 1))
				time.Sleep(time.Duration(r.Int64N(int64(callEvery))))
				for tick := time.NewTicker(callEvery); work.Err() == nil; <-tick.C {
					err := error(nil)
					if r.Float64() < failing {
						err = errDown
					}
					_ = call(b, keyName(r.IntN(keys)), err)
					calls.Add(1)
				}
			})
		}
		warm.Wait()
		time.Sleep(2 * time.Second) // names are said, listeners hear
		client := s.Client(nil)
		began := time.Now()
		before, err := look(client, s)
		if err != nil {
			return err
		}
		callsBefore, openedBefore := calls.Load(), f.opened.Load()
		time.Sleep(span)
		seconds := time.Since(began).Seconds()
		after, err := look(client, s)
		if err != nil {
			return err
		}
		p.Calls = float64(calls.Load()-callsBefore) / seconds
		p.Commands = float64(after.sent-before.sent) / seconds
		p.CPU = (after.cpu - before.cpu) / seconds
		p.Opened, p.Degraded = f.opened.Load()-openedBefore, f.degraded.Load()
		stop()
		wg.Wait()
		return p.weigh(client)
	})
	return p, err
}

func keyName(i int) string { return fmt.Sprint("key-", i) }

// A sight is what the server says of itself.
type sight struct {
	sent int     // commands of clients
	cpu  float64 // seconds
}

func look(client *redis.Client, s *redistest.Server) (now sight, err error) {
	commands := s.Commands()
	for _, sent := range []string{"hmget", "evalsha", "eval", "ping", "subscribe"} { // which no script sends
		now.sent += commands[sent]
	}
	info, err := client.InfoMap(ctx, "cpu").Result()
	if err != nil {
		return now, err
	}
	for _, used := range []string{"used_cpu_user", "used_cpu_sys"} {
		seconds, err := strconv.ParseFloat(info["CPU"][used], 64)
		if err != nil {
			return now, err
		}
		now.cpu += seconds
	}
	return now, nil
}

// weigh asks how much memory the circuits take, on average.
func (p *load) weigh(client *redis.Client) error {
	var errs []error
	bytes := func(key string) int64 {
		n, err := client.MemoryUsage(ctx, key, 0).Result()
		if errors.Is(err, redis.Nil) {
			return 0
		}
		errs = append(errs, err)
		return n
	}
	for key := range p.Keys {
		name := "breaker:{" + keyName(key) + "}"
		if hash := bytes(name); hash > 0 {
			p.Records++
			p.Hash += hash
			p.History += bytes(name + ":log")
		}
	}
	if p.Records > 0 {
		p.Hash /= int64(p.Records)
		p.History /= int64(p.Records)
	}
	p.Name = float64(bytes("breaker:names")) / float64(p.Keys)
	return errors.Join(errs...)
}
