package breaker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"
)

// A Config configures a Breaker. Its zero value protects every key by
// DefaultPolicy and HTTPClassifier. SetPolicies replaces its first three
// fields later.
type Config struct {
	// Policy is for every key that Policies and PolicyFor do not name.
	// The zero Policy is DefaultPolicy.
	Policy Policy

	// Policies are for exact keys.
	Policies map[string]Policy

	// PolicyFor is for families of keys that Policies does not name. It
	// returns false for a key that is none of its own. It is asked once a key
	// (and again, should more than 100,000 keys be in use) on the first
	// caller's goroutine, so it must not block, must not use the Breaker and
	// must always answer the same. An impossible Policy from it is what that key's calls return, as
	// an ErrConfig.
	PolicyFor func(key string) (Policy, bool)

	// Classifier judges errors. Default HTTPClassifier{}.
	Classifier Classifier

	// Observer is told what happens. Default: nobody is.
	Observer Observer

	// OnStoreError says what becomes of calls while the store fails. Default FailOpen.
	OnStoreError StoreErrorPolicy

	// Fallback, if set, replaces OnStoreError in Execute and Do: it decides
	// with the *StoreError at hand. run makes the call, unprotected, the first
	// time it is called; any later time it returns an ErrConfig.
	Fallback func(ctx context.Context, key string, run func(context.Context) error, storeErr error) error

	// StoreTimeout is the most that the store may add to a call, asking before
	// it and reporting after it together, and the time after which a step of
	// the store has failed. A report that is not done by then goes on without
	// its caller. Default 100ms.
	StoreTimeout time.Duration

	// Logger gets store outages, unless the Observer of NewLogObserver is there
	// to log them, and panics of callbacks. Default slog.Default().
	Logger *slog.Logger

	// Instance names this process in transitions and history. Default host:pid.
	Instance string
}

// A Breaker runs a circuit for each key over a Store. Its methods may be
// called concurrently, and any number of Breakers, in any number of processes,
// may use the same circuits.
//
// A key is any string of at most MaxKeyLength bytes, valid UTF-8 or not, the
// empty one included; a longer one is an ErrConfig. Keys should come from a
// bounded set, such as the hosts you call: each has a circuit of its own.
type Breaker struct {
	store      Store
	memory     *MemoryStore // store, if it is one: its steps never block
	redis      *RedisStore  // store, if it is one: it has views, and knows when a success need not be told
	inline     bool         // redis's client bounds its steps itself
	policies   atomic.Pointer[policies]
	classifier Classifier
	cfg        Config
	timed      bool // an Observer wants each call's time
	outage     outage
	notes      *notifier
	background background
}

// closePatience is how long Close waits for what does not return.
const closePatience = 5 * time.Second

// New returns a Breaker over store. Each wrong field of cfg is named in the
// error, which is ErrConfig; nothing is clamped in silence.
func New(store Store, cfg Config) (*Breaker, error) {
	var errs []error
	errs = append(errs, checkStore(store))
	ps, err := newPolicies(cfg.Policy, cfg.Policies, cfg.PolicyFor)
	errs = append(errs, err)
	if cfg.StoreTimeout < 0 {
		errs = append(errs, configError("StoreTimeout is %v: must not be negative", cfg.StoreTimeout))
	}
	if cfg.OnStoreError > FailLocal {
		errs = append(errs, configError("OnStoreError is %d: not one of FailOpen, FailClosed, FailLocal", cfg.OnStoreError))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}

	setDefault(&cfg.StoreTimeout, 100*time.Millisecond)
	setDefault(&cfg.Instance, defaultInstance())
	cfg.Instance = clip(cfg.Instance)
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	b := &Breaker{
		store: store, classifier: cfg.Classifier, cfg: cfg,
		timed: cfg.Observer != nil,
	}
	b.policies.Store(ps)
	b.memory, _ = store.(*MemoryStore)
	if b.redis, _ = store.(*RedisStore); b.redis != nil {
		b.outage.prove = b.redis.prove
		b.inline = heedsContexts(b.redis.client)
	}
	if b.classifier == nil {
		b.classifier = HTTPClassifier{}
	}
	b.notes = newNotifier(cfg.Observer, cfg.Logger)
	b.outage.notes = b.notes
	b.background.run = b.runJob
	return b, nil
}

// checkStore refuses a store that could only fail.
func checkStore(store Store) error {
	if isNil(store) {
		return configError("store is nil")
	}
	switch s := store.(type) {
	case *MemoryStore:
		if s.circuits == nil {
			return configError("store is a MemoryStore that NewMemoryStore did not make")
		}
	case *RedisStore:
		if isNil(s.client) {
			return configError("store is a RedisStore without a client")
		}
	}
	return nil
}

// heedsContexts reports whether each step of client ends with its context.
// go-redis looks at them only where it is told to, and else a step may last as
// long as a server that is frozen.
func heedsContexts(client redis.UniversalClient) bool {
	switch c := client.(type) {
	case *redis.Client:
		return c.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		return c.Options().ContextTimeoutEnabled
	}
	return false
}

// isNil reports whether v is nil, or a nil pointer in an interface.
func isNil(v any) bool {
	if v == nil {
		return true
	}
	r := reflect.ValueOf(v)
	return r.Kind() == reflect.Pointer && r.IsNil()
}

func defaultInstance() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s:%d", host, os.Getpid())
}

func checkKey(key string) error {
	if len(key) > MaxKeyLength {
		return configError("key %.32q... has %d bytes: at most %d", key, len(key), MaxKeyLength)
	}
	return nil
}

// Close ends all background work, waits for the steps of the store under way
// and brings the last notices. A store or an Observer that does not return
// within 5s is an error. Calls that come later are still protected; rules that
// need settling are then settled by whoever comes next. The store and its
// client stay the caller's. Close may be called again.
func (b *Breaker) Close() error {
	patience := time.Now().Add(closePatience)
	idle := b.background.close(closePatience)
	if !b.notes.wait(time.Until(patience)) || !idle {
		return fmt.Errorf("breaker: Close: the store or an Observer has not returned for %v", closePatience)
	}
	return nil
}

// runJob does what a call left to be done later. If the store fails, the job
// is dropped: whoever uses the circuit next settles what is due.
func (b *Breaker) runJob(j job) {
	do := func(ctx context.Context) error {
		return b.noting(ctx, func() (*Transition, error) { return j.do(ctx) })
	}
	switch {
	case j.aside && b.outage.down.Load():
		b.background.after(2*namesDelay, j)
		return
	case j.aside:
		_ = b.operate(context.Background(), j.op, j.key, do)
		return
	}
	ctx := withInstance(context.Background(), b.cfg.Instance)
	_ = b.outage.ask(ctx, step{op: j.op, key: j.key, limit: b.cfg.StoreTimeout, do: do})
}

// clip cuts a text for people to MaxErrorLength bytes of valid UTF-8.
func clip(s string) string {
	if len(s) > MaxErrorLength {
		s = s[:MaxErrorLength]
		for range utf8.UTFMax - 1 { // a character cut in two goes whole
			if r, n := utf8.DecodeLastRuneInString(s); r != utf8.RuneError || n != 1 {
				break
			}
			s = s[:len(s)-1]
		}
	}
	return strings.ToValidUTF8(s, "?")
}
