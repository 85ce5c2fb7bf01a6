package breaker

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// A diffStep is one step of a sequence. It says all there is to know, so that
// a sequence can be repeated, and repeated without some of its steps.
type diffStep struct {
	do       string
	process  int // who
	permit   int // acquire: the permit's number; report: which
	result   Result
	override Override
	policy   Policy
	wait     time.Duration // negative: the server's clock is set back
	jitter   float64
	twice    bool // the message arrives twice; the reply to the second is what comes back
}

func (s diffStep) String() string {
	text := fmt.Sprintf("p%d %s", s.process, s.do)
	switch s.do {
	case "wait":
		text = "wait " + s.wait.String()
	case "policy":
		set, _ := json.Marshal(s.policy)
		text = "policy " + string(set)
	case "lose":
		text = "the server loses the circuit"
	case "acquire":
		text += fmt.Sprintf(" #%d", s.permit)
	case "report":
		text += fmt.Sprintf(" #%d %v after %v", s.permit, s.result.Outcome, s.result.Elapsed)
		if s.result.Outcome == Failure {
			text += fmt.Sprintf(" %q, Retry-After %v", s.result.Error, s.result.RetryAfter)
		}
	case "force":
		text += fmt.Sprintf(" %v for %v, %q", s.override.State, s.override.For, s.override.Reason)
	}
	if s.jitter > 0 {
		text += fmt.Sprintf(" (jitter %v)", s.jitter)
	}
	if s.twice {
		text += " (arrives twice)"
	}
	return text
}

// A diffWriter writes a sequence, a step at a time, as it runs: it looks at the
// model to find what is worth doing next.
type diffWriter struct {
	rng      *rand.Rand
	plain    bool // for one process that neither restarts nor loses its circuit
	settle   time.Duration
	left     int // steps to write
	permits  int // numbered so far
	failing  float64
	slow     float64
	steering bool
}

// Shares that no float64 is, one that is, and a whole.
var diffShares = []float64{0.1, 0.3, 1.0 / 3, 0.5, 0.7, 1}

var diffTexts = []string{"", "boom", "a,b;c{d}", `"quoted" \ / 'it'`, "two\nlines\t\x00\x1f\x7f",
	"naïve ☃ 🚀 \u2028", "<&>", "null", "1e5", "007"}

func newDiffWriter(seed uint64, plain bool) *diffWriter {
	rng := rand.New(rand.NewPCG(seed, 0))
	w := &diffWriter{rng: rng, plain: plain, left: 100, settle: 150 * time.Millisecond,
		failing: pick(rng, 0.15, 0.35, 0.6, 0.9), slow: pick(rng, 0, 0.3, 0.8), steering: rng.IntN(2) == 0}
	if rng.IntN(4) == 0 {
		w.settle = -1
	}
	if rng.IntN(40) == 0 { // long enough for the oldest history to go
		w.left = 600
	}
	return w
}

func pick[T any](rng *rand.Rand, of ...T) T { return of[rng.IntN(len(of))] }

func (w *diffWriter) chance(share float64) bool { return w.rng.Float64() < share }

// next writes a step for a world as it is now.
func (w *diffWriter) next(world *diffWorld) (diffStep, bool) {
	if w.left == 0 {
		return diffStep{}, false
	}
	w.left--
	s := diffStep{do: w.verb(world)}
	if !w.plain {
		s.process = w.rng.IntN(diffProcesses)
		if world.policy.CooldownJitter > 0 {
			s.jitter = w.rng.Float64()
		}
		s.twice = slices.Contains([]string{"acquire", "report", "speak"}, s.do) && w.chance(0.05)
	}
	switch s.do {
	case "policy":
		s.policy = w.policy()
	case "wait":
		s.wait = w.wait(world)
	case "acquire":
		w.permits++
		s.permit = w.permits
	case "report":
		s.permit = pick(w.rng, world.held...)
		if w.chance(0.6) {
			s.permit = world.held[len(world.held)-1]
		}
		s.process = world.permits[s.permit].process
		s.result = w.result(&world.policy)
	case "report again":
		s.do = "report"
		s.permit = pick(w.rng, world.told...)
		s.process = world.permits[s.permit].process
		s.result = w.result(&world.policy)
	case "force":
		s.override = Override{State: pick(w.rng, StateOpen, StateClosed), Reason: w.text(), By: w.text()}
		s.override.For = pick(w.rng, 0, time.Millisecond, 1500*time.Microsecond, world.policy.Cooldown, time.Second)
	}
	return s, true
}

