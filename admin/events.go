package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/breakerkit/breaker"
)

// The events of a stream, as docs/openapi.yaml names them.
const (
	eventTotals     = "totals"     // totals: at the start, and when they change
	eventTransition = "transition" // transition
	eventCircuit    = "circuit"    // circuit, whenever anything in it changes
	eventGone       = "gone"       // gone: the store has forgotten it
	eventTrouble    = "trouble"    // trouble: the store can't be read; totals when it can again
	eventResync     = "resync"     // resync: the client was too slow and missed some; read the list again
)

type totals struct {
	Closed     int       `json:"closed"`
	Open       int       `json:"open"`
	HalfOpen   int       `json:"half_open"`
	Unreadable int       `json:"unreadable"`
	AsOf       time.Time `json:"as_of"`
}

type transition struct {
	Key string `json:"key"`
	ID  string `json:"id"`
	breaker.Transition
}

type gone struct {
	Key string `json:"key"`
	ID  string `json:"id"`
}

type trouble struct {
	Detail string    `json:"detail"`
	AsOf   time.Time `json:"as_of"`
}

type resync struct {
	AsOf time.Time `json:"as_of"`
}

// frame writes an event as it goes over the wire. JSON has no line breaks.
func frame(event string, v any) []byte {
	data, err := json.Marshal(v)
	if err != nil { // a time after the year 9999, from a clock gone mad
		event, data = eventTrouble, []byte(`{"detail":"an event can't be written"}`)
	}
	return fmt.Appendf(nil, "event: %s\ndata: %s\n\n", event, data)
}

// maxBacklog is how many events wait for a client that is slow to take them,
// beside at most as many on their way to it.
const maxBacklog = 1000

// A stream is the events that one client has yet to take.
type stream struct {
	filled chan struct{} // has one element when there is something to take

	mu      sync.Mutex
	backlog [][]byte
}

func (s *stream) put(event []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.backlog) == maxBacklog {
		s.backlog = [][]byte{frame(eventResync, resync{time.Now()})}
	} else {
		s.backlog = append(s.backlog, event)
	}
	select {
	case s.filled <- struct{}{}:
	default:
	}
}

func (s *stream) take() (events [][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	events, s.backlog = s.backlog, nil
	return events
}

const (
	keepAlive  = 15 * time.Second // a comment, so that the client and proxies see it lives
	writeLimit = 30 * time.Second // for one write, in place of the server's limit for all
)

func (h *Handler) serveEvents(w http.ResponseWriter, r *http.Request, _ target) {
	header := w.Header()
	if r.Method == http.MethodHead {
		header.Set("Content-Type", "text/event-stream")
		return
	}
	s, closed, ok := h.hub.join()
	if !ok {
		header.Set("Retry-After", "5")
		problem(w, http.StatusServiceUnavailable, "There are too many event streams, or the server is going down.")
		return
	}
	defer h.hub.leave(s)
	header.Set("Content-Type", "text/event-stream")
	header.Set("X-Accel-Buffering", "no") // nginx would hold events back

	rc := http.NewResponseController(w)
	send := func(parts ...[]byte) bool {
		_ = rc.SetWriteDeadline(time.Now().Add(writeLimit)) // where that can't be set, the server's holds
		for _, part := range parts {
			if _, err := w.Write(part); err != nil {
				return false
			}
		}
		return rc.Flush() == nil
	}
	alive := time.NewTicker(keepAlive)
	defer alive.Stop()
	for ok := send([]byte(": breaker events\n\n")); ok; {
		select {
		case <-s.filled:
			ok = send(s.take()...)
		case <-alive.C:
			ok = send([]byte(":\n\n"))
		case <-closed:
			return
		case <-r.Context().Done():
			return
		}
	}
}
