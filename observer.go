package breaker

import (
	"cmp"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// An Observer is told what a Breaker does: what metrics, logs and alerts hang
// on. Its methods are called concurrently. Embed NopObserver to implement the
// ones you need; later versions may add methods. A panic in one is logged and
// goes no further.
type Observer interface {
	// CallDone and Rejected run on the caller's goroutine, once fn has
	// returned or instead of it: they should take no longer than a counter
	// does. elapsed is fn's own time.
	CallDone(key string, o Outcome, elapsed time.Duration)
	Rejected(key string, err *RejectedError)

	// The others run on a goroutine of their own, one at a time, in order for
	// each key; they may block, and delay no call, but what comes meanwhile
	// waits in memory. They must not call Close, which waits for them. Of all
	// the processes that share a circuit, only the one that made a transition
	// hears of it.
	Transitioned(t Transition)
	StoreDegraded(err error)           // the store failed; what follows is by Config.OnStoreError
	StoreRecovered(down time.Duration) // it is back, after so long
}

// NopObserver does nothing. Embed it in an Observer of your own.
type NopObserver struct{}

func (NopObserver) CallDone(string, Outcome, time.Duration) {}
func (NopObserver) Rejected(string, *RejectedError)         {}
func (NopObserver) Transitioned(Transition)                 {}
func (NopObserver) StoreDegraded(error)                     {}
func (NopObserver) StoreRecovered(time.Duration)            {}

// Observers joins several into one, called in order; nil ones are left out. A
// panic in one keeps nothing from the next.
func Observers(all ...Observer) Observer {
	var joined observers
	for _, o := range all {
		switch o := o.(type) {
		case nil:
		case observers:
			joined = append(joined, o...)
		default:
			joined = append(joined, o)
		}
	}
	return joined
}

type observers []Observer

func (all observers) CallDone(key string, o Outcome, elapsed time.Duration) {
	all.each(func(each Observer) { each.CallDone(key, o, elapsed) })
}

func (all observers) Rejected(key string, err *RejectedError) {
	all.each(func(each Observer) { each.Rejected(key, err) })
}

func (all observers) Transitioned(t Transition) {
	all.each(func(each Observer) { each.Transitioned(t) })
}

func (all observers) StoreDegraded(err error) {
	all.each(func(each Observer) { each.StoreDegraded(err) })
}

func (all observers) StoreRecovered(down time.Duration) {
	all.each(func(each Observer) { each.StoreRecovered(down) })
}

// each calls all, then goes on with the last panic there was, if any.
func (all observers) each(call func(Observer)) {
	if len(all) == 0 {
		return
	}
	defer all[1:].each(call)
	call(all[0])
}

// A notifier brings notices to the Observer on a goroutine that lives as long
// as there are any, in order for each key, and never under a lock.
//
// Two store operations of this process may make transitions of one circuit and
// come back in the other order. So a transition waits until every operation
// that was under way when it arrived is over: one that began later can only
// have made a later generation.
type notifier struct {
	observer Observer // nil: nobody to tell
	outages  Observer // logs them; nil: observer does
	logger   *slog.Logger

	mu      sync.Mutex
	ticket  uint64              // the next operation's
	active  map[uint64]struct{} // operations under way that notices wait for
	steps   map[uint64]struct{} // goroutines that Close waits for
	waiting []waitingTransition
	ready   []func()  // notices to bring, in order
	running bool      // a goroutine brings them
	changed sync.Cond // an operation, or that goroutine, has ended
}

type waitingTransition struct {
	Transition
	before uint64 // operations with a lower ticket may still come with an earlier one
}

func newNotifier(o Observer, logger *slog.Logger) *notifier {
	n := &notifier{observer: o, logger: logger, active: make(map[uint64]struct{}), steps: make(map[uint64]struct{})}
	n.changed.L = &n.mu
	if !logsOutages(o) {
		n.outages = NewLogObserver(logger)
	}
	return n
}

// begin marks the start of an operation that may make transitions.
func (n *notifier) begin() (ticket uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.take(n.active)
}

// take requires n.mu.
func (n *notifier) take(from map[uint64]struct{}) (ticket uint64) {
	ticket = n.ticket
	n.ticket++
	from[ticket] = struct{}{}
	return ticket
}

// beginStep marks the start of a goroutine that Close must wait for.
func (n *notifier) beginStep() (ticket uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.take(n.steps)
}

func (n *notifier) endStep(ticket uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.steps, ticket)
	n.changed.Broadcast()
}

