package admin

import (
	"slices"
	"sync"

	"github.com/breakerkit/breaker"
)

// A Feed is a breaker.Observer that tells handlers which circuit has just
// changed in this process, so that they look at it at once. Its zero value is
// ready for use; it must not be copied. Put it into breaker.Config.Observer,
// with breaker.Observers beside others, and into Config.Feed. It never blocks.
type Feed struct {
	breaker.NopObserver

	mu   sync.Mutex
	hubs []*hub
}

// tell has a hub told.
func (f *Feed) tell(h *hub) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hubs = append(f.hubs, h)
}

// Transitioned implements breaker.Observer.
func (f *Feed) Transitioned(t breaker.Transition) {
	f.mu.Lock()
	hubs := slices.Clone(f.hubs)
	f.mu.Unlock()
	for _, h := range hubs {
		h.look(t.Key)
	}
}
