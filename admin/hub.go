package admin

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/breakerkit/breaker"
)

// A hub finds out what changes in the store and tells all streams. It reads
// the store while there are streams, one reader for all of them. What it tells
// comes from the store alone: whoever asks it to look at a circuit only makes
// it do so sooner, and nothing is told twice.
type hub struct {
	b    *breaker.Breaker
	poll time.Duration

	mu       sync.Mutex
	closed   chan struct{} // closed by close
	streams  map[*stream]struct{}
	stop     context.CancelFunc // ends the reader; nil: there is none
	greeting []byte             // the last totals or trouble, for a stream that joins; nil: none yet
	due      map[string]struct{}
	wake     chan struct{} // has one element when keys are due
}

const (
	maxStreams = 100
	maxDue     = 1000 // keys to look at; the next round finds what is above
)

func newHub(b *breaker.Breaker, poll time.Duration) *hub {
	return &hub{
		b: b, poll: poll,
		closed: make(chan struct{}), streams: make(map[*stream]struct{}),
		due: make(map[string]struct{}), wake: make(chan struct{}, 1),
	}
}

// join begins a stream, which ends early if closed is closed.
func (h *hub) join() (s *stream, closed <-chan struct{}, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if isClosed(h.closed) || len(h.streams) >= maxStreams {
		return nil, nil, false
	}
	s = &stream{filled: make(chan struct{}, 1)}
	h.streams[s] = struct{}{}
	if h.greeting != nil {
		s.put(h.greeting)
	}
	if h.stop == nil {
		ctx, stop := context.WithCancel(context.Background())
		h.stop = stop
		go (&watch{hub: h, ctx: ctx, known: make(map[string]mark)}).run()
	}
	return s, h.closed, true
}

// leave ends a stream, and the reader with the last one.
func (h *hub) leave(s *stream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.streams, s)
	if len(h.streams) == 0 && h.stop != nil {
		h.stop()
		h.stop, h.greeting = nil, nil
		clear(h.due)
	}
}

