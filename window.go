package breaker

import "slices"

// windowBuckets is how many parts a Window's calls are counted in.
const windowBuckets = 20

// A Window counts what the rules over Policy.Window need: failures each with
// its time, calls in buckets. Times are Unix milliseconds.
type Window struct {
	// Failures are the times of the last Policy.WindowFailures failures, oldest first.
	Failures []int64 `json:"failures,omitempty"`

	// Buckets count the calls, if the policy has a rate.
	Buckets []Bucket `json:"buckets,omitempty"`

	// By is the process all counted calls come from; manyProcesses if they
	// come from several.
	By string `json:"by,omitempty"`
}

const manyProcesses = "*"

// A Bucket counts the calls of one twentieth of a window, from Start on.
type Bucket struct {
	Start    int64 `json:"start"`
	Calls    int   `json:"calls"`
	Failures int   `json:"failures,omitempty"`
	Slow     int   `json:"slow,omitempty"`
}

// add counts calls that ended at the time at.
func (w *Window) add(p *Policy, at, now int64, by string, calls, failures, slow int) {
	window := millis(p.Window)
	b := Bucket{at - at%max(window/windowBuckets, 1), calls, failures, slow}
	gone := func(b Bucket) bool { return b.Start <= now-window }
	// Mostly a call is one more of the newest bucket, and all stay. All are looked
	// at, since a clock that was set back leaves them out of order.
	if n := len(w.Buckets); n > 0 && w.Buckets[n-1].Start == b.Start && w.By == by && !slices.ContainsFunc(w.Buckets, gone) {
		w.Buckets[n-1].add(b)
		return
	}

	w.Buckets = slices.DeleteFunc(w.Buckets, gone)
	if gone(b) {
		return
	}
	if len(w.Buckets) == 0 {
		w.By = by
	} else if w.By != by {
		w.By = manyProcesses
	}
	if i := slices.IndexFunc(w.Buckets, func(o Bucket) bool { return o.Start == b.Start }); i >= 0 {
		w.Buckets[i].add(b)
		return
	}
	w.Buckets = append(w.Buckets, b)
}

func (b *Bucket) add(more Bucket) {
	b.Calls += more.Calls
	b.Failures += more.Failures
	b.Slow += more.Slow
}

// sum counts the calls in the window that ends at the time at.
func (w *Window) sum(p *Policy, at int64) (calls, failures, slow int) {
	for _, b := range w.Buckets {
		if b.Start > at-millis(p.Window) {
			calls += b.Calls
			failures += b.Failures
			slow += b.Slow
		}
	}
	return calls, failures, slow
}

// fail remembers the time of a failure, if a rule asks for it.
func (w *Window) fail(p *Policy, now int64) {
	if p.WindowFailures == 0 {
		w.Failures = nil
		return
	}
	w.Failures = append(w.Failures, now)
	if drop := len(w.Failures) - p.WindowFailures; drop > 0 {
		w.Failures = slices.Delete(w.Failures, 0, drop)
	}
}

// failuresWithin counts the remembered failures of the window that ends at the
// time at. One that is exactly Window old is out.
func (w *Window) failuresWithin(p *Policy, at int64) int {
	n := 0
	for _, t := range w.Failures {
		if t > at-millis(p.Window) {
			n++
		}
	}
	return n
}
