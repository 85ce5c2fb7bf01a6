package breakerconfig_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakerconfig"
)

// The same configuration in each format.
var wholeFiles = map[string]string{
	"breaker.yaml": `# comments are fine
redis:
  address: redis.internal:6379
  prefix: shop
  max_staleness: 250ms
  settle: -1ns
on_store_error: fail_local
store_timeout: 50ms
default:
  cooldown: 30s
  max_cooldown: 5m
circuits:
  stripe:
    consecutive_failures: 3
    call_timeout: 2.5s
  "tenant-*/webhooks": {failure_rate: 0.5, shadow: true}
`,
	"breaker.toml": `# comments are fine
on_store_error = "fail_local"
store_timeout = "50ms"

[redis]
address = "redis.internal:6379"
prefix = 'shop'
max_staleness = "250ms"
settle = "-1ns"

[default]
cooldown = "30s"
max_cooldown = "5m"

[circuits]
stripe.consecutive_failures = 3
stripe.call_timeout = "2.5s"

[circuits."tenant-*/webhooks"]
failure_rate = 0.5
shadow = true
`,
	"breaker.json": `{
	"redis": {"address": "redis.internal:6379", "prefix": "shop", "max_staleness": "250ms", "settle": "-1ns"},
	"on_store_error": "fail_local",
	"store_timeout": "50ms",
	"default": {"cooldown": "30s", "max_cooldown": "5m"},
	"circuits": {
		"stripe": {"consecutive_failures": 3, "call_timeout": "2.5s"},
		"tenant-*\/webhooks": {"failure_rate": 0.5, "shadow": true}
	}
}`,
}

func TestEveryFormatSaysTheSame(t *testing.T) {
	for name, text := range wholeFiles {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), name)
			require.NoError(t, os.WriteFile(path, []byte("\ufeff"+text), 0o600))
			s, err := breakerconfig.Load(path)
			require.NoError(t, err)
			assert.Equal(t, "redis.internal:6379", s.RedisAddress)
			assert.Equal(t, breaker.RedisConfig{Prefix: "shop", MaxStaleness: 250 * time.Millisecond, Settle: -1}, s.Redis)
			assert.Equal(t, breaker.FailLocal, s.Config.OnStoreError)
			assert.Equal(t, 50*time.Millisecond, s.Config.StoreTimeout)
			standard := breaker.Policy{Cooldown: 30 * time.Second, MaxCooldown: 5 * time.Minute}
			assert.Equal(t, standard, s.Config.Policy)
			stripe, tenant := standard, standard // they have what default says
			stripe.ConsecutiveFailures, stripe.CallTimeout = 3, 2500*time.Millisecond
			tenant.FailureRate, tenant.Shadow = 0.5, true
			assert.Equal(t, map[string]breaker.Policy{"stripe": stripe}, s.Config.Policies)
			p, ok := s.Config.PolicyFor("tenant-7/webhooks")
			assert.True(t, ok)
			assert.Equal(t, tenant, p)
			_, ok = s.Config.PolicyFor("tenant-7")
			assert.False(t, ok)
			_, err = breaker.New(breaker.NewMemoryStore(breaker.MemoryConfig{}), s.Config)
			assert.NoError(t, err)
		})
	}
}

// Every field of a Policy can be set in every format, under its name in JSON.
func TestEveryFieldOfAPolicyCanBeSet(t *testing.T) {
	whole := breaker.Policy{
		ConsecutiveFailures: 1, WindowFailures: 2, FailureRate: 0.25, SlowRate: 0.5, SlowAfter: 1500 * time.Millisecond,
		MinCalls: 3, Window: time.Minute, Cooldown: time.Hour, MaxCooldown: 2 * time.Hour, CooldownJitter: 0.1,
		MaxRetryAfter: -1, MaxProbes: 4, ProbeSuccesses: 5, ProbeLease: 90 * time.Second, CallTimeout: 2 * time.Second, Shadow: true,
	}
	for field, value := range reflect.ValueOf(whole).Fields() {
		require.False(t, value.IsZero(), "%s is not tested", field.Name)
	}
	inJSON, err := json.Marshal(whole)
	require.NoError(t, err)
	var fields map[string]any
	require.NoError(t, json.Unmarshal(inJSON, &fields))
	var yaml, toml strings.Builder
	var environ []string
	for name, value := range fields {
		text, _ := json.Marshal(value)
		fmt.Fprintf(&yaml, "\n  %s: %s", name, text)
		fmt.Fprintf(&toml, "\n%s = %s", name, text)
		environ = append(environ, fmt.Sprintf("BREAKER_DEFAULT_%s=%v", strings.ToUpper(name), value))
	}
	for name, text := range map[string]string{
		"b.json": `{"default": ` + string(inJSON) + `}`, "b.yml": "default:" + yaml.String(), "b.toml": "[default]" + toml.String(),
	} {
		s, err := breakerconfig.Parse(name, []byte(text), nil)
		require.NoError(t, err, name)
		assert.Equal(t, whole, s.Config.Policy, name)
	}
	s, err := breakerconfig.Parse("", nil, environ)
	require.NoError(t, err)
	assert.Equal(t, whole, s.Config.Policy, "environment")
}