func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !isClosed(h.closed) {
		close(h.closed)
	}
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// look has a circuit looked at soon, if anybody watches.
func (h *hub) look(key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stop == nil || len(h.due) >= maxDue {
		return
	}
	h.due[key] = struct{}{}
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// A watch is one reader, from the first stream until the last. It belongs to
// one goroutine.
type watch struct {
	*hub
	ctx     context.Context // done: nobody listens to this reader any more
	known   map[string]mark // nil marks: unreadable
	counted totals          // as last told, without AsOf
	started bool            // the first round is over: what is new now is news
	failing bool
}

// A mark is what was last told of a circuit, in a form that compares.
type mark struct {
	readable bool
	snap     breaker.Snapshot // its pointers nil
	failure  breaker.Event
	override breaker.Override
}

func markOf(s breaker.Snapshot) (m mark) {
	m.readable = true
	if s.LastFailure != nil {
		m.failure = *s.LastFailure
		m.failure.Transition, m.failure.Override = nil, nil
	}
	if s.Override != nil {
		m.override = *s.Override
	}
	s.LastFailure, s.Override = nil, nil
	m.snap = s
	return m
}

func (w *watch) run() {
	for w.ctx.Err() == nil {
		began := time.Now()
		w.round()
		w.wait(max(w.poll, 4*time.Since(began)))
	}
}

// wait looks at what is due until the next round.
func (w *watch) wait(d time.Duration) {
	next := time.NewTimer(d)
	defer next.Stop()
	for {
		select {
		case <-next.C:
			return
		case <-w.ctx.Done():
			return
		case <-w.wake:
			if !w.failing {
				w.take(readAll(w.ctx, w.b, w.takeDue()))
			}
		}
	}
}

func (w *watch) takeDue() (keys []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key := range w.due {
		keys = append(keys, key)
	}
	clear(w.due)
	return keys
}

// round reads all circuits.
func (w *watch) round() {
	there := make(map[string]struct{})
	var keys []string
	err := eachKey(w.ctx, w.b, func(key string) bool {
		there[key] = struct{}{}
		keys = append(keys, key)
		return true
	})
	all := readAll(w.ctx, w.b, keys)
	bad := 0
	for _, got := range all {
		if got.err != nil {
			bad++
		}
	}
	if err == nil && bad > 0 && (bad == len(all) || bad > maxUnreadable) {
		err = firstError(all)
	}
	if w.ctx.Err() != nil {
		return
	}
	if err != nil {
		if !w.failing {
			w.tell(eventTrouble, trouble{err.Error(), time.Now()})
		}
		w.failing = true
		return
	}
	for key := range w.known {
		if _, ok := there[key]; !ok {
			delete(w.known, key)
			w.tell(eventGone, gone{key, idOf(key)})
		}
	}
	recovered := w.failing || !w.started
	w.failing = false
	w.take(all)
	w.started = true
	if recovered {
		w.count(true)
	}
}

func firstError(all []reading) error {
	for _, got := range all {
		if got.err != nil {
			return got.err
		}
	}
	return nil
}

// take tells what has changed.
func (w *watch) take(all []reading) {
	for _, got := range all {
		if w.ctx.Err() != nil {
			return
		}
		before, heard := w.known[got.key]
		if got.err != nil {
			before.readable = false
			w.known[got.key] = before // and goes on from there when it is readable again
			continue
		}
		now := markOf(got.snap)
		if heard && now == before {
			continue
		}
		if w.started && now.snap.Generation != before.snap.Generation {
			if !w.tellTransitions(before.snap, got.snap) {
				continue // it is looked at again in the next round
			}
		}
		w.known[got.key] = now
		if w.started {
			w.tell(eventCircuit, circuitOf(got.snap))
		}
	}
	if w.started {
		w.count(false)
	}
}

// tellTransitions tells those of a circuit since it was last looked at, oldest
// first, as the store's history has them.
func (w *watch) tellTransitions(before, now breaker.Snapshot) bool {
	events, err := w.b.History(w.ctx, now.Key)
	if errors.Is(err, errors.ErrUnsupported) {
		events, err = w.guess(before, now), nil
	}
	if err != nil {
		return false
	}
	since := before.Generation
	if now.Generation < since {
		since = 0 // the store had forgotten it, and it began anew
	}
	for i := len(events) - 1; i >= 0; i-- {
		// What came after the snapshot is told when that is known.
		if t := events[i].Transition; t != nil && t.Generation > since && t.Generation <= now.Generation {
			w.tell(eventTransition, transition{now.Key, idOf(now.Key), *t})
		}
	}
	return true
}

// guess is what must have happened, where the store keeps no history.
func (w *watch) guess(before, now breaker.Snapshot) []breaker.Event {
	if before.State == now.State {
		return nil
	}
	return []breaker.Event{{Transition: &breaker.Transition{
		Key: now.Key, From: before.State, To: now.State, Generation: now.Generation,
		At: now.ChangedAt, RetryAt: now.RetryAt,
	}}}
}

// count tells the totals if they have changed, or anyway.
func (w *watch) count(anyway bool) {
	var sum totals
	for _, m := range w.known {
		switch {
		case !m.readable:
			sum.Unreadable++
		case m.snap.State == breaker.StateOpen:
			sum.Open++
		case m.snap.State == breaker.StateHalfOpen:
			sum.HalfOpen++
		default:
			sum.Closed++
		}
	}
	if sum == w.counted && !anyway {
		return
	}
	w.counted = sum
	sum.AsOf = time.Now()
	w.tell(eventTotals, sum)
}

// tell puts an event into every stream.
func (w *watch) tell(event string, v any) {
	text := frame(event, v)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx.Err() != nil {
		return // another reader may tell it
	}
	if event == eventTotals || event == eventTrouble {
		w.greeting = text
	}
	for s := range w.streams {
		s.put(text)
	}
}
