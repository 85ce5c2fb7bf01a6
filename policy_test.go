package breaker_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

func TestEveryContradictionIsAnErrorThatNamesTheField(t *testing.T) {
	const never = time.Duration(math.MinInt64)
	for _, c := range []struct {
		field  string
		policy breaker.Policy
	}{
		{"ConsecutiveFailures", breaker.Policy{ConsecutiveFailures: -1}},
		{"ConsecutiveFailures", breaker.Policy{ConsecutiveFailures: math.MaxInt32 + 1}},
		{"WindowFailures", breaker.Policy{WindowFailures: -1}},
		{"WindowFailures", breaker.Policy{WindowFailures: 1001}},
		{"WindowFailures", breaker.Policy{WindowFailures: 101, Window: time.Millisecond}},
		{"MinCalls", breaker.Policy{MinCalls: -1}},
		{"MinCalls", breaker.Policy{FailureRate: 0.5, MinCalls: 101, Window: time.Millisecond}},
		{"MinCalls", breaker.Policy{SlowRate: 0.5, SlowAfter: 1, MinCalls: 6_000_001}},
		{"MaxProbes", breaker.Policy{MaxProbes: -1}},
		{"MaxProbes", breaker.Policy{MaxProbes: 1001}},
		{"ProbeSuccesses", breaker.Policy{ProbeSuccesses: -1}},
		{"FailureRate", breaker.Policy{FailureRate: -0.1}},
		{"FailureRate", breaker.Policy{FailureRate: 1.1}},
		{"FailureRate", breaker.Policy{FailureRate: 50}}, // meant as a percentage
		{"FailureRate", breaker.Policy{FailureRate: math.NaN()}},
		{"FailureRate", breaker.Policy{FailureRate: math.Inf(1)}},
		{"SlowRate", breaker.Policy{SlowRate: -0.1}},
		{"SlowRate", breaker.Policy{SlowRate: math.NaN(), SlowAfter: 1}},
		{"CooldownJitter", breaker.Policy{CooldownJitter: 1.5}},
		{"CooldownJitter", breaker.Policy{CooldownJitter: math.NaN()}},
		{"SlowAfter", breaker.Policy{SlowAfter: -1}},
		{"SlowAfter", breaker.Policy{SlowRate: 0.5}},
		{"SlowAfter", breaker.Policy{SlowRate: 0.5, SlowAfter: time.Minute, CallTimeout: time.Second}},
		{"Window", breaker.Policy{Window: -1}},
		{"Window", breaker.Policy{Window: never}},
		{"Cooldown", breaker.Policy{Cooldown: -1}},
		{"MaxCooldown", breaker.Policy{MaxCooldown: -1}},
		{"MaxCooldown", breaker.Policy{MaxCooldown: time.Second}}, // Cooldown is a minute
		{"MaxCooldown", breaker.Policy{Cooldown: time.Hour, MaxCooldown: time.Minute}},
		{"ProbeLease", breaker.Policy{ProbeLease: -1}},
		{"ProbeLease", breaker.Policy{ProbeLease: time.Second, CallTimeout: time.Second}},
		{"ProbeLease", breaker.Policy{CallTimeout: math.MaxInt64}},
		{"CallTimeout", breaker.Policy{CallTimeout: -1}},
	} {
		t.Run(fmt.Sprintf("%s/%+v", c.field, c.policy), func(t *testing.T) {
			err := c.policy.Validate()
			require.ErrorIs(t, err, breaker.ErrConfig)
			for line := range strings.Lines(err.Error()) {
				assert.Contains(t, line, "Policy."+c.field, "nothing else is wrong")
			}

			memory := breaker.NewMemoryStore(breaker.MemoryConfig{})
			_, err = breaker.New(memory, under(c.policy))
			assert.ErrorIs(t, err, breaker.ErrConfig)
			assert.ErrorContains(t, err, "Policy."+c.field)
			_, err = breaker.New(memory, breaker.Config{Policies: map[string]breaker.Policy{"stripe": c.policy}})
			assert.ErrorIs(t, err, breaker.ErrConfig)
			assert.ErrorContains(t, err, `Policies["stripe"].`+c.field)
		})
	}
}

func TestTheExtremesThatMakeSenseAreAccepted(t *testing.T) {
	for _, p := range []breaker.Policy{
		{},
		breaker.DefaultPolicy,
		{ConsecutiveFailures: math.MaxInt32, WindowFailures: 1000, MinCalls: math.MaxInt32, MaxProbes: 1000, ProbeSuccesses: math.MaxInt32},
		{FailureRate: 1, SlowRate: 1, SlowAfter: 1, CooldownJitter: 1},
		{FailureRate: math.SmallestNonzeroFloat64},
		{WindowFailures: 100, Window: time.Millisecond},
		{FailureRate: 0.5, MinCalls: 100, Window: time.Millisecond},
		{Cooldown: time.Minute, MaxCooldown: time.Minute},
		{Cooldown: math.MaxInt64, Window: math.MaxInt64, ProbeLease: math.MaxInt64, MaxRetryAfter: math.MaxInt64, SlowAfter: math.MaxInt64},
		{CallTimeout: time.Second, ProbeLease: time.Second + 1},
		{MaxRetryAfter: math.MinInt64},
		{MinCalls: math.MaxInt32, Window: time.Millisecond}, // no rate asks for it
		{Shadow: true},
	} {
		assert.NoError(t, p.Validate(), "%+v", p)
	}
}