func TestNothingSaidIsAllDefaults(t *testing.T) {
	for name, text := range map[string]string{
		"": "", "b.yaml": "", "c.yaml": "# nothing\n", "d.yaml": "default:\ncircuits:\nredis:\n", "e.yaml": "---\n", "b.json": "{}", "b.toml": "",
		"c.json": "null",
	} {
		s, err := breakerconfig.Parse(name, []byte(text), []string{"PATH=/bin", "BREAKERS=1", "XBREAKER_Y=1"})
		require.NoError(t, err, name)
		assert.Equal(t, breakerconfig.Settings{}, s, name)
	}
}

func TestTheEnvironmentWins(t *testing.T) {
	t.Setenv("BREAKER_DEFAULT_COOLDOWN", "20s")
	t.Setenv("BREAKER_CIRCUITS_STRIPE_CONSECUTIVE_FAILURES", "4")
	t.Setenv("BREAKER_REDIS_ADDRESS", "other:6379")
	t.Setenv("BREAKER_REDIS_PREFIX", "")
	t.Setenv("BREAKER_ON_STORE_ERROR", "fail_closed")
	t.Setenv("BREAKER_STORE_TIMEOUT", "1s")
	path := filepath.Join(t.TempDir(), "breaker.yaml")
	require.NoError(t, os.WriteFile(path, []byte(wholeFiles["breaker.yaml"]), 0o600))
	s, err := breakerconfig.Load(path)
	require.NoError(t, err)
	assert.Equal(t, 20*time.Second, s.Config.Policy.Cooldown)
	assert.Equal(t, 5*time.Minute, s.Config.Policy.MaxCooldown, "what no variable says stays")
	assert.Equal(t, 4, s.Config.Policies["stripe"].ConsecutiveFailures)
	assert.Equal(t, 20*time.Second, s.Config.Policies["stripe"].Cooldown)
	assert.Equal(t, "other:6379", s.RedisAddress)
	assert.Empty(t, s.Redis.Prefix)
	assert.Equal(t, breaker.FailClosed, s.Config.OnStoreError)
	assert.Equal(t, time.Second, s.Config.StoreTimeout)

	s, err = breakerconfig.Parse("", nil, []string{"BREAKER_STORE_TIMEOUT=9s", "BREAKER_STORE_TIMEOUT=1s"})
	require.NoError(t, err)
	assert.Equal(t, time.Second, s.Config.StoreTimeout, "the last of the same name counts, as for programs that are started")
}

func TestVariablesFindTheirCircuits(t *testing.T) {
	const file = `{"circuits": {"api.example.com:443": {}, "tenant-*": {}, "stripe_max": {}, "": {}, "Größe": {}}}`
	for variable, want := range map[string]struct {
		key   string
		field func(breaker.Policy) any
	}{
		"API_EXAMPLE_COM_443_COOLDOWN":    {"api.example.com:443", func(p breaker.Policy) any { return p.Cooldown }},
		"TENANT___COOLDOWN":               {"tenant-*", func(p breaker.Policy) any { return p.Cooldown }},
		"STRIPE_MAX_COOLDOWN":             {"stripe_max", func(p breaker.Policy) any { return p.Cooldown }},
		"PAYPAL_MAX_COOLDOWN":             {"paypal", func(p breaker.Policy) any { return p.MaxCooldown }}, // not in the file
		"STRIPE_MAX_MAX_COOLDOWN":         {"stripe_max", func(p breaker.Policy) any { return p.MaxCooldown }},
		"NEW_ONE_COOLDOWN":                {"new_one", func(p breaker.Policy) any { return p.Cooldown }},
		"_COOLDOWN":                       {"", func(p breaker.Policy) any { return p.Cooldown }},
		"GR__E_COOLDOWN":                  {"Größe", func(p breaker.Policy) any { return p.Cooldown }},
		"STRIPE_MAX_CONSECUTIVE_FAILURES": {"stripe_max", func(p breaker.Policy) any { return p.ConsecutiveFailures }},
	} {
		value := "77s"
		var expected any = 77 * time.Second
		if strings.HasSuffix(variable, "FAILURES") {
			value, expected = "77", 77
		}
		s, err := breakerconfig.Parse("b.json", []byte(file), []string{"BREAKER_CIRCUITS_" + variable + "=" + value})
		require.NoError(t, err, variable)
		p, ok := s.Config.Policies[want.key]
		if want.key == "tenant-*" {
			p, ok = s.Config.PolicyFor("tenant-")
		}
		assert.True(t, ok, variable)
		assert.Equal(t, expected, want.field(p), variable)
	}
}

