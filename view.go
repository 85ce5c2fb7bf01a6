package breaker

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// A view is what this process last read of a circuit. While it is good, calls
// act on it and cost no command. But for its two marks it is never changed,
// only replaced: whoever loads it may use it without a lock.
//
// It is good until it is dropped, which views does before it is MaxStaleness
// old, and every operation of this process that may have changed the circuit
// does at once. So a call need not read the clock to know whether it is good.
//
// To act on a view that is out of date does no harm that MaxStaleness does not
// allow: a permit of an earlier generation changes nothing, and a probe is
// never granted from a view.
type view struct {
	verdict    verdict
	generation uint64
	streak     uint64        // when the run of failures began; 0: none
	until      time.Time     // when a verdict other than run ends, on our clock; zero: it does not
	left       time.Duration // RetryAfter of a rejection that does not end by itself
	leases     string        // those that take every slot of a half-open circuit
	refusals   refusals
	read       time.Time // when the read was sent
	decided    time.Time // when the server was asked for a verdict other than run

	// Marks are rarely written, and only read else, so that calls on many
	// processors share the line.
	used      atomic.Bool  // by a call other than the one that read it
	succeeded atomic.Int64 // on the coarse clock, when a call last succeeded; 0: none did

	// Guarded by views.mu.
	refreshing bool      // it is being read again
	looked     time.Time // when used was last looked at, while it needs no reading; zero: not since it was read
}

// A verdict is what the acquire script says.
type verdict uint8

const (
	verdictNone verdict = iota // it said something else
	verdictRun
	verdictProbe
	verdictForced
	verdictOpen
	verdictBusy
)

var verdicts = map[string]verdict{
	"run": verdictRun, "probe": verdictProbe, "forced": verdictForced, "open": verdictOpen, "busy": verdictBusy,
}

// rejection returns the error of a call that must not run, nil if it may.
func (v *view) rejection(key string, left time.Duration) *RejectedError {
	if v.verdict != verdictOpen && v.verdict != verdictBusy {
		return nil
	}
	return v.refusals.after(key, durationOf(millis(left)))
}

// use marks the view as in use.
func (v *view) use() {
	if !v.used.Load() {
		v.used.Store(true)
	}
}

// succeed marks a success at tick.
func (v *view) succeed(tick int64) {
	if v.succeeded.Load() != tick {
		v.succeeded.Store(tick)
	}
}

// viewed decides on a call from the view of its circuit, and fills in its
// permit. ok is false where there is none, or where the call could be a probe.
func (s *RedisStore) viewed(key string, l *ledger, pm *Permit) (rejected *RejectedError, ok bool) {
	v := l.view.Load()
	if v == nil {
		return nil, false
	}
	v.use()
	if v.verdict == verdictRun {
		pm.Generation, pm.streak, pm.read = v.generation, v.streak, &v.read
		return nil, true
	}
	left := v.left
	if !v.until.IsZero() {
		if left = v.until.Sub(s.now()); left <= 0 {
			return nil, false
		}
	}
	pm.Generation, pm.Forced = v.generation, v.verdict == verdictForced
	return v.rejection(key, left), true
}

// unmoved reports whether a success changes nothing that anybody counts: the
// process has no failure since its last success, the circuit showed none, and
// it is the same circuit that let the call through. Then it is marked, and that
// is all: no lock, no clock, no command.
//
// A failure that comes at the same time may find the mark or not, as if the
// success had come just before it or just after.
func (s *RedisStore) unmoved(l *ledger, p *Policy, pm *Permit) bool {
	v := l.view.Load()
	if v == nil || v.verdict != verdictRun || v.generation != pm.Generation || v.streak != 0 ||
		p.rates() || l.failing.Load() {
		return false
	}
	v.succeed(s.views.clock.Load())
	return true
}

const (
	maxTick   = 20 * time.Millisecond
	minTick   = time.Millisecond // with a MaxStaleness that asks for less, there are no views
	viewBatch = 500              // reads in one pipeline

	// verdictMost is for how long a verdict is kept on what a read shows alone:
	// until is on our clock, which may not go as the server's does.
	verdictMost = 10 * time.Second
)

