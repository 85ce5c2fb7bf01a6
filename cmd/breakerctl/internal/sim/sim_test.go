package sim

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// traffic has a call a second, from one second of the trace to another.
func traffic(from, to int, o breaker.Outcome) (calls []Call) {
	for s := from; s < to; s++ {
		calls = append(calls, Call{At: noon.Add(time.Duration(s) * time.Second), Outcome: o, Took: 100 * time.Millisecond})
	}
	return calls
}

func join(parts ...[]Call) (calls []Call) {
	for _, p := range parts {
		calls = append(calls, p...)
	}
	return calls
}

func at(s float64) time.Time { return noon.Add(time.Duration(s * float64(time.Second))) }

// 20 s well, 100 s down, 80 s well: the default policy opens after the fifth
// failure, probes in vain once, and closes with the second probe.
func TestAnOutageIsReplayed(t *testing.T) {
	calls := join(traffic(0, 20, breaker.Success), traffic(20, 120, breaker.Failure), traffic(120, 200, breaker.Success))
	r := Replay("default", breaker.Policy{}, calls)
	require.Len(t, r.Episodes, 1)
	e := r.Episodes[0]
	assert.Equal(t, at(24.1), e.Opened)
	// The probe at 85 fails at 85.1; that at 146 closes the circuit at 146.1.
	assert.Equal(t, []Phase{
		{at(24.1), breaker.StateOpen}, {at(85), breaker.StateHalfOpen}, {at(85.1), breaker.StateOpen},
		{at(146), breaker.StateHalfOpen}, {at(146.1), breaker.StateClosed},
	}, e.Phases)
	assert.Equal(t, at(146.1), e.Closed)
	assert.Equal(t, "5 failures in a row", e.Counts)
	assert.Equal(t, 1, e.Probes)
	assert.Equal(t, 200, r.Calls)
	assert.Equal(t, 100, r.Failures)
	assert.Equal(t, 6, r.FailuresMade, "five, and a probe")
	assert.Equal(t, 94, r.Spared)
	assert.Equal(t, 26, r.Lost, "from 120 to 145")
	assert.Equal(t, 80, r.Made)
	assert.Equal(t, 1, r.Openings)
	assert.Zero(t, r.FalseOpenings)
	assert.InDelta(t, 122.0, r.NotClosedSecs, 1e-9)
}

func TestAFalseOpeningIsSeen(t *testing.T) {
	calls := join(traffic(0, 10, breaker.Failure), traffic(10, 100, breaker.Success))
	r := Replay("nervous", breaker.Policy{ConsecutiveFailures: 2}, calls)
	assert.Equal(t, 1, r.Openings)
	assert.Equal(t, 1, r.FalseOpenings)
	calm := Replay("calm", breaker.Policy{ConsecutiveFailures: 20}, calls)
	assert.Zero(t, calm.Openings)
	assert.Zero(t, calm.Spared+calm.Lost)
}

// What the simulation says is what a Breaker does with the same calls.
func TestABreakerDoesWhatTheSimulationSays(t *testing.T) {
	for name, p := range map[string]breaker.Policy{
		"default": {},
		"rate":    {FailureRate: 0.4, MinCalls: 10, Window: 20 * time.Second, Cooldown: 7 * time.Second, ProbeSuccesses: 2},
		"slow":    {SlowRate: 0.3, SlowAfter: time.Second, MinCalls: 10, Window: 30 * time.Second, Cooldown: 5 * time.Second, MaxCooldown: 20 * time.Second},
		"timeout": {WindowFailures: 4, Window: 10 * time.Second, CallTimeout: 500 * time.Millisecond, Cooldown: 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(7, 7))
				start := time.Now()
				var calls []Call
				for i := range 1000 {
					c := Call{At: start.Add(time.Duration(i) * time.Second), Took: 300 * time.Millisecond, Outcome: breaker.Success}
					if random.IntN(10) < 3+5*(i/100%2) { // bad times and better ones
						c.Outcome = breaker.Failure
					}
					if random.IntN(4) == 0 {
						c.Took = time.Duration(random.IntN(4000)) * time.Millisecond
					}
					calls = append(calls, c)
				}
				want := Replay(name, p, calls)

				b, err := breaker.New(breaker.NewMemoryStore(breaker.MemoryConfig{}), breaker.Config{Policy: p})
				require.NoError(t, err)
				var made, rejected atomic.Int64
				var all sync.WaitGroup
				for _, c := range calls {
					time.Sleep(time.Until(c.At))
					synctest.Wait() // whatever ends now has ended
					all.Go(func() {
						err := b.Execute(t.Context(), "k", func(ctx context.Context) error {
							made.Add(1)
							select {
							case <-time.After(c.Took):
							case <-ctx.Done():
								return ctx.Err()
							}
							if c.Outcome == breaker.Failure {
								return errBroken
							}
							return nil
						})
						if errors.Is(err, breaker.ErrOpen) || errors.Is(err, breaker.ErrBusy) {
							rejected.Add(1)
						}
					})
				}
				all.Wait()
				require.NoError(t, b.Close())
				assert.EqualValues(t, want.Made, made.Load())
				assert.EqualValues(t, want.Spared+want.Lost, rejected.Load())
				assert.NotZero(t, rejected.Load())
			})
		})
	}
}