// verb is what to do next.
func (w *diffWriter) verb(world *diffWorld) string {
	if world.steps == 0 {
		return "policy"
	}
	type choice struct {
		do     string
		weight int
		ok     bool
	}
	choices := []choice{
		{"acquire", 30, true},
		{"report", 34, len(world.held) > 0},
		{"report again", 2, len(world.told) > 0},
		{"wait", 20, true},
		{"snapshot", 4, true},
		{"speak", 5, !w.plain},
		{"restart", 1, !w.plain},
		{"lose", 1, w.steering && !w.plain},
		{"policy", 2, true},
		{"force", 2, w.steering},
		{"clear", 2, w.steering},
		{"reset", 1, w.steering},
	}
	choices = slices.DeleteFunc(choices, func(c choice) bool { return !c.ok })
	total := 0
	for _, c := range choices {
		total += c.weight
	}
	n := w.rng.IntN(total)
	for _, c := range choices {
		if n -= c.weight; n < 0 {
			return c.do
		}
	}
	panic("unreachable")
}

func (w *diffWriter) text() string { return pick(w.rng, diffTexts...) }

func (w *diffWriter) result(p *Policy) Result {
	r := Result{Outcome: Success, Instance: w.text()}
	if w.chance(w.failing) {
		r.Outcome, r.Error = Failure, w.text()
		if w.chance(0.15) {
			r.RetryAfter = pick(w.rng, -time.Second, time.Millisecond, 1500*time.Microsecond, p.Cooldown,
				p.Cooldown+time.Millisecond, time.Minute, time.Hour, math.MaxInt64)
		}
	} else if w.chance(0.1) {
		r.Outcome = Ignored
	}
	r.Elapsed = p.SlowAfter // which is not slow yet
	if w.chance(w.slow) {
		r.Elapsed++
	}
	return r
}

// wait is a step in time: often to where something is about to happen, or just
// did, by the policy or by the model.
func (w *diffWriter) wait(world *diffWorld) time.Duration {
	p, now := &world.policy, world.clock.now
	if !w.plain && w.chance(0.03) {
		return -time.Duration(w.rng.Int64N(int64(2 * min(p.Window, time.Minute))))
	}
	if w.chance(0.15) {
		return pick(w.rng, 0, 300*time.Microsecond, time.Millisecond, 10*time.Millisecond, time.Second)
	}
	at := []time.Duration{p.Cooldown, p.Window, p.Window / windowBuckets, p.ProbeLease, 150 * time.Millisecond,
		time.Duration(w.rng.Int64N(int64(2 * min(p.Window, time.Hour))))}
	due := func(ms int64) { at = append(at, time.UnixMilli(ms).Sub(now)) }
	c, _ := world.sides[0].circuit()
	if c.State == StateOpen {
		due(c.RetryAt)
	}
	if c.MetAt > 0 {
		due(c.MetAt + 150)
		due(c.AskedAt + 150)
	}
	for _, l := range c.Leases {
		due(l.Until)
	}
	if o := c.Override; o != nil && !o.Until.IsZero() {
		due(o.Until.UnixMilli())
	}
	for _, t := range c.Counted.Failures {
		due(t + millis(p.Window))
	}
	for _, b := range c.Counted.Buckets {
		due(b.Start + millis(p.Window))
	}
	// What the model is about to do is at the end, and the more likely choice.
	d := at[w.rng.IntN(len(at))]
	if n := len(at) - 6; n > 0 && w.chance(0.5) {
		d = at[6+w.rng.IntN(n)]
	}
	return max(0, min(d, 30*24*time.Hour)+time.Duration(w.rng.IntN(3)-1)*time.Millisecond)
}