func TestAllThatIsWrongIsSaidTogether(t *testing.T) {
	_, err := breaker.New(nil, breaker.Config{
		Policy:       breaker.Policy{ConsecutiveFailures: -1, FailureRate: 2, Cooldown: -1},
		Policies:     map[string]breaker.Policy{"a": {MaxProbes: -1}, strings.Repeat("k", breaker.MaxKeyLength+1): {}},
		StoreTimeout: -1,
		OnStoreError: 77,
	})
	require.ErrorIs(t, err, breaker.ErrConfig)
	for _, text := range []string{"store is nil", "Policy.ConsecutiveFailures", "Policy.FailureRate", "Policy.Cooldown",
		`Policies["a"].MaxProbes`, "1025 bytes", "StoreTimeout", "OnStoreError"} {
		assert.ErrorContains(t, err, text)
	}
	assert.Less(t, len(err.Error()), 2000)
}

func TestAnImpossiblePolicyFromPolicyForIsWhatTheKeysCallsReturn(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		asked := make(map[string]int)
		b := join(breaker.Config{
			Policies: map[string]breaker.Policy{"exact": {ConsecutiveFailures: 1}},
			PolicyFor: func(key string) (breaker.Policy, bool) {
				asked[key]++
				switch {
				case strings.HasPrefix(key, "bad/"):
					return breaker.Policy{Cooldown: -1}, true
				case strings.HasPrefix(key, "two/"):
					return breaker.Policy{ConsecutiveFailures: 2}, true
				}
				return breaker.Policy{ConsecutiveFailures: 77}, false
			},
		})
		for range 3 {
			err := execute(b, "bad/1", errDown)
			assert.ErrorIs(t, err, breaker.ErrConfig)
			assert.ErrorContains(t, err, `PolicyFor("bad/1").Cooldown`)
			_, err = b.Snapshot(bg, "bad/1")
			assert.ErrorIs(t, err, breaker.ErrConfig)
			assert.ErrorIs(t, b.Reset(bg, "bad/1"), breaker.ErrConfig)
		}
		trip(t, b, "exact", 1)
		trip(t, b, "two/1", 2)
		trip(t, b, "standard", 5)
		assert.Equal(t, map[string]int{"bad/1": 1, "two/1": 1, "standard": 1}, asked, "once a key, and never for an exact one")
	})
}

func TestPolicyForIsAskedOnceByManyCallers(t *testing.T) {
	asked := 0
	b := newBreaker(t, breaker.NewMemoryStore(breaker.MemoryConfig{}), breaker.Config{
		PolicyFor: func(string) (breaker.Policy, bool) {
			asked++ // a data race, were it asked twice at once
			runtime.Gosched()
			return breaker.Policy{ConsecutiveFailures: 1}, true
		},
	})
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() { assert.NoError(t, execute(b, "k", nil)) })
	}
	wg.Wait()
	assert.Equal(t, 1, asked)
}

func TestDefaultsAreAsDocumented(t *testing.T) {
	assert.Equal(t, breaker.Policy{
		ConsecutiveFailures: 5, MinCalls: 20, Window: time.Minute, Cooldown: time.Minute,
		MaxRetryAfter: 5 * time.Minute, MaxProbes: 1, ProbeSuccesses: 1, ProbeLease: time.Minute,
	}, breaker.DefaultPolicy)
	for _, c := range []struct {
		policy      breaker.Policy
		consecutive int
		lease       time.Duration
	}{
		{breaker.Policy{WindowFailures: 3}, 0, time.Minute}, // another rule is set
		{breaker.Policy{FailureRate: 0.5}, 0, time.Minute},
		{breaker.Policy{SlowRate: 0.5, SlowAfter: 1}, 0, time.Minute},
		{breaker.Policy{FailureRate: 0.5, ConsecutiveFailures: 9}, 9, time.Minute},
		{breaker.Policy{CallTimeout: 2 * time.Second}, 5, 7 * time.Second},
		{breaker.Policy{CallTimeout: 2 * time.Minute}, 5, 2*time.Minute + 5*time.Second},
		{breaker.Policy{CallTimeout: 2 * time.Second, ProbeLease: time.Hour}, 5, time.Hour},
	} {
		b := newBreaker(t, breaker.NewMemoryStore(breaker.MemoryConfig{}), under(c.policy))
		p := snapshotOf(t, b, "k").Policy
		assert.Equal(t, c.consecutive, p.ConsecutiveFailures, "%+v", c.policy)
		assert.Equal(t, c.lease, p.ProbeLease, "%+v", c.policy)
	}
}

