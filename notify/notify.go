// Package notify tells people what becomes of circuits: by e-mail, Slack,
// Discord, Telegram and two dozen more services, each named by a URL, and by
// signed webhooks.
//
//	notices, err := notify.New(notify.Config{Channels: []notify.Channel{
//		{URL: "smtp://user:password@mail.example.com:587/?from=breaker@example.com&to=ops@example.com"},
//		{URL: "slack://hook:T0000-B0000-XXXX@webhook"},
//		{URL: "https://hooks.example.com/breaker", Secret: "..."},
//	}})
//	...
//	b, err := breaker.New(store, breaker.Config{Observer: notices})
//	...
//	notices.Watch(b)
//	defer notices.Close() // after b.Close, which brings the last notices
//	defer b.Close()
//
// Of a fleet, the process that made a transition tells of it, and no other
// does. Changes within a few seconds go into one message. A channel has a
// bounded queue and tries each message a few times, longer and longer apart;
// a channel that is dead slows neither calls nor other channels. Past its
// bounds messages are dropped, which is counted, logged, and said in the next
// message that gets through. A message whose answer was lost may come twice.
//
// No URL and no secret is written to the log or into an error.
package notify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/breakerkit/breaker"
)

// A Channel is where messages go. The URL's scheme says how:
//
//	smtp://user:password@host:port/?from=ADDRESS&to=ADDRESS,ADDRESS
//	slack://hook:A-B-C@webhook             slack://xoxb:A-B-C@CHANNEL
//	discord://TOKEN@WEBHOOK_ID
//	telegram://TOKEN@telegram?chats=@CHANNEL,CHAT_ID
//	https://... or http://...              a webhook, signed with Secret
//
// and as github.com/nicholas-fedor/shoutrrr documents for the other services.
type Channel struct {
	URL string

	// Secret signs what goes to a webhook; required there, and unused
	// elsewhere. See Verify.
	Secret string

	// Name is what logs, errors and Stats call the channel. Default: its
	// scheme and place in the list, such as "slack[1]".
	Name string
}

// A Config configures a Notifier. A zero field means its default.
type Config struct {
	// Channels each get every message. At least one.
	Channels []Channel

	// Kinds are what to tell of. Default Opened, Closed and Chronic.
	Kinds []Kind

	// Filter, if set, says which circuits to tell of. It must not block.
	Filter func(key string) bool

	// ChronicOpenings within ChronicWindow, failed recoveries included, make a
	// circuit chronic, which is told of once, when that many are reached.
	// They are counted in the history that the fleet shares, as far back as
	// it goes (100 events), if Watch was called; else those of this process.
	// Default 5 within 30m.
	ChronicOpenings int
	ChronicWindow   time.Duration

	// Group is how long changes are gathered for one message, from the first
	// on. Default 3s; negative: not at all.
	Group time.Duration

	// Queue is how many messages wait for each channel, beside the one being
	// sent; one that comes when it is full is dropped. Default 50.
	Queue int

	// Attempts is how often one message is tried. Default 6. Between two
	// tries lies Backoff (default 1s), then twice as long each time, up to
	// MaxBackoff (default 1m).
	Attempts   int
	Backoff    time.Duration
	MaxBackoff time.Duration

	// Timeout is the longest that one try may take. Default 10s.
	Timeout time.Duration

	// CloseTimeout is how long Close gives the messages that wait. Default 5s.
	CloseTimeout time.Duration

	// Logger gets messages that could not be sent or were dropped. Default
	// slog.Default().
	Logger *slog.Logger
}

// A Notifier is a breaker.Observer that sends messages. Its methods may be
// called concurrently. It has one goroutine for itself and one for each
// channel, until Close.
type Notifier struct {
	breaker.NopObserver
	cfg     Config
	kinds   map[Kind]bool
	history history
	lanes   []*lane
	inbox   chan breaker.Transition
	stop    chan struct{} // closed when Close begins
	stopped chan struct{} // closed when nothing is gathered any more

	closing sync.Once
	mu      sync.Mutex
	closed  bool // no more goes into the inbox
	missed  int  // transitions for which the inbox had no room
}

// inboxSize is how many transitions wait to be looked at, which takes a read
// of the history each.
const inboxSize = 1000