func TestResultsCountWhenCallsEndAndNotWhenTheyBegin(t *testing.T) {
	slow := Call{At: at(0), Took: time.Minute, Outcome: breaker.Failure}
	calls := join([]Call{slow}, traffic(1, 30, breaker.Success))
	r := Replay("p", breaker.Policy{ConsecutiveFailures: 1}, calls)
	assert.Equal(t, at(60), r.Episodes[0].Opened)
	assert.Equal(t, 30, r.Made)

	r = Replay("p", breaker.Policy{ConsecutiveFailures: 1, CallTimeout: 2 * time.Second, Cooldown: 10 * time.Second}, calls)
	assert.Equal(t, at(2), r.Episodes[0].Opened, "CallTimeout ends it")
	assert.Equal(t, at(12.1), r.Episodes[0].Closed)
}

func TestKeysHaveCircuitsOfTheirOwn(t *testing.T) {
	calls := traffic(0, 20, breaker.Failure)
	for i := range calls {
		calls[i].Key = fmt.Sprint(i % 2)
	}
	r := Replay("p", breaker.Policy{}, calls)
	require.Len(t, r.Episodes, 2)
	assert.Equal(t, "0", r.Episodes[0].Key)
	assert.Equal(t, at(8.1), r.Episodes[0].Opened)
	assert.Equal(t, at(9.1), r.Episodes[1].Opened)
	assert.True(t, r.Episodes[1].Closed.IsZero())
}

func TestBothFormsOfATraceAreRead(t *testing.T) {
	want := []Call{
		{At: at(0), Took: 120 * time.Millisecond, Outcome: breaker.Success, Key: "a b"},
		{At: at(1.5), Took: 2 * time.Second, Outcome: breaker.Failure, RetryAfter: 30 * time.Second},
		{At: at(2), Outcome: breaker.Success},
		{At: at(3), Outcome: breaker.Ignored},
	}
	for name, text := range map[string]string{
		"csv": "\ufeffstatus,Time,outcome,duration,key,other,retry_after\n" +
			",2026-11-30T12:00:03Z,ignored\n503,1796040001.5,,2,,,30s\n200,2026-11-30T12:00:00Z,,120ms,a b\n404,1796040002\n",
		"jsonl": `{"time":"2026-11-30T12:00:00Z","status":200,"duration":"120ms","key":"a b"}` + "\n\n" +
			`{"time":1796040001.5,"outcome":"failure","duration":2,"retry_after":"30s","x":[1]}` + "\n" +
			`{"time":1796040002,"status":"404","key":null}` + "\n" + `{"time":"2026-11-30T13:00:03+01:00","outcome":"Ignored"}`,
	} {
		calls, err := Read(strings.NewReader(text))
		require.NoError(t, err, name)
		assert.Equal(t, want, calls, name)
	}
}

