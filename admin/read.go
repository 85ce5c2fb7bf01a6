package admin

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/breakerkit/breaker"
)

// A circuit is a Snapshot as the API shows it.
type circuit struct {
	Key string `json:"key"` // bytes that are not UTF-8 show as U+FFFD
	ID  string `json:"id"`  // the key as a segment of a path
	breaker.Snapshot

	// RetryInMS is the time an open circuit stays so; nil where nobody knows:
	// it is held open until cleared.
	RetryInMS *int64    `json:"retry_in_ms,omitempty"`
	AsOf      time.Time `json:"as_of"` // this process's clock
}

func circuitOf(s breaker.Snapshot) circuit {
	c := circuit{Key: s.Key, ID: idOf(s.Key), Snapshot: s, AsOf: time.Now()}
	if end, known := openUntil(s); known {
		left := max(end.Sub(c.AsOf), 0).Milliseconds()
		c.RetryInMS = &left
	}
	return c
}

// openUntil is when an open circuit lets a call through, if that is known.
func openUntil(s breaker.Snapshot) (end time.Time, known bool) {
	end = s.RetryAt
	if o := s.Override; o != nil {
		if o.Until.IsZero() {
			return end, false
		}
		if o.Until.After(end) {
			end = o.Until // else the circuit's own cooldown outlasts it
		}
	}
	return end, s.State == breaker.StateOpen
}

// A reading is what came of reading one circuit.
type reading struct {
	key  string
	snap breaker.Snapshot
	err  error
}

// readers is how many circuits are read at once: enough to hide the way to a
// server, few enough to leave its connections to the calls.
const readers = 8

// readAll reads the circuits of keys, in their order.
func readAll(ctx context.Context, b *breaker.Breaker, keys []string) []reading {
	all := make([]reading, len(keys))
	var wg sync.WaitGroup
	for first := range min(readers, len(keys)) {
		wg.Go(func() {
			for i := first; i < len(keys); i += readers {
				if all[i] = (reading{key: keys[i], err: ctx.Err()}); all[i].err == nil {
					all[i].snap, all[i].err = b.Snapshot(ctx, keys[i])
				}
			}
		})
	}
	wg.Wait()
	return all
}

// keysLimit is how long the names may take to read.
const keysLimit = 10 * time.Second

// eachKey calls do with the keys the store knows, until it returns false.
func eachKey(ctx context.Context, b *breaker.Breaker, do func(key string) bool) error {
	ctx, cancel := context.WithTimeout(ctx, keysLimit)
	defer cancel()
	for key, err := range b.Keys(ctx) {
		if err != nil {
			return err
		}
		if !do(key) {
			break
		}
	}
	return nil
}

var errNoCircuit = errors.New("no such circuit")

// find returns nil if the store has heard of key. It asks for no policy: what
// is not there is to leave no trace.
func (h *Handler) find(ctx context.Context, key string) error {
	if len(key) > breaker.MaxKeyLength {
		return errNoCircuit
	}
	// What has a history need not be searched for among the names, and may not
	// be among them yet.
	events, err := h.b.History(ctx, key)
	if len(events) > 0 || err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	found := false
	err = eachKey(ctx, h.b, func(k string) bool {
		found = k == key
		return !found
	})
	if err == nil && !found {
		err = errNoCircuit
	}
	return err
}

func (h *Handler) serveCircuit(w http.ResponseWriter, r *http.Request, t target) {
	err := h.find(r.Context(), t.key)
	if err == nil {
		var s breaker.Snapshot
		if s, err = h.b.Snapshot(r.Context(), t.key); err == nil {
			answer(w, circuitOf(s))
			return
		}
	}
	h.fail(w, r, err)
}

// A history is the last events of a circuit.
type history struct {
	Key    string          `json:"key"`
	ID     string          `json:"id"`
	Events []breaker.Event `json:"events"` // newest first
	AsOf   time.Time       `json:"as_of"`
}

func (h *Handler) serveHistory(w http.ResponseWriter, r *http.Request, t target) {
	err := h.find(r.Context(), t.key)
	if err == nil {
		var events []breaker.Event
		if events, err = h.b.History(r.Context(), t.key); err == nil {
			answer(w, history{t.key, idOf(t.key), append([]breaker.Event{}, events...), time.Now()})
			return
		}
	}
	h.fail(w, r, err)
}

