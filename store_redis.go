package breaker

import (
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// RedisConfig configures a RedisStore; its zero value will do.
type RedisConfig struct {
	// Prefix begins the name of every key in Redis. Default "breaker". The
	// circuit "stripe" is then breaker:{stripe}, its history
	// breaker:{stripe}:log, and breaker:names has the names of all. Braces
	// in it are escaped: it can't change which slot of a Cluster a key is in.
	Prefix string

	// MaxStaleness is how old what a call acts on may be. A call on a circuit
	// that was read less than that ago, and that is not due for a probe, costs
	// no command; the circuit is read again ahead of time only while it is in
	// use. What this process itself does to a circuit it sees as soon as the
	// server has it. Default 100ms. Negative, or less than 5ms: strict, each call
	// reads the circuit itself.
	MaxStaleness time.Duration

	// NoPush keeps the store from listening to what other processes announce.
	// Else it holds one connection, where the server lets it subscribe, on which
	// it hears at once what others do to a circuit. One that nothing is heard of
	// is then read every 10s, more seldom where there are more than 50 of them,
	// and every 30 minutes at the least: see docs/adr/0006. A strict store does
	// not listen, nor does one over a redis.Ring.
	NoPush bool

	// Settle is how long processes that had successes have to say so before a
	// rule opens the circuit that several processes' reports met together. They
	// are asked once a minute at the second failure of a run that is fast, where
	// the policy counts runs, and else when a rule is met. A rule that one
	// process's failures meet alone opens at once. Default 150ms; negative: every
	// rule opens at once, as it may where a single process uses the store.
	//
	// The calls that begin in this time are made, also to a dependency that is
	// dead.
	Settle time.Duration
}

// A RedisStore keeps circuits in Redis, where every process that uses the same
// server and Prefix shares them. It needs Redis 6.2 or later, or Valkey, and
// works over a single server, Sentinel and Cluster.
//
// A call on a healthy circuit costs nothing while this process has a fresh view
// of it, see RedisConfig.MaxStaleness, and else one read, HMGET. Every other
// decision is one script, on the server's clock. No command of it is sent twice
// by the client, whatever its retry setting, except for reads. Used directly
// and not through a Breaker, the store is strict.
//
// A process remembers 100,000 circuits; past them, one without a streak and
// without a view makes room. Where none is found, calls on further keys cost a
// command each, and their successes are no evidence.
//
// The client stays the caller's, to configure and to close. The time that a
// step may take is bounded by Config.StoreTimeout, not by the client.
type RedisStore struct {
	client  redis.UniversalClient
	prefix  string
	settle  time.Duration
	process string // unique to this store: whose evidence, whose probe
	seq     atomic.Uint64
	ledgers *table[ledger]
	views   *views
	start   time.Time
	scripts scripts
	now     func() time.Time // this process's clock: only for how long ago things were
	jitter  func() float64   // in [0,1): where in its spread a cooldown falls

	namesMu  sync.Mutex
	namesSeq uint64
	names    map[string]uint64 // in use here and not yet said; the value changes if one is to be said again
	namesDue time.Time         // until then, somebody is about to say them
}

var (
	_ Store      = (*RedisStore)(nil)
	_ Controller = (*RedisStore)(nil)
	_ Lister     = (*RedisStore)(nil)
	_ Historian  = (*RedisStore)(nil)
)

// maxLedgers bounds what one process remembers of circuits. Past it, one that
// remembers no streak is forgotten.
const maxLedgers = 100_000

// NewRedisStore returns a store over client. It sends nothing yet. New refuses
// a store whose client is nil.
func NewRedisStore(client redis.UniversalClient, cfg RedisConfig) *RedisStore {
	if cfg.Prefix == "" {
		cfg.Prefix = "breaker"
	}
	setDefault(&cfg.Settle, 150*time.Millisecond)
	setDefault(&cfg.MaxStaleness, 100*time.Millisecond)
	s := &RedisStore{
		client:  client,
		prefix:  escape(strings.TrimSuffix(cfg.Prefix, ":")) + ":",
		settle:  max(cfg.Settle, 0),
		process: strconv.FormatUint(rand.Uint64(), 36),
		ledgers: newTable(maxLedgers, (*ledger).idle),
		scripts: luaScripts,
		start:   time.Now(),
		now:     time.Now,
		jitter:  rand.Float64,
		names:   make(map[string]uint64),
	}
	_, ring := client.(*redis.Ring) // it listens to one of its servers, and each announces for itself
	s.views = newViews(s, cfg.MaxStaleness, !cfg.NoPush && !ring)
	return s
}

// sinceStart is t in nanoseconds since the store was made.
func (s *RedisStore) sinceStart(t time.Time) int64 { return int64(t.Sub(s.start)) }

// ledger returns what this process remembers of key; where there is no room, a
// new memory that nobody will find again.
func (s *RedisStore) ledger(key string) *ledger {
	fresh := func() *ledger { return &ledger{keys: s.keys(key), start: s.start} }
	if l := s.ledgers.add(key, fresh); l != nil {
		return l
	}
	l := fresh()
	l.stray = true
	return l
}

// id names one message or one probe, uniquely in the whole fleet.
func (s *RedisStore) id() string {
	return s.process + "-" + strconv.FormatUint(s.seq.Add(1), 36)
}

// Acquire implements Store. A circuit that was healthy when last read is read;
// one that was not is decided on by the script straight away.
func (s *RedisStore) Acquire(ctx context.Context, key string, p Policy) (Permit, error) {
	l := s.ledger(key)
	if l.healthy() {
		if pm, ok, err := s.read(ctx, key, &p, l, nil); ok || err != nil {
			return pm, err
		}
	}
	return s.decide(ctx, key, &p, l, nil)
}

// read reads a circuit that was healthy when last read. ok is false if it is
// not, and the script must decide.
func (s *RedisStore) read(ctx context.Context, key string, p *Policy, l *ledger, later *background) (pm Permit, ok bool, err error) {
	defer clientPanicked(&err)
	sent, epoch := s.now(), l.epoch()
	h, err := s.head(ctx, l.keys[0])
	if err != nil {
		return Permit{}, false, err
	}
	if !h.closed {
		l.saw(sight{generation: h.generation, recorded: h.recorded, epoch: epoch}, p)
		return Permit{}, false, nil
	}
	v := h.view(sent)
	s.see(l, key, p, sent, later, sight{generation: h.generation, recorded: h.recorded, epoch: epoch, view: v})
	return Permit{Generation: h.generation, streak: h.streak, read: &v.read}, true, nil
}

// see takes in what a read or a decision showed, and keeps it as a view where
// views are kept.
func (s *RedisStore) see(l *ledger, key string, p *Policy, sent time.Time, later *background, seen sight) {
	if l.unnamed(sent, namesEvery) {
		s.say(key, later)
	}
	if v := seen.view; v != nil {
		seen.healthy = v.verdict == verdictRun
		if s.views.tick == 0 || later == nil || l.stray || v.verdict == verdictProbe {
			seen.view = nil
		}
	}
	if l.saw(seen, p) {
		s.views.keep(l, key, later)
	}
}

// decide has the script decide.
func (s *RedisStore) decide(ctx context.Context, key string, p *Policy, l *ledger, later *background) (Permit, error) {
	id, sent, epoch := s.id(), s.now(), l.epoch()
	reply, err := s.texts(ctx, s.scripts.acquire, l.keys, s.args(ctx, p, l, id))
	if err != nil {
		l.wrote() // perhaps
		return Permit{}, err
	}
	if len(reply) < 7 {
		return Permit{}, garbled("acquire", reply)
	}
	left := durationOf(parseInt(reply[2]))
	v := &view{
		verdict: verdicts[reply[0]], generation: parseUint(reply[1]), streak: parseUint(reply[4]),
		leases: reply[5], refusals: refusals{state: StateOpen, lastError: reply[3]}, left: left, read: sent, decided: sent,
	}
	if v.verdict == verdictBusy {
		v.refusals.state = StateHalfOpen
	}
	if reply[6] == "1" {
		v.until = sent.Add(left) // rather too early: then the server is asked
	}
	pm := Permit{Generation: v.generation, streak: v.streak, read: &v.read}
	for _, text := range reply[7:] {
		pm.Transitions = append(pm.Transitions, decodeTransition(text, key, InstanceOf(ctx)))
	}
	rejected := v.rejection(key, left)
	switch v.verdict {
	case verdictRun, verdictOpen, verdictBusy:
	case verdictProbe:
		pm.Probe = id
	case verdictForced:
		pm.Forced = true
	default:
		return pm, garbled("acquire", reply)
	}
	s.see(l, key, p, sent, later, sight{generation: v.generation, recorded: true, epoch: epoch, view: v,
		changed: len(pm.Transitions) > 0 || v.verdict == verdictProbe})
	if rejected != nil {
		return pm, rejected
	}
	return pm, nil
}

// Report implements Store. A success costs no command, unless it was a probe,
// or slow under a SlowRate, or ends a streak that the circuit showed.
func (s *RedisStore) Report(ctx context.Context, key string, p Policy, pm Permit, r Result) (*Transition, error) {
	if !s.mustTell(key, &p, &pm, &r) {
		return nil, nil
	}
	return s.tell(ctx, key, p, pm, r)
}

// mustTell remembers a result and reports whether the server must hear of it.
func (s *RedisStore) mustTell(key string, p *Policy, pm *Permit, r *Result) bool {
	l, now := s.ledger(key), s.now()
	switch {
	case pm.Forced:
		return false
	case pm.Probe != "":
		return true
	case r.Outcome == Failure:
		l.failed(pm.Generation, now)
		return true
	case r.Outcome != Success:
		return false
	}
	if l.success(pm, now) || p.slow(r.Elapsed) {
		return true
	}
	if p.rates() && l.tally(pm.Generation, now, p.Window, 2*s.tellDelay()) {
		s.tellLater(key, p, l, r.later)
	}
	if s.settle > 0 && p.ConsecutiveFailures > 0 && pm.read != nil && l.outdated(*pm.read, now, s.views.push.hears(*pm.read), s.tellDelay()) {
		s.askLater(key, p, l, pm.Generation, r.later)
	}
	return false
}

// succeeded remembers a success of a call that had no permit, since the store
// was failing.
func (s *RedisStore) succeeded(key string) {
	s.ledger(key).succeededFreely(s.now())
}

// tell reports a result to the server.
func (s *RedisStore) tell(ctx context.Context, key string, p Policy, pm Permit, r Result) (*Transition, error) {
	l, sent := s.ledger(key), s.now()
	epoch := l.epoch()
	args := append(s.args(withInstance(ctx, r.Instance), &p, l, s.id()),
		pm.Generation, pm.Probe, r.Outcome.String(), btoi(p.slow(r.Elapsed)), p.retryAfter(r.RetryAfter), r.Error)
	reply, err := s.texts(ctx, s.scripts.report, l.keys, args)
	if err != nil || len(reply) < 3 {
		l.wrote() // perhaps
		l.untold()
	}
	if err != nil {
		return nil, err
	}
	if len(reply) < 3 {
		return nil, garbled("report", reply)
	}
	if settles := parseInt(reply[0]); settles >= 0 {
		s.settleLater(key, &p, durationOf(settles), r.later)
	}
	if reply[1] == "new" { // its name may have been lost with an old one
		s.say(key, r.later)
	}
	h := parseHead(reply[2])
	s.see(l, key, &p, sent, r.later, sight{generation: h.generation, recorded: reply[1] != "none", streak: h.streak, changed: true, epoch: epoch, view: h.view(sent)})
	return s.transition(reply[3:], key, r.Instance), nil
}

// Snapshot implements Store.
func (s *RedisStore) Snapshot(ctx context.Context, key string, p Policy) (Snapshot, error) {
	c, now, err := s.load(ctx, key)
	if err != nil {
		return Snapshot{}, err
	}
	snap := c.Snapshot(Moment{Now: now, Settle: s.settle, Evidence: &Evidence{}, Jitter: 0.5}, p)
	snap.Key = key
	return snap, nil
}

// Force implements Controller.
func (s *RedisStore) Force(ctx context.Context, key string, p Policy, o Override) (*Transition, error) {
	return s.steer(ctx, key, &p, "force", o.By, o.State.String(), millis(o.For), o.Reason)
}

// ClearOverride implements Controller.
func (s *RedisStore) ClearOverride(ctx context.Context, key string, p Policy, by string) (*Transition, error) {
	return s.steer(ctx, key, &p, "clear", by, "", 0, "")
}

// Reset implements Controller.
func (s *RedisStore) Reset(ctx context.Context, key string, p Policy, by string) (*Transition, error) {
	return s.steer(ctx, key, &p, "reset", by, "", 0, "")
}

func (s *RedisStore) steer(ctx context.Context, key string, p *Policy, verb, by, state string, length int64, reason string) (*Transition, error) {
	args := append(s.args(ctx, p, new(ledger), s.id()), verb, by, state, length, reason)
	reply, err := s.texts(ctx, s.scripts.control, s.keys(key), args)
	if l := s.ledgers.get(key); l != nil {
		l.wrote()
	}
	if err != nil {
		return nil, err
	}
	if s.sayNames(ctx, key) != nil {
		s.say(key, nil) // then with the next names
	}
	return s.transition(reply, key, InstanceOf(ctx)), nil
}

// History implements Historian.
func (s *RedisStore) History(ctx context.Context, key string) (events []Event, err error) {
	defer clientPanicked(&err)
	lines, err := s.client.LRange(ctx, s.keys(key)[1], 0, MaxHistory-1).Result()
	if err != nil {
		return nil, err
	}
	events = make([]Event, 0, len(lines))
	for _, line := range lines {
		if e, ok := decodeEvent(line, key); ok {
			events = append(events, e)
		}
	}
	return events, nil
}

// prove shows that the server can write circuits such as that of key: one that
// is full or read-only still reads. A Cluster client is told first to look for
// the masters anew: of one that refuses connections it learns by itself only
// within its ClusterStateReloadInterval, a minute by default.
func (s *RedisStore) prove(ctx context.Context, key string) error {
	if c, ok := s.client.(interface{ ReloadState(context.Context) }); ok {
		c.ReloadState(ctx) // in the background
	}
	_, err := s.run(ctx, s.scripts.prove, []string{s.keys(key)[0] + ":proof"}, nil)
	return err
}