func TestTheMostSpecificNameCounts(t *testing.T) {
	names := []string{"*", "api.*", "api.eu.*", "*.example.com", "api.*.com", "api.eu.example.com", "a*c", "*ac", "**ac", "x*y*z", "tenant-*/webhooks"}
	var file strings.Builder
	file.WriteString("circuits:\n")
	for i, name := range names {
		fmt.Fprintf(&file, "  %q: {consecutive_failures: %d}\n", name, i+1)
	}
	s, err := breakerconfig.Parse("b.yaml", []byte(file.String()), nil)
	require.NoError(t, err)
	b, err := breaker.New(breaker.NewMemoryStore(breaker.MemoryConfig{}), s.Config)
	require.NoError(t, err)
	defer b.Close()
	for key, want := range map[string]string{
		"api.eu.example.com":   "api.eu.example.com", // exact
		"api.us.example.com":   "*.example.com",      // 12 characters beside the star
		"api.eu.x":             "api.eu.*",
		"api.us.com":           "api.*.com",
		"api.us":               "api.*",
		"api.":                 "api.*",
		"":                     "*",
		"a/b":                  "*",
		"aac":                  "*ac", // as many as a*c, and first in the order of bytes
		"abc":                  "a*c",
		"xyz":                  "x*y*z",
		"x-y-y-z-z":            "x*y*z",
		"xzy":                  "*",
		"tenant-7/a/webhooks":  "tenant-*/webhooks",
		"tenant-/webhooks":     "tenant-*/webhooks",
		"tenant-webhooks":      "*",
		"tenant-7/webhooks/hi": "*",
	} {
		snap, err := b.Snapshot(t.Context(), key)
		require.NoError(t, err)
		assert.Equal(t, want, names[snap.Policy.ConsecutiveFailures-1], key)
	}
}

func TestAPatternDoesNotFitItsOwnOverlap(t *testing.T) {
	s, err := breakerconfig.Parse("b.yaml", []byte(`circuits: {"ab*ba": {}}`), nil)
	require.NoError(t, err)
	for key, want := range map[string]bool{"abba": true, "abxba": true, "aba": false, "ab": false, "xabba": false} {
		_, ok := s.Config.PolicyFor(key)
		assert.Equal(t, want, ok, key)
	}
}

func TestWhatCantBeReadIsSaidSo(t *testing.T) {
	_, err := breakerconfig.Load(filepath.Join(t.TempDir(), "none.yaml"))
	assert.ErrorIs(t, err, fs.ErrNotExist)
	_, err = breakerconfig.Load(t.TempDir())
	assert.Error(t, err)
	_, err = breakerconfig.Parse("breaker.ini", nil, nil)
	assert.ErrorIs(t, err, breaker.ErrConfig)
	assert.ErrorContains(t, err, `breaker.ini: ends in ".ini"`)
	_, err = breakerconfig.Parse("b.yaml", make([]byte, 1<<20+1), nil)
	assert.ErrorContains(t, err, "at most 1048576")
}

func TestErrorsTellTheirPartsApart(t *testing.T) {
	_, err := breakerconfig.Parse("b.yaml", []byte("default:\n  cooldown: soon\n"), []string{"BREAKER_X=1"})
	var wrong *breakerconfig.Error
	require.True(t, errors.As(err, &wrong))
	assert.Equal(t, &breakerconfig.Error{File: "b.yaml", Line: 2, Field: "default.cooldown",
		Problem: `"soon" is no duration, such as 30s, 1m30s or 100ms`}, wrong)
	assert.ErrorIs(t, err, breaker.ErrConfig)
}