// A page is a part of the list.
type page struct {
	Circuits   []circuit    `json:"circuits"`
	Unreadable []unreadable `json:"unreadable"`            // on this page, but for a record that can't be read
	NextCursor string       `json:"next_cursor,omitempty"` // of the next page; empty: this is the last
	AsOf       time.Time    `json:"as_of"`
}

type unreadable struct {
	Key   string `json:"key"`
	ID    string `json:"id"`
	Error string `json:"error"`
}

// maxUnreadable is how many circuits of one page may be unreadable before it
// is the store that fails.
const maxUnreadable = 10

func (h *Handler) serveList(w http.ResponseWriter, r *http.Request, _ target) {
	q, err := parseQuery(r.URL.RawQuery)
	if err != nil {
		h.fail(w, r, err)
		return
	}
	var keys []string
	err = eachKey(r.Context(), h.b, func(key string) bool {
		if q.wantsKey(key) {
			keys = append(keys, key)
		}
		return true
	})
	if err != nil {
		h.fail(w, r, err)
		return
	}
	slices.Sort(keys)
	p, err := h.fill(r.Context(), q, keys)
	if err != nil {
		h.fail(w, r, err)
		return
	}
	answer(w, p)
}

// fill reads sorted keys until the page is full, and then to the next circuit
// that the query wants: only if there is one, there is a next page.
func (h *Handler) fill(ctx context.Context, q query, keys []string) (page, error) {
	p := page{Circuits: []circuit{}, Unreadable: []unreadable{}, AsOf: time.Now()}
	last := ""
	for batch := range slices.Chunk(keys, max(q.limit+1, 100)) {
		for _, got := range readAll(ctx, h.b, batch) {
			switch wanted := got.err != nil || q.wantsState(got.snap.State); {
			case !wanted:
				continue
			case len(p.Circuits)+len(p.Unreadable) == q.limit:
				p.NextCursor = cursorAfter(last)
				return p, nil
			case got.err == nil:
				p.Circuits = append(p.Circuits, circuitOf(got.snap))
			case ctx.Err() != nil || len(p.Unreadable) == maxUnreadable:
				return p, got.err
			default:
				p.Unreadable = append(p.Unreadable, unreadable{got.key, idOf(got.key), got.err.Error()})
			}
			last = got.key
		}
	}
	if len(p.Circuits) == 0 && len(p.Unreadable) > 1 {
		return p, errors.New(p.Unreadable[0].Error)
	}
	return p, nil
}

// A query is what a list is asked for.
type query struct {
	states []breaker.State // none: all
	name   string          // lower case
	limit  int
	after  *string // the last key of the page before; nil: this is the first
}

const (
	defaultLimit = 100
	maxLimit     = 500
)

func (q *query) wantsKey(key string) bool {
	return (q.after == nil || key > *q.after) && strings.Contains(strings.ToLower(key), q.name)
}

func (q *query) wantsState(s breaker.State) bool {
	return len(q.states) == 0 || slices.Contains(q.states, s)
}

func parseQuery(raw string) (q query, err error) {
	q.limit = defaultLimit
	values, err := url.ParseQuery(raw)
	if err != nil {
		return q, badRequestf("The query of the URL can't be read.")
	}
	for name, given := range values {
		if len(given) > 1 && name != "state" {
			return q, badRequestf("%.40q is given more than once.", name)
		}
		if err := q.set(name, given); err != nil {
			return q, err
		}
	}
	return q, nil
}

func (q *query) set(name string, given []string) (err error) {
	switch value := given[0]; name {
	case "name":
		q.name = strings.ToLower(value)
	case "state":
		for text := range strings.SplitSeq(strings.Join(given, ","), ",") {
			var s breaker.State
			if s.UnmarshalText([]byte(text)) != nil {
				return badRequestf("The state %.40q is not closed, open or half-open.", text)
			}
			q.states = append(q.states, s)
		}
	case "limit":
		if q.limit, err = strconv.Atoi(value); err != nil || q.limit < 1 || q.limit > maxLimit {
			return badRequestf("The limit %.40q is not a number from 1 to %d.", value, maxLimit)
		}
	case "cursor":
		text, err := base64.RawURLEncoding.DecodeString(value)
		after, ok := strings.CutPrefix(string(text), cursorMark)
		if err != nil || !ok {
			return badRequestf("The cursor is not a next_cursor of this list.")
		}
		q.after = &after
	default:
		return badRequestf("The parameter %.40q is not known: only state, name, limit, cursor.", name)
	}
	return nil
}

// cursorMark begins a cursor, so that the empty key has one too.
const cursorMark = "1"

func cursorAfter(key string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(cursorMark + key))
}
