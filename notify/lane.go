package notify

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// A sender sends one message. Its errors show no secret. One that is wrapped
// in permanentError is not worth another try.
type sender func(ctx context.Context, m Message) error

type permanentError struct{ error }

func (e permanentError) Unwrap() error { return e.error }

// A lane is a channel's queue and the goroutine that sends from it.
type lane struct {
	name   string
	send   sender
	cfg    *Config
	logger *slog.Logger
	queue  chan Message
	ctx    context.Context // ends when Close has waited long enough
	cancel context.CancelFunc
	done   chan struct{} // closed when the goroutine has ended

	mu     sync.Mutex
	closed bool
	count  ChannelStats
	lost   int // messages since the last one sent
}

func newLane(name string, send sender, cfg *Config) *lane {
	l := &lane{name: name, send: send, cfg: cfg, logger: cfg.Logger.With("channel", name),
		queue: make(chan Message, cfg.Queue), done: make(chan struct{})}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// put never blocks.
func (l *lane) put(m Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		select {
		case l.queue <- m:
			return
		default:
		}
	}
	l.count.Dropped++
	l.lost++
	l.logger.Warn("notify: dropped a message: too many wait", "subject", m.Subject, "dropped", l.count.Dropped)
}

func (l *lane) work() {
	defer close(l.done)
	for m := range l.queue {
		if l.ctx.Err() != nil {
			l.drop(m)
			continue
		}
		l.deliver(m)
	}
}

func (l *lane) drop(m Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count.Dropped++
	l.lost++
	l.logger.Warn("notify: dropped a message: it could not be sent before Close", "subject", m.Subject)
}

// deliver tries a message until it is sent, given up, or cut short by Close.
func (l *lane) deliver(m Message) {
	pause := l.cfg.Backoff
	for attempt := 1; ; attempt++ {
		l.mu.Lock()
		lost := l.lost
		l.mu.Unlock()
		m.Dropped = lost
		err := l.try(m)
		if err == nil {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.count.Sent++
			l.lost -= lost
			return
		}
		if l.ctx.Err() != nil {
			l.drop(m)
			return
		}
		if attempt >= l.cfg.Attempts || errors.As(err, new(permanentError)) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.count.Failed++
			l.lost++
			l.logger.Error("notify: gave a message up", "subject", m.Subject, "attempts", attempt, "error", err)
			return
		}
		l.logger.Info("notify: a message was not sent; it is tried again", "subject", m.Subject,
			"attempt", attempt, "after", pause, "error", err)
		select {
		case <-time.After(pause):
		case <-l.ctx.Done():
			l.drop(m)
			return
		}
		pause = min(2*pause, l.cfg.MaxBackoff)
	}
}

func (l *lane) try(m Message) error {
	ctx, cancel := context.WithTimeout(l.ctx, l.cfg.Timeout)
	defer cancel()
	return l.send(ctx, m)
}

// close takes no more, waits for what is queued until expired is closed, and
// returns how many messages were dropped since it was called.
func (l *lane) close(expired <-chan struct{}) (lost uint64) {
	l.mu.Lock()
	before := l.count.Dropped
	if !l.closed {
		l.closed = true
		close(l.queue)
	}
	l.mu.Unlock()
	select {
	case <-l.done:
	case <-expired:
		l.cancel()
		<-l.done // senders return when their context ends
	}
	l.cancel()
	return l.stats().Dropped - before
}

func (l *lane) stats() ChannelStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	count := l.count
	count.Name = l.name
	return count
}
