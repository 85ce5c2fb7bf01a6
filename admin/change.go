package admin

import (
	"context"
	"net"
	"net/http"
	"path"
	"time"

	"github.com/breakerkit/breaker"
)

func (h *Handler) serveForceOpen(w http.ResponseWriter, r *http.Request, t target) {
	h.serveForce(w, r, t, breaker.StateOpen)
}

func (h *Handler) serveForceClosed(w http.ResponseWriter, r *http.Request, t target) {
	h.serveForce(w, r, t, breaker.StateClosed)
}

func (h *Handler) serveForce(w http.ResponseWriter, r *http.Request, t target, s breaker.State) {
	c, err := h.readChange(w, r, "duration", "reason", "by")
	h.serveChange(w, r, t, c, err, func(ctx context.Context) error {
		return h.b.Force(ctx, t.key, breaker.Override{State: s, For: c.duration, Reason: c.reason, By: c.by})
	})
}

func (h *Handler) serveReset(w http.ResponseWriter, r *http.Request, t target) {
	c, err := h.readChange(w, r, "reason", "by")
	h.serveChange(w, r, t, c, err, func(ctx context.Context) error {
		return h.b.Reset(breaker.WithOperator(ctx, c.signature()), t.key)
	})
}

func (h *Handler) serveClearOverride(w http.ResponseWriter, r *http.Request, t target) {
	c, err := h.readChange(w, r, "reason", "by")
	h.serveChange(w, r, t, c, err, func(ctx context.Context) error {
		return h.b.ClearOverride(breaker.WithOperator(ctx, c.signature()), t.key)
	})
}

// serveChange makes a change of a circuit there is, and answers with what the
// circuit is then. err is what reading the change came to.
func (h *Handler) serveChange(w http.ResponseWriter, r *http.Request, t target, c change, err error, do func(context.Context) error) {
	if err == nil {
		err = h.find(r.Context(), t.key)
	}
	if err == nil {
		err = do(r.Context())
		h.cfg.Logger.Info("breaker: an operator's change", "key", t.key, "what", path.Base(t.route),
			"duration", c.duration, "reason", c.reason, "by", c.by, "from", r.RemoteAddr, "error", err)
		h.hub.look(t.key)
	}
	if err != nil {
		h.fail(w, r, err)
		return
	}
	s, err := h.b.Snapshot(r.Context(), t.key)
	if err != nil {
		w.WriteHeader(http.StatusNoContent) // it is done, whatever it looks like now
		return
	}
	answer(w, circuitOf(s))
}

// A change is the body of a request that changes a circuit.
type change struct {
	duration   time.Duration // 0: until cleared
	reason, by string
}

// signature is by and reason in one: of a reset, and of an override taken
// back, the history has one text.
func (c *change) signature() string {
	if c.reason == "" {
		return c.by
	}
	return c.by + " (" + c.reason + ")"
}

// maxSaid is the most bytes that the reason and the name of a change have
// together, so that nothing of a signature is cut off.
const maxSaid = breaker.MaxErrorLength - len(" ()")

// readChange reads the body of r: an object with text in the fields that are
// allowed. All may be left out, and the body with them.
func (h *Handler) readChange(w http.ResponseWriter, r *http.Request, allowed ...string) (c change, err error) {
	said, err := readFields(w, r, allowed)
	if err != nil {
		return c, err
	}
	if text := said["duration"]; text != "" {
		if c.duration, err = time.ParseDuration(text); err != nil || c.duration <= 0 {
			return c, badRequestf("The duration %.40q is not one such as \"90s\" or \"1h30m\", and more than 0.", text)
		}
	}
	c.reason, c.by = said["reason"], h.operator(r, said["by"])
	if n := len(c.by) + len(c.reason); n > maxSaid {
		return c, badRequestf("The reason and the name have %d bytes together: at most %d.", n, maxSaid)
	}
	return c, nil
}

// operator is who makes a request: whom Config.Operator knows, or says it
// itself, or the address it comes from.
func (h *Handler) operator(r *http.Request, said string) string {
	if h.cfg.Operator != nil {
		if known := h.cfg.Operator(r); known != "" {
			return known
		}
	}
	if said != "" {
		return said
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = "unknown address"
	}
	return "admin@" + host
}
