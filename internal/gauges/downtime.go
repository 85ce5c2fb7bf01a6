package gauges

import (
	"sync"
	"time"
)

// Downtime is how long a process went without its store, over all outages. It
// never goes back. The zero Downtime is of a store that has been well all along.
type Downtime struct {
	mu    sync.Mutex
	since time.Time     // when the store failed; zero: it is well
	past  time.Duration // in outages that are over
}

// Begin says that the store failed.
func (d *Downtime) Begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.since = time.Now()
}

// End says that it is back, after so long.
func (d *Downtime) End(lasted time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.past += max(lasted, d.current()) // what was said of this outage is not taken back
	d.since = time.Time{}
}

// Read returns whether the store is failing now, and the time spent without it.
func (d *Downtime) Read() (down bool, total time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.since.IsZero(), d.past + d.current()
}

// current requires d.mu.
func (d *Downtime) current() time.Duration {
	if d.since.IsZero() {
		return 0
	}
	return time.Since(d.since)
}