// views keeps the views of a store fresh while they are used, and drops them
// when they are not. It runs on the background of the Breaker whose call began
// it, and only as long as there are views.
type views struct {
	store     *RedisStore
	staleness time.Duration // 0: strict, there are none
	tick      time.Duration

	// clock is the time of the last tick, in nanoseconds since the store was
	// made. Whoever reads it knows that it is at least that late.
	clock atomic.Int64

	push push

	mu      sync.Mutex
	near    shelf       // views that are to be looked at within MaxStaleness
	far     shelf       // the others, whose changes would be heard of
	emptied time.Time   // since when there are none
	on      *background // where the next tick is due; nil: none is
}

// A shelf holds circuits with a view, and their keys.
type shelf struct {
	views map[*ledger]string
	next  time.Time // before then, none has to be looked at
}

func (s *shelf) put(l *ledger, key string, again time.Time) {
	s.views[l] = key
	if again.Before(s.next) {
		s.next = again
	}
}

func newViews(s *RedisStore, staleness time.Duration, listen bool) *views {
	tick := min(staleness/5, maxTick)
	if tick < minTick {
		tick, staleness = 0, 0
	}
	vs := &views{store: s, staleness: staleness, tick: tick}
	vs.near.views, vs.far.views = make(map[*ledger]string), make(map[*ledger]string)
	vs.clock.Store(1) // 0 marks nothing
	vs.push.views, vs.push.wanted = vs, listen
	return vs
}

// keep sees to it that a view just stored is refreshed and dropped in time.
func (vs *views) keep(l *ledger, key string, later *background) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	now := vs.store.now()
	delete(vs.far.views, l)
	vs.near.put(l, key, now.Add(vs.refreshAge()-vs.tick))
	vs.push.start(later)
	if vs.on == nil {
		vs.clock.Store(max(vs.store.sinceStart(now), 1))
		vs.arm(later)
	}
}

// refreshAge is how old a view is when it is read again.
func (vs *views) refreshAge() time.Duration { return vs.staleness * 3 / 5 }

// idle reports whether there has been no view for a while.
func (vs *views) idle(while time.Duration) bool {
	return vs.count() == 0 && vs.store.now().Sub(vs.emptied) > while
}

// count requires vs.mu.
func (vs *views) count() int { return len(vs.near.views) + len(vs.far.views) }

// look sees to it that the next tick looks at every view.
func (vs *views) look() {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	vs.near.next, vs.far.next = time.Time{}, time.Time{}
}

// arm requires vs.mu. Where no tick can be had there are no views.
func (vs *views) arm(later *background) {
	vs.on = later
	if !later.after(vs.tick, job{local: vs.turn}) {
		vs.drop()
	}
}

// drop drops every view. It requires vs.mu.
func (vs *views) drop() {
	for _, s := range []shelf{vs.near, vs.far} {
		for l := range s.views {
			l.drop(nil)
		}
		clear(s.views)
	}
	vs.on, vs.emptied = nil, vs.store.now()
}

// forget has the next call on each circuit ask the server.
func (vs *views) forget() {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	for _, s := range []shelf{vs.near, vs.far} {
		for l := range s.views {
			l.wrote() // not a read under way either
		}
		clear(s.views)
	}
}

// turn is one tick.
func (vs *views) turn(closing bool) {
	vs.mu.Lock()
	if closing {
		vs.drop() // another Breaker's next call begins anew
		vs.mu.Unlock()
		return
	}
	later, now := vs.on, vs.store.now()
	vs.clock.Store(vs.store.sinceStart(now))
	due := append(vs.sweep(&vs.near, now), vs.sweep(&vs.far, now)...)
	if vs.count() > 0 {
		vs.arm(later)
	} else {
		vs.drop()
	}
	vs.mu.Unlock()

	for len(due) > 0 {
		batch := due[:min(len(due), viewBatch)]
		due = due[len(batch):]
		later.run(job{op: "refresh", key: batch[0].key, do: func(ctx context.Context) (*Transition, error) {
			return nil, vs.refresh(ctx, batch, later)
		}})
	}
}

type dueView struct {
	ledger *ledger
	key    string
}

