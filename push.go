package breaker

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// push listens to what other processes announce, so that a view is good until
// somebody says otherwise. The scripts publish on one channel of the prefix,
// and only what others must know at once: a change of state, of an override or
// of who probes; and, as often as Circuit.ask says, that who had a success
// should say so, since several processes' failures meet a rule or soon may.
//
// It is an aid and nothing depends on it. A server that refuses to subscribe,
// and a connection that drops, leave every view MaxStaleness old at the most, as
// if there were no push; one that goes silent does within a second. What was
// lost in another way, by a server that is cut off and answers or by a user who
// may not publish, is found by the slow reads.
type push struct {
	views *views

	// since is when this process began to hear all, on the clock of views.clock;
	// 0: it does not. A view that was read before then is not covered.
	since atomic.Int64

	wanted  bool
	running bool // there is a listener; guarded by views.mu
}

const (
	pushPing    = 400 * time.Millisecond // silence after which the server is asked for a sign of life; as long again, and the connection is given up
	pushRestMin = time.Second            // between two tries to listen
	pushRestMax = time.Minute
	pushIdle    = 10 * time.Second // out of use, before a view is dropped; without a view, before the listener ends
	pushPollMin = 10 * time.Second // between two reads of a circuit that nothing was heard of
	pushPollMax = 30 * time.Minute
	pushPollers = 5 // such reads a second, at the most, of up to 9,000 circuits

	// pushRestless is for how long a circuit that was announced is read as if
	// there were no push: what happens to it next may not be announced.
	pushRestless = time.Second
)

// covers reports whether v needs no reading, since its circuit's changes would
// have been heard of.
func (p *push) covers(l *ledger, v *view, now time.Time) bool {
	return p.hears(v.read) && l.calm(now)
}

// hears reports whether all that was announced from at on was heard.
func (p *push) hears(at time.Time) bool {
	since := p.since.Load()
	return since != 0 && p.views.store.sinceStart(at) > since
}

// poll is how old a covered view may get with n views in all: the slow reads
// behind the announcements, should one have been lost unseen.
func (p *push) poll(n int) time.Duration {
	return min(max(pushPollMin, time.Duration(n)*time.Second/pushPollers), pushPollMax)
}

// start sees to it that somebody listens. It requires views.mu.
func (p *push) start(later *background) {
	if p.wanted && !p.running {
		p.running = later.serve(func(ctx context.Context) { p.listen(ctx, later) })
	}
}

// over reports whether the listener is to end, and takes it as ended.
func (p *push) over(ctx context.Context) bool {
	p.views.mu.Lock()
	defer p.views.mu.Unlock()
	p.running = ctx.Err() == nil && !p.views.idle(pushIdle)
	return !p.running
}

// listen listens as long as there are views, and tries again where it can't.
func (p *push) listen(ctx context.Context, later *background) {
	for rest := pushRestMin; ; rest = min(2*rest, pushRestMax) {
		heard, over := p.hearAll(ctx, later)
		if over {
			return
		}
		if heard {
			rest = pushRestMin
		}
		select {
		case <-ctx.Done():
		case <-time.After(rest):
		}
		if p.over(ctx) {
			return
		}
	}
}

// hearAll listens on one connection until it fails. It reports whether it heard
// anything, and whether listening is over.
func (p *push) hearAll(ctx context.Context, later *background) (heard, over bool) {
	var since int64
	defer func() {
		_ = recover() // a client that panics has failed
		if p.since.CompareAndSwap(since, 0) {
			p.views.look()
		}
	}()
	s := p.views.store
	sub := s.client.Subscribe(ctx, s.prefix+"changes")
	defer func() { _ = sub.Close() }()
	defer context.AfterFunc(ctx, func() { _ = sub.Close() })() // reading does not heed ctx
	// A client whose connection fails dials again before it says so, and views
	// would count on what nobody hears: with a context that is done it can't.
	done, cancel := context.WithCancel(ctx)
	cancel()
	asked := false
	for {
		message, err := sub.ReceiveTimeout(done, pushPing)
		if err != nil {
			if over = p.over(ctx); over || asked || !isTimeout(err) || sub.Ping(done) != nil {
				return heard, over
			}
			asked = true
			continue
		}
		asked, heard = false, true
		switch m := message.(type) {
		case *redis.Subscription: // of a client that connected again by itself, too
			p.since.CompareAndSwap(since, 0)
			since = max(s.sinceStart(s.now()), 1) // in a bubble no time may have passed
			if asked = true; sub.Ping(done) != nil {
				return heard, false
			}
		case *redis.Pong: // it is heard, and answers: from the subscription on nothing was missed
			if m.Payload != "" && m.Payload != "PONG" {
				return heard, false // the pieces of a message that a timeout cut in two
			}
			if p.since.Swap(since) != since {
				p.views.look()
			}
		case *redis.Message:
			p.take(m.Payload, later)
		}
	}
}

// take takes in an announcement, "changed" or "met", a blank, and the name of a
// record.
func (p *push) take(text string, later *background) {
	s := p.views.store
	what, record, _ := strings.Cut(text, " ")
	key, ok := s.keyOf(record)
	if !ok {
		return
	}
	l := s.ledgers.get(key)
	if l == nil {
		return // not in use here
	}
	if l.heard(s.now()); what == "met" {
		s.speakUp(key, l, later)
	}
}

func isTimeout(err error) bool {
	t, ok := err.(interface{ Timeout() bool })
	return ok && t.Timeout()
}
