package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/breakerkit/breaker"
)

// A fleet is the worker processes as the parent sees them.
type fleet struct {
	ctx      context.Context
	kill     func() // ends all workers that still run, and waits for them
	provider *provider
	start    time.Time
	workers  []*exec.Cmd
	stdins   []io.Closer
	reports  chan report

	// What has been heard so far.
	ready, opened, closed int
	opener                string         // who made the transition to open
	notices               map[uint64]int // how many of each generation
	tallies               []tally

	rowAt    time.Time // when the last row of the rate was printed
	received int       // up to then
}

// startFleet starts the workers. kill must be called, error or not.
func startFleet(ctx context.Context, size int, redisAddr, prefix string, p *provider) (*fleet, error) {
	ctx, cancel := context.WithCancel(ctx)
	f := &fleet{ctx: ctx, provider: p, start: time.Now(), rowAt: time.Now(), reports: make(chan report), notices: make(map[uint64]int)}
	f.kill = func() {
		cancel()
		for _, w := range f.workers {
			_ = w.Wait()
		}
	}
	program, err := os.Executable()
	if err != nil {
		return f, err
	}
	for i := range size {
		w := exec.CommandContext(ctx, program, "-worker", fmt.Sprintf("worker-%d", i+1), redisAddr, prefix, p.URL)
		w.Stderr = os.Stderr
		stdin, err := w.StdinPipe()
		if err != nil {
			return f, err
		}
		stdout, err := w.StdoutPipe()
		if err != nil {
			return f, err
		}
		if err := w.Start(); err != nil {
			return f, err
		}
		f.workers, f.stdins = append(f.workers, w), append(f.stdins, stdin)
		go func() {
			for lines := json.NewDecoder(stdout); ; {
				var r report
				if lines.Decode(&r) != nil {
					return
				}
				select {
				case f.reports <- r:
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	return f, nil
}

// until prints what happens until done, or until the time is up. It returns
// what done says then.
func (f *fleet) until(limit time.Duration, done func() bool) bool {
	timeout := time.After(limit)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case r := <-f.reports:
			f.hear(r)
		case <-tick.C:
			f.printRate()
		case <-timeout:
			return false
		case <-f.ctx.Done():
			return false
		}
	}
	return true
}

func (f *fleet) goOn(d time.Duration) { f.until(d, func() bool { return false }) }

// end tells the workers to end, and hears their tallies.
func (f *fleet) end(limit time.Duration) bool {
	for _, in := range f.stdins {
		_ = in.Close()
	}
	return f.until(limit, func() bool { return len(f.tallies) == len(f.workers) })
}

func (f *fleet) hear(r report) {
	switch {
	case r.Ready:
		f.ready++
	case r.Tally != nil:
		f.tallies = append(f.tallies, *r.Tally)
	case r.Degraded != "":
		f.say("%s: Redis failed, calls go unprotected: %s", r.Worker, r.Degraded)
	case r.Transition != nil:
		t := *r.Transition
		f.say("-> %s: circuit %s: %s", r.Worker, t.To, because(t))
		f.notices[t.Generation]++
		switch {
		case t.From == breaker.StateClosed:
			f.opened++
			f.opener = r.Worker
			go f.provider.watchProbes()
		case t.To == breaker.StateClosed:
			f.closed++
		}
	}
}

func (f *fleet) say(format string, args ...any) {
	fmt.Printf("%4.1fs  %s\n", time.Since(f.start).Seconds(), fmt.Sprintf(format, args...))
}

// printRate prints, once a second, how many calls the provider gets.
func (f *fleet) printRate() {
	elapsed := time.Since(f.rowAt)
	if elapsed < time.Second {
		return
	}
	received, _ := f.provider.calls()
	rate := float64(received-f.received) / elapsed.Seconds()
	f.rowAt, f.received = time.Now(), received
	most := float64(len(f.workers)) * float64(time.Second/pace)
	f.say("   %3.0f calls/s %s", rate, strings.Repeat("#", int(50*min(rate/most, 1))))
}