// end marks the end of an operation, and hands in what it made.
func (n *notifier) end(ticket uint64, made ...Transition) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.active, ticket)
	n.changed.Broadcast()
	if n.observer == nil {
		return
	}
	for _, t := range made {
		n.waiting = append(n.waiting, waitingTransition{t, n.ticket})
	}
	n.release()
}

// giveUp says that an operation takes too long to wait for: what it makes, if
// it ever does, may come out of order. Its end must still follow.
func (n *notifier) giveUp(ticket uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.active, ticket)
	n.release()
}

// release readies the transitions that nothing earlier can precede any more.
// It requires n.mu.
func (n *notifier) release() {
	if len(n.waiting) == 0 {
		return
	}
	first := n.first(n.active)
	// A key's transitions up to the latest that need not wait go together:
	// those with a lower generation have arrived too.
	upTo := make(map[string]uint64)
	for _, w := range n.waiting {
		if w.before <= first {
			upTo[w.Key] = max(upTo[w.Key], w.Generation)
		}
	}
	var due []Transition
	n.waiting = slices.DeleteFunc(n.waiting, func(w waitingTransition) bool {
		limit, ok := upTo[w.Key]
		if ok && w.Generation <= limit {
			due = append(due, w.Transition)
			return true
		}
		return false
	})
	slices.SortStableFunc(due, func(a, b Transition) int { return cmp.Compare(a.Generation, b.Generation) })
	for _, t := range due {
		n.bring(func() { n.observer.Transitioned(t) })
	}
}

// first is the earliest of some tickets, or the next. It requires n.mu.
func (n *notifier) first(of map[uint64]struct{}) uint64 {
	first := n.ticket
	for ticket := range of {
		first = min(first, ticket)
	}
	return first
}

func (n *notifier) degraded(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.bring(func() {
		if n.outages != nil {
			n.outages.StoreDegraded(err)
		}
		if n.observer != nil {
			n.observer.StoreDegraded(err)
		}
	})
}

func (n *notifier) recovered(down time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.bring(func() {
		if n.outages != nil {
			n.outages.StoreRecovered(down)
		}
		if n.observer != nil {
			n.observer.StoreRecovered(down)
		}
	})
}

// bring queues a notice, and sees to it that it is brought. It requires n.mu.
func (n *notifier) bring(notice func()) {
	n.ready = append(n.ready, notice)
	if !n.running {
		n.running = true
		go n.work()
	}
}

func (n *notifier) work() {
	// An Observer may end its goroutine, as a failed test does; the notices
	// that are left then need another one.
	defer func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.running = len(n.ready) > 0
		if n.running {
			go n.work()
		}
		n.changed.Broadcast()
	}()
	for {
		notice := n.next()
		if notice == nil {
			return
		}
		n.guarded(notice)
	}
}

func (n *notifier) next() (notice func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.ready) > 0 {
		notice, n.ready = n.ready[0], n.ready[1:]
	}
	return notice
}

// guarded calls the observer and logs a panic of it.
func (n *notifier) guarded(call func()) {
	defer func() {
		if v := recover(); v != nil {
			n.logger.Error("breaker: an Observer panicked", "panic", v)
		}
	}()
	call()
}

// wait returns once the operations under way have ended and all notices have
// been brought, or false when the time is up.
func (n *notifier) wait(limit time.Duration) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	expired := false
	timer := time.AfterFunc(limit, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		expired = true
		n.changed.Broadcast()
	})
	defer timer.Stop()
	for before := n.ticket; n.running || n.first(n.active) < before || n.first(n.steps) < before; {
		if expired {
			return false
		}
		n.changed.Wait()
	}
	return true
}