// New returns a Notifier, ready to be a Breaker's Observer. What is wrong with
// cfg is a breaker.ErrConfig that names the field, or the channel's place, and
// never shows a URL.
func New(cfg Config) (*Notifier, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	cfg.fill()
	var lanes []*lane
	var errs []error
	for i, c := range cfg.Channels {
		send, err := newSender(c)
		if err != nil {
			errs = append(errs, fmt.Errorf("%w: notify: Channels[%d]: %w", breaker.ErrConfig, i, err))
			continue
		}
		lanes = append(lanes, newLane(c.name(i), send, &cfg))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return start(cfg, lanes), nil
}

func start(cfg Config, lanes []*lane) *Notifier {
	n := &Notifier{
		cfg: cfg, kinds: make(map[Kind]bool), lanes: lanes, history: newHistory(),
		inbox: make(chan breaker.Transition, inboxSize), stop: make(chan struct{}), stopped: make(chan struct{}),
	}
	for _, k := range cfg.Kinds {
		n.kinds[k] = true
	}
	go n.gather()
	for _, l := range lanes {
		go l.work()
	}
	return n
}

func (cfg *Config) check() error {
	var errs []error
	wrong := func(field string, value any, why string) {
		errs = append(errs, fmt.Errorf("%w: notify: %s is %v: %s", breaker.ErrConfig, field, value, why))
	}
	if len(cfg.Channels) == 0 {
		wrong("Channels", "empty", "nobody would be told")
	}
	for field, value := range map[string]int{"ChronicOpenings": cfg.ChronicOpenings, "Queue": cfg.Queue, "Attempts": cfg.Attempts} {
		if value < 0 {
			wrong(field, value, "must not be negative")
		}
	}
	for field, value := range map[string]time.Duration{
		"ChronicWindow": cfg.ChronicWindow, "Backoff": cfg.Backoff, "MaxBackoff": cfg.MaxBackoff,
		"Timeout": cfg.Timeout, "CloseTimeout": cfg.CloseTimeout,
	} {
		if value < 0 {
			wrong(field, value, "must not be negative")
		}
	}
	for i, k := range cfg.Kinds {
		if !k.known() {
			wrong(fmt.Sprintf("Kinds[%d]", i), fmt.Sprintf("%q", k), "not a kind there is")
		}
	}
	return errors.Join(errs...)
}

func (cfg *Config) fill() {
	if cfg.Kinds == nil {
		cfg.Kinds = []Kind{Opened, Closed, Chronic}
	}
	orDefault(&cfg.ChronicOpenings, 5)
	orDefault(&cfg.ChronicWindow, 30*time.Minute)
	orDefault(&cfg.Group, 3*time.Second)
	orDefault(&cfg.Queue, 50)
	orDefault(&cfg.Attempts, 6)
	orDefault(&cfg.Backoff, time.Second)
	orDefault(&cfg.MaxBackoff, time.Minute)
	orDefault(&cfg.Timeout, 10*time.Second)
	orDefault(&cfg.CloseTimeout, 5*time.Second)
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
}

func orDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Watch sets the Breaker whose shared history says how often a circuit opened
// in the whole fleet.
func (n *Notifier) Watch(b *breaker.Breaker) { n.history.watch(b) }

// Transitioned implements breaker.Observer. It never blocks.
func (n *Notifier) Transitioned(t breaker.Transition) {
	if n.cfg.Filter != nil && !n.cfg.Filter(t.Key) {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		n.cfg.Logger.Warn("notify: a change came after Close", "key", t.Key, "to", t.To.String())
		return
	}
	select {
	case n.inbox <- t:
	default:
		n.missed++
	}
}

// takeMissed returns how many transitions the inbox had no room for, once.
func (n *Notifier) takeMissed() (missed int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	missed, n.missed = n.missed, 0
	return missed
}

// gather makes messages of what comes in, until Close.
func (n *Notifier) gather() {
	defer close(n.stopped)
	var events []Event
	var due <-chan time.Time
	send := func() {
		missed := n.takeMissed()
		if missed > 0 {
			n.cfg.Logger.Warn("notify: too many changes at once; some are not told of", "missed", missed)
		}
		if len(events) > 0 {
			m := newMessage(events, missed, time.Now())
			for _, l := range n.lanes {
				l.put(m)
			}
		}
		events, due = nil, nil
	}
	take := func(t breaker.Transition) {
		events = append(events, n.eventsOf(t)...)
		switch {
		case len(events) == 0:
		case n.cfg.Group < 0 || len(events) >= inboxSize:
			send()
		case due == nil:
			due = time.After(n.cfg.Group)
		}
	}
	for {
		select {
		case t := <-n.inbox:
			take(t)
		case <-due:
			send()
		case <-n.stop:
			for len(n.inbox) > 0 { // nothing more comes in by now
				take(<-n.inbox)
			}
			send()
			return
		}
	}
}

// Close sends what has been gathered, gives the channels CloseTimeout to send
// what waits, and ends all goroutines but those of services that do not
// return. Messages that were lost are an error. Close may be called again.
func (n *Notifier) Close() error {
	n.closing.Do(func() {
		n.mu.Lock()
		n.closed = true
		n.mu.Unlock()
		close(n.stop)
	})
	ctx, cancel := context.WithTimeout(context.Background(), n.cfg.CloseTimeout)
	defer cancel()
	select {
	case <-n.stopped:
	case <-ctx.Done(): // the store does not answer for its history
	}
	var errs []error
	for _, l := range n.lanes {
		if lost := l.close(ctx.Done()); lost > 0 {
			errs = append(errs, fmt.Errorf("notify: %s: %d messages could not be sent before Close", l.name, lost))
		}
	}
	return errors.Join(errs...)
}

// ChannelStats are the messages of one channel so far.
type ChannelStats struct {
	Name    string
	Sent    uint64
	Failed  uint64 // given up after Config.Attempts
	Dropped uint64 // the queue was full, or Close came first
}

// Stats returns what became of the messages, channel by channel.
func (n *Notifier) Stats() (all []ChannelStats) {
	for _, l := range n.lanes {
		all = append(all, l.stats())
	}
	return all
}
