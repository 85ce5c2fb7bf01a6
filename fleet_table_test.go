package breaker_test

import (
	"flag"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/breakerkit/breaker"
)

var longFleet = flag.Bool("fleet.long", false, "run the tests of fleets in their long form, with many more calls")

// unlikely is the chance that a check of a random number fails though all is
// well.
const unlikely = 1e-4

// poissonTop is the least number that a count with such a mean exceeds with a
// chance under unlikely.
func poissonTop(mean float64) int {
	k, above := -1, 1.0
	for above >= unlikely {
		k++
		factorial, _ := math.Lgamma(float64(k + 1))
		above -= math.Exp(float64(k)*math.Log(mean) - mean - factorial) // by logarithms: e^-mean may be 0
	}
	return k
}

// moreThanTwice reports whether a is so much more than b that chance does not
// explain it where a's mean is at most twice b's: then each of the a+b openings
// is one of a's with a chance of 2/3 at the most.
func moreThanTwice(a, b int) bool {
	tail := 0.0
	for k := a; k <= a+b; k++ {
		lg := func(n int) float64 { v, _ := math.Lgamma(float64(n + 1)); return v }
		tail += math.Exp(lg(a+b) - lg(k) - lg(a+b-k) + float64(k)*math.Log(2.0/3) + float64(a+b-k)*math.Log(1.0/3))
	}
	return tail < unlikely
}

func TestChanceIsComputed(t *testing.T) {
	assert.Equal(t, 0, poissonTop(unlikely/2))
	assert.Equal(t, 4, poissonTop(0.25)) // more than 3: 1 - e^-0.25 (1 + 0.25 + 0.03125 + 0.0026) = 0.00013
	assert.Equal(t, 24, poissonTop(10))
	assert.Equal(t, 1014, poissonTop(900)) // e^-900 is no float64
	assert.False(t, moreThanTwice(8, 0), "(2/3)^8 is 4 %%")
	assert.True(t, moreThanTwice(23, 0))
	assert.False(t, moreThanTwice(40, 20))
	assert.True(t, moreThanTwice(90, 15))
}

// A success costs no command, so the processes do not see each other's. A
// shared count of failures alone would open over and over; what a process says
// of its own successes keeps the fleet near what one observer of all its calls
// would have done: never more than twice as often, but for chance, and never at
// all where such an observer hardly ever would. Few calls say little; those of
// all workloads together say more.
func TestFleetOpensAboutAsOftenAsOneObserverOfAllItsCalls(t *testing.T) {
	t.Parallel()
	large(t)
	for _, failing := range []float64{0.01, 0.05, 0.20} {
		for way, cfg := range fleetWays {
			t.Run(fmt.Sprintf("%g %% failing/%s", 100*failing, way), func(t *testing.T) {
				var all observed
				for _, w := range fleetWorkloads(failing) {
					t.Run(w.String(), func(t *testing.T) {
						o := observe(t, w, cfg)
						o.check(t)
						all.add(o)
					})
				}
				all.check(t)
			})
		}
	}
}

// Without settling the same fleet opens several times as often: the bounds
// above do tell the two apart.
func TestFleetThatDoesNotSettleOpensTooOften(t *testing.T) {
	t.Parallel()
	large(t)
	w := fast
	w.processes, w.workers, w.failing, w.calls = 20, 10, 0.20, 20_000
	o := observe(t, w, breaker.RedisConfig{NoPush: true, Settle: -1})
	t.Logf("opened %d times; a serial observer %d, expected %.2f, allowed %d", o.opened, o.serial, o.expected, o.most())
	assert.Greater(t, o.opened, o.most())
}

func observe(t *testing.T, w workload, cfg breaker.RedisConfig) (o observed) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o = newVirtualFleet(t, w.processes, cfg, breaker.Policy{}).run(w)
	})
	return o
}

func (o *observed) add(other observed) {
	o.calls += other.calls
	o.opened += other.opened
	o.serial += other.serial
	o.expected += other.expected
}

// most is how many openings are allowed: twice the expected ones, and what
// chance may add; none where hardly one is expected.
func (o *observed) most() int {
	if o.expected < 0.1 {
		return 0
	}
	return poissonTop(2 * o.expected)
}

func (o *observed) check(t *testing.T) {
	t.Helper()
	t.Logf("%d calls: opened %d times; a serial observer %d, expected %.2f, allowed %d", o.calls, o.opened, o.serial, o.expected, o.most())
	assert.LessOrEqual(t, o.opened, o.most())
	assert.False(t, moreThanTwice(o.opened, o.serial), "against a serial observer of these very calls")
}

func (w workload) String() string {
	pace := "flat out"
	if w.every > 0 {
		pace = fmt.Sprintf("each %v", w.every)
	}
	return fmt.Sprintf("%d processes, %v to %v, %s, %g %% failing", w.processes, w.shortest, w.longest, pace, 100*w.failing)
}

func fleetWorkloads(failing float64) (ws []workload) {
	calls := 1000
	if *longFleet {
		calls = 20_000
	}
	for _, processes := range []int{20, 300} {
		for _, w := range []workload{fast, slow} {
			for _, every := range []time.Duration{0, time.Second} {
				w.processes, w.every, w.failing, w.calls = processes, every, failing, calls
				w.workers = 1
				if every == 0 {
					w.workers = max(200/processes, 1)
				}
				w.seed = uint64(len(ws))
				ws = append(ws, w)
			}
		}
	}
	return ws
}

var (
	fast = workload{shortest: 30 * time.Millisecond, longest: 70 * time.Millisecond}
	slow = workload{shortest: 500 * time.Millisecond, longest: 2 * time.Second}
)

// How long slow calls have to settle: what a success says of itself comes when
// its process next calls.
func TestSettleOfSlowCalls(t *testing.T) {
	if !*longFleet {
		t.Skip("a measurement; needs -fleet.long")
	}
	for way, cfg := range fleetWays {
		for _, processes := range []int{20, 100} {
			for _, settle := range []time.Duration{150, 300, 600, 1200, 2400} {
				t.Run(fmt.Sprintf("%s/%d processes/%dms", way, processes, settle), func(t *testing.T) {
					cfg.Settle = settle * time.Millisecond
					w := slow
					w.processes, w.every, w.failing, w.calls = processes, time.Second, 0.20, 40_000
					o := observe(t, w, cfg)
					t.Logf("opened %d times; a serial observer %d, expected %.2f", o.opened, o.serial, o.expected)
				})
			}
		}
	}
}