func TestPoliciesAreComparable(t *testing.T) {
	p := breaker.Policy{FailureRate: 0.5}
	assert.True(t, reflect.TypeFor[breaker.Policy]().Comparable())
	assert.True(t, p == breaker.Policy{FailureRate: 0.5})
	assert.False(t, p == breaker.DefaultPolicy)
	assert.Equal(t, 1, map[breaker.Policy]int{p: 1}[breaker.Policy{FailureRate: 0.5}])
}

var wholePolicy = breaker.Policy{
	ConsecutiveFailures: 1, WindowFailures: 2, FailureRate: 0.25, SlowRate: 0.5, SlowAfter: 1500 * time.Millisecond,
	MinCalls: 3, Window: time.Minute, Cooldown: time.Hour, MaxCooldown: 2*time.Hour + 1, CooldownJitter: 0.1,
	MaxRetryAfter: -1, MaxProbes: 4, ProbeSuccesses: 5, ProbeLease: 90 * time.Second, CallTimeout: time.Microsecond, Shadow: true,
}

func TestPolicyIsJSONWithDurationsAsText(t *testing.T) {
	for field, value := range reflect.ValueOf(wholePolicy).Fields() {
		require.False(t, value.IsZero(), "%s is not tested", field.Name)
	}
	text, err := json.Marshal(wholePolicy)
	require.NoError(t, err)
	assert.JSONEq(t, `{"consecutive_failures": 1, "window_failures": 2, "failure_rate": 0.25, "slow_rate": 0.5,
		"slow_after": "1.5s", "min_calls": 3, "window": "60s", "cooldown": "3600s", "max_cooldown": "2h0m0.000000001s",
		"cooldown_jitter": 0.1, "max_retry_after": "-1ns", "max_probes": 4, "probe_successes": 5, "probe_lease": "90s",
		"call_timeout": "1µs", "shadow": true}`, string(text))
	for _, p := range []breaker.Policy{wholePolicy, {}, breaker.DefaultPolicy} {
		text, err := json.Marshal(p)
		require.NoError(t, err)
		var back breaker.Policy
		require.NoError(t, json.Unmarshal(text, &back))
		assert.Equal(t, p, back)
	}
	zero, err := json.Marshal(breaker.Policy{})
	require.NoError(t, err)
	assert.Equal(t, "{}", string(zero))
}

func TestJSONSetsWhatItNamesAndLeavesTheRest(t *testing.T) {
	p := wholePolicy
	require.NoError(t, json.Unmarshal([]byte(`{"cooldown": "60s", "max_probes": 0, "unknown": 1}`), &p))
	want := wholePolicy
	want.Cooldown, want.MaxProbes = time.Minute, 0
	assert.Equal(t, want, p)

	var many map[string]breaker.Policy
	require.NoError(t, json.Unmarshal([]byte(`{"stripe": {"cooldown": "60s"}}`), &many))
	assert.Equal(t, map[string]breaker.Policy{"stripe": {Cooldown: time.Minute}}, many)
}

func TestJSONThatMakesNoSenseIsAnErrorAndChangesNothing(t *testing.T) {
	for _, text := range []string{
		`{"cooldown": 60}`, `{"cooldown": "60"}`, `{"cooldown": "soon"}`, `{"cooldown": {}}`, `{"max_probes": "1"}`,
		`{"max_probes": 1.5}`, `{"shadow": 1}`, `{"max_probes": 9, "window": "x"}`, `[]`, `"60s"`, `{`, ``,
	} {
		p := wholePolicy
		assert.Error(t, json.Unmarshal([]byte(text), &p), text)
		assert.Equal(t, wholePolicy, p, text)
	}
	var p breaker.Policy
	require.NoError(t, json.Unmarshal([]byte(`{"cooldown": "-60s"}`), &p), "the form is right")
	assert.True(t, errors.Is(p.Validate(), breaker.ErrConfig), "the sense is not")
}

// Whatever the text, reading it is an error that changes nothing, or a policy
// that is written and read as itself. What Validate accepts, its defaults make
// no worse.
func FuzzPolicyJSON(f *testing.F) {
	for _, p := range []breaker.Policy{{}, wholePolicy, breaker.DefaultPolicy} {
		text, err := json.Marshal(p)
		require.NoError(f, err)
		f.Add(text)
	}
	for _, text := range []string{`{"cooldown": 60}`, `{"window": "-1h", "min_calls": 2147483648}`, `{"Cooldown": "1s", "cooldown": null}`,
		`{"failure_rate": 1e-320, "probe_lease": "2562047h47m16.854775807s"}`, `[]`, `{"max_probes": 9, "window": "x"}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		p := wholePolicy
		if json.Unmarshal(text, &p) != nil {
			require.Equal(t, wholePolicy, p)
			return
		}
		again, err := json.Marshal(p)
		require.NoError(t, err)
		var back breaker.Policy
		require.NoError(t, json.Unmarshal(again, &back), "%s", again)
		require.Equal(t, p, back)
		if err := p.Validate(); err != nil {
			require.ErrorIs(t, err, breaker.ErrConfig)
			return
		}
		d := p.WithDefaults()
		require.NoError(t, d.Validate())
		require.Equal(t, d, d.WithDefaults())
	})
}