func TestWhatIsWrongWithATraceIsNamed(t *testing.T) {
	for text, want := range map[string]string{
		"":                                           "empty",
		"time,outcome\n":                             "no calls",
		"when,outcome\n1,success":                    `no column "time"`,
		"time,time\n1,2":                             "twice",
		"time,outcome\n1,success\nx,success":         "line 3: time",
		"time,outcome\n1,undecided":                  "line 2: outcome",
		"time\n1":                                    "neither an outcome nor a status",
		"time,status\n1,99":                          "line 2: status",
		"time,outcome,duration\n1,success,-1":        "line 2: duration",
		"time,outcome,duration\n1,success,1y":        "line 2: duration",
		"time,outcome\n-1,success":                   "Unix seconds",
		"time,outcome\nNaN,success":                  "Unix seconds",
		"time,outcome\n1969-01-01T00:00:00Z,success": "between 1970 and 9999",
		"{\"time\":1,\"outcome\":\"success\"}\n{":    "line 2",
		"time,outcome\n1,\"success":                  "line 2",
		"time,outcome,key\n1,success," + strings.Repeat("k", 2000): "key has 2000 bytes",
	} {
		_, err := Read(strings.NewReader(text))
		assert.ErrorContains(t, err, want, "%.60q", text)
	}
	_, err := Read(failing{})
	assert.ErrorIs(t, err, errBroken)
}

var errBroken = errors.New("broken")

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errBroken }

func TestThePicturesShowTheStates(t *testing.T) {
	calls := join(traffic(0, 20, breaker.Success), traffic(20, 120, breaker.Failure), traffic(120, 200, breaker.Success))
	results := []Result{Replay("default", breaker.Policy{}, calls), Replay(`<calm> & "sure"`, breaker.Policy{ConsecutiveFailures: 500}, calls)}
	var text strings.Builder
	require.NoError(t, NewPicture(calls, results, 50).Text(&text))
	lines := strings.Split(text.String(), "\n")
	row := func(line string) []rune { return []rune(line)[len(`<calm> & "sure"`)+2:] }
	failures, first, second := row(lines[1]), row(lines[2]), row(lines[3])
	require.Len(t, first, 50)
	assert.Equal(t, strings.Repeat("·", 50), string(second))
	for c, want := range map[int]rune{0: '·', 5: '·', 7: '█', 20: '█', 30: '█', 40: '·', 49: '·'} { // 4 s each
		assert.Equal(t, want, first[c], "column %d", c)
	}
	assert.Equal(t, ' ', failures[4])
	assert.Equal(t, '█', failures[20])

	var svg strings.Builder
	require.NoError(t, NewPicture(calls, results, 50).SVG(&svg))
	d, elements := xml.NewDecoder(strings.NewReader(svg.String())), 0
	for {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		if _, ok := token.(xml.StartElement); ok {
			elements++
		}
	}
	assert.Greater(t, elements, 50)
	assert.Contains(t, svg.String(), `&lt;calm&gt;`)
	assert.Contains(t, svg.String(), fills[breaker.StateOpen])
}

func TestATraceOfOneCallCanBeDrawn(t *testing.T) {
	calls := traffic(0, 1, breaker.Failure)
	assert.NoError(t, NewPicture(calls, []Result{Replay("p", breaker.Policy{}, calls)}, 10).Text(io.Discard))
}

func FuzzRead(f *testing.F) {
	for _, seed := range []string{
		"time,outcome\n1,success\n", "time,status,duration,key\n2026-11-30T12:00:00Z,503,120ms,a\n",
		`{"time":1.5,"outcome":"failure"}`, "\ufeff {\"time\":\"x\"}", "time,outcome\n\"1\n", "{}\n[]", "time\x00", "time,outcome,duration\n1e300,success,1e300",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		calls, err := Read(strings.NewReader(text))
		if err != nil {
			assert.Empty(t, calls)
			assert.NotEmpty(t, err.Error())
			return
		}
		require.NotEmpty(t, calls)
		for i, c := range calls {
			assert.False(t, c.At.Before(earliest) || c.At.After(latest))
			assert.True(t, c.Took >= 0 && c.Took <= maxTook && c.RetryAfter >= 0 && c.RetryAfter <= maxTook)
			assert.NotEqual(t, breaker.Undecided, c.Outcome)
			assert.True(t, i == 0 || !c.At.Before(calls[i-1].At))
		}
		r := Replay("p", breaker.Policy{ConsecutiveFailures: 1}, calls)
		assert.Equal(t, len(calls), r.Calls)
		assert.Equal(t, r.Calls, r.Made+r.Spared+r.Lost)
		assert.Equal(t, r.Failures, r.FailuresMade+r.Spared)
		assert.NoError(t, NewPicture(calls, []Result{r}, 20).Text(io.Discard))
		assert.NoError(t, NewPicture(calls, []Result{r}, 20).SVG(io.Discard))
	})
}