// policy is a valid one, small enough for its rules to be met in a sequence.
func (w *diffWriter) policy() Policy {
	rng := w.rng
	some := func(of ...time.Duration) time.Duration { return pick(rng, of...) }
	const ms = time.Millisecond
	longest := time.Duration(math.MaxInt64)
	if !w.plain { // miniredis counts the time to live in nanoseconds
		longest = 100 * 365 * 24 * time.Hour
	}
	for {
		var p Policy
		rules := pick(rng, 1, 2, 4, 8, 4+8, rng.IntN(16)) // alone and together
		if rules&1 > 0 {
			p.ConsecutiveFailures = 1 + rng.IntN(4)
		}
		if rules&2 > 0 {
			p.WindowFailures = 1 + rng.IntN(5)
		}
		if rules&4 > 0 {
			p.FailureRate = pick(rng, diffShares...)
		}
		if rules&8 > 0 {
			p.SlowRate, p.SlowAfter = pick(rng, diffShares...), some(ms, 100*ms)
		}
		p.MinCalls = 1 + rng.IntN(6)
		p.Window = some(ms, 1500*time.Microsecond, 19*ms, 100*ms, 777*ms, time.Second, 10*time.Second, 0)
		p.Cooldown = some(ms, 1500*time.Microsecond, 100*ms, 150*ms, 333*ms, time.Second, 0)
		if w.chance(0.4) {
			p.MaxCooldown = p.Cooldown * time.Duration(pick(rng, 1, 2, 3, 7, 8))
		}
		if !w.plain && w.chance(0.4) {
			p.CooldownJitter = pick(rng, diffShares...)
		}
		p.MaxRetryAfter = some(0, -1, ms, 1500*time.Microsecond, time.Second, time.Hour)
		if w.chance(0.02) { // longer than anyone waits
			p.MaxRetryAfter, p.Cooldown, p.MaxCooldown = longest, longest, 0
		}
		p.MaxProbes = 1 + rng.IntN(3)
		p.ProbeSuccesses = 1 + rng.IntN(3)
		p.ProbeLease = some(ms, 1500*time.Microsecond, 50*ms, 200*ms, time.Second, 0)
		if p.Validate() == nil {
			return p.WithDefaults()
		}
	}
}

// listing is a sequence for people.
func listing(settle time.Duration, steps []diffStep) string {
	var b strings.Builder
	fmt.Fprintf(&b, "settle %v\n", settle)
	for i, s := range steps {
		fmt.Fprintf(&b, "%3d  %v\n", i+1, s)
	}
	return b.String()
}

// replay gives steps that have been written.
func replay(steps []diffStep) func(*diffWorld) (diffStep, bool) {
	return func(w *diffWorld) (s diffStep, ok bool) {
		if w.steps < len(steps) {
			return steps[w.steps], true
		}
		return s, false
	}
}

// shrink leaves steps out while fails says that the rest fails. It asks at
// most five hundred times.
func shrink(steps []diffStep, fails func([]diffStep) bool) []diffStep {
	asked := 0
	for size := len(steps) / 2; size > 0; {
		before := len(steps)
		for at := 0; at+size <= len(steps) && asked < 500; asked++ {
			if fewer := slices.Concat(steps[:at], steps[at+size:]); fails(fewer) {
				steps = fewer
			} else {
				at += size
			}
		}
		if len(steps) == before || size > len(steps) {
			size /= 2
		}
	}
	return steps
}