// sweep drops the views of a shelf that are too old or out of use, puts each of
// the others where it belongs, and returns those to be read again. However many
// there are, all of them are looked at once a second at the most: a walk
// through a hundred thousand must not be what ticks wait for. It requires vs.mu.
func (vs *views) sweep(from *shelf, now time.Time) (due []dueView) {
	if now.Before(from.next) {
		return nil
	}
	if from.next = now.Add(time.Hour); from == &vs.far {
		defer func() {
			if soonest := now.Add(time.Second); from.next.Before(soonest) {
				from.next = soonest
			}
		}()
	}
	for l, key := range from.views {
		v := l.view.Load()
		if v == nil {
			delete(from.views, l)
			continue
		}
		covered := vs.push.covers(l, v, now)
		good, stale, again := vs.judge(v, now, covered)
		if !good {
			l.drop(v)
			delete(from.views, l)
			continue
		}
		if stale && !v.refreshing {
			v.refreshing = true // once; if that fails, it is dropped in its time
			due = append(due, dueView{l, key})
		}
		to := &vs.near
		if covered {
			to = &vs.far
		}
		if to != from {
			delete(from.views, l)
		}
		to.put(l, key, again)
	}
	return due
}

// judge says of a view whether it is still good, whether it is to be read
// again, and when to look at it again.
func (vs *views) judge(v *view, now time.Time, covered bool) (good, stale bool, again time.Time) {
	age := now.Sub(v.read)
	if covered {
		looked := v.looked
		if looked.IsZero() {
			looked = v.read
		}
		if now.Sub(looked) >= pushIdle {
			if !v.used.Swap(false) {
				return false, false, again
			}
			looked, v.looked = now, now
		}
		every := vs.push.poll(vs.count())
		if again = looked.Add(pushIdle); v.read.Add(every).Before(again) {
			again = v.read.Add(every)
		}
		return age < every+vs.staleness, age >= every, again
	}
	limit := vs.staleness - vs.tick
	switch {
	case age < vs.refreshAge():
		return true, false, v.read.Add(vs.refreshAge())
	case v.used.Load():
		return age < limit, true, v.read.Add(limit)
	}
	return age < limit, false, now // it may be used yet
}

// refresh reads circuits in one pipeline.
func (vs *views) refresh(ctx context.Context, due []dueView, later *background) (err error) {
	defer clientPanicked(&err)
	s := vs.store
	sent := s.now()
	epochs := make([]uint64, len(due))
	replies := make([]*redis.SliceCmd, len(due))
	pipe := s.client.Pipeline()
	for i, d := range due {
		if d.ledger.unnamed(sent, namesEvery) {
			s.say(d.key, later)
		}
		epochs[i] = d.ledger.epoch()
		replies[i] = headCommand(ctx, d.ledger.keys[0])
		_ = pipe.Process(ctx, replies[i]) // which can't fail before Exec
	}
	if _, err = pipe.Exec(ctx); err != nil {
		err = recordError(err)
	}
	for i, d := range due {
		h, bad := headOf(replies[i])
		if bad != nil {
			continue // its view is dropped in its time, and the next call sees why
		}
		if d.ledger.renew(h, epochs[i], sent) {
			vs.keep(d.ledger, d.key, later)
		}
	}
	return err
}

// ViewStats are numbers about the views of one process, for metrics.
type ViewStats struct {
	Circuits  int           // that calls can act on without a command
	Staleness time.Duration // how long ago the oldest of them was read; where changes are heard of, nothing was announced since
	Listening bool          // changes by other processes are heard of
}

// Views returns numbers about the views that this process has of shared
// circuits. They are zero for a store other than a RedisStore with views.
func (b *Breaker) Views() ViewStats {
	if b.redis == nil {
		return ViewStats{}
	}
	return b.redis.views.stats()
}

func (vs *views) stats() ViewStats {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	now := vs.store.now()
	s := ViewStats{Listening: vs.push.since.Load() != 0}
	for _, from := range []shelf{vs.near, vs.far} {
		for l := range from.views {
			if v := l.view.Load(); v != nil {
				s.Circuits++
				s.Staleness = max(s.Staleness, now.Sub(v.read))
			}
		}
	}
	return s
}
