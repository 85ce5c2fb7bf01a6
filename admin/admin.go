// Package admin is an http.Handler for whoever operates circuits: a REST API
// and a dashboard over the circuits of a Breaker's store.
//
//	feed := new(admin.Feed)
//	b, err := breaker.New(store, breaker.Config{Observer: feed})
//	...
//	h := admin.New(b, admin.Config{Token: os.Getenv("ADMIN_TOKEN"), Feed: feed})
//	mux.Handle("/breakers/", h)
//
// The API is described in docs/openapi.yaml, its use in docs/operations.md.
// The handler finds its routes at the end of the path, so it may stand under
// any prefix, taken off by http.StripPrefix or not. The dashboard is at that
// prefix, with a "/" at its end.
package admin

import (
	"cmp"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/breakerkit/breaker"
)

// A Config configures a Handler. Its zero value lets this machine read.
type Config struct {
	// Token is what requests to the API must bear: "Authorization: Bearer
	// <Token>". Make it long and random. White space around it is left out.
	//
	// Without one nothing can be changed, and only requests that come from
	// this machine, by its loopback address, through no proxy, and to a host
	// named localhost or by such an address, are answered.
	Token string

	// ReadOnly refuses every change, token or not.
	ReadOnly bool

	// Title heads the dashboard. Default "Circuit breakers".
	Title string

	// Feed, if it is also the Breaker's Observer or one of them, brings this
	// process's transitions to the event streams at once. What other processes
	// do, and without a Feed what this one does, shows within Poll.
	Feed *Feed

	// Poll is how often the store is read for changes while somebody watches;
	// nobody watching, it is not. Reading takes at most a fifth of the time:
	// with many circuits, it is done less often. Default 1s.
	Poll time.Duration

	// Operator, if set, says who makes a request, for the history; it may know
	// from a proxy that people sign in to. What it returns replaces the "by"
	// of the request, unless it is empty. It is called concurrently.
	Operator func(*http.Request) string

	// Logger is told of each change, and who made it. Default slog.Default().
	Logger *slog.Logger
}

// A Handler serves the API and the dashboard. It may be used concurrently.
type Handler struct {
	b     *breaker.Breaker
	cfg   Config
	guard guard
	hub   *hub
	page  []byte
}

// New returns a handler for the circuits of b, which stays the caller's. Of a
// nil b it answers that there is none.
func New(b *breaker.Breaker, cfg Config) *Handler {
	cfg.Token = strings.TrimSpace(cfg.Token)
	cfg.Title = cmp.Or(cfg.Title, "Circuit breakers")
	if cfg.Poll <= 0 {
		cfg.Poll = time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	h := &Handler{b: b, cfg: cfg, guard: newGuard(cfg)}
	h.hub = newHub(b, cfg.Poll)
	h.page = renderPage(cfg)
	if cfg.Feed != nil {
		cfg.Feed.tell(h.hub)
	}
	return h
}

// Close ends the event streams, which otherwise last as long as their clients;
// later ones are refused. The rest goes on. It may be called again.
// http.Server.Shutdown waits for streams, so hand it to RegisterOnShutdown.
func (h *Handler) Close() { h.hub.close() }

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Cache-Control", "no-store")

	if h.b == nil {
		problem(w, http.StatusInternalServerError, "admin.New was given no Breaker.")
		return
	}
	if !h.guard.near(r) {
		problem(w, http.StatusForbidden, "No token is configured: only this machine may read, by its loopback address and through no proxy.")
		return
	}
	t, ok := findTarget(r.URL.EscapedPath())
	if !ok {
		problem(w, http.StatusNotFound, "There is no such page.")
		return
	}
	serve, allowed := t.endpoint(r.Method)
	if serve == nil {
		header.Set("Allow", allowed)
		problem(w, http.StatusMethodNotAllowed, "Here is only "+allowed+".")
		return
	}
	if t.public() || h.guard.admits(w, r) {
		serve(h, w, r, t)
	}
}
