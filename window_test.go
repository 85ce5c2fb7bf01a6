package breaker

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// A clock that is set back leaves buckets out of order: one that has left the
// window goes even where the first of them stays.
func TestBucketsOutOfOrderLeaveTheWindowEachInItsTime(t *testing.T) {
	p := &Policy{FailureRate: 0.5, Window: 800 * time.Millisecond}
	const start = 1_000_000
	var w Window
	w.add(p, start+1000, start+1000, "p", 1, 0, 0)
	w.add(p, start, start, "p", 1, 0, 0) // the clock has been set back by a second
	assert.Len(t, w.Buckets, 2)
	w.add(p, start+30, start+799, "p", 1, 0, 0) // heard of late, and just in time
	assert.Equal(t, []Bucket{{start + 1000, 1, 0, 0}, {start, 2, 0, 0}}, w.Buckets)
	w.add(p, start+30, start+800, "p", 1, 0, 0)
	assert.Equal(t, []Bucket{{start + 1000, 1, 0, 0}}, w.Buckets)
}
