package breakerconfig_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakerconfig"
)

// problemsOf are the lines of an error, less what each begins with.
func problemsOf(t testing.TB, err error) []string {
	t.Helper()
	require.ErrorIs(t, err, breaker.ErrConfig)
	text := strings.ReplaceAll(err.Error(), "breakerconfig: ", "")
	return strings.Split(text, "\n")
}

func TestMistakesNameFileLineAndField(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"b.yaml", "default:\n  cooldwn: 30s\n", []string{"b.yaml:2: default.cooldwn: unknown field"}},
		{"b.yaml", "deflt: {}\n", []string{"b.yaml:1: deflt: unknown field"}},
		{"b.yaml", "redis:\n  adress: x\n", []string{"b.yaml:2: redis.adress: unknown field"}},
		{"b.yaml", "circuits:\n  stripe:\n\n    Cooldown: 30s", []string{"b.yaml:4: circuits.stripe.Cooldown: unknown field"}},
		{"b.yaml", "circuits:\n  api.x:\n    x: 1", []string{`b.yaml:3: circuits."api.x".x: unknown field`}},
		{"b.yaml", "default: &d {cooldown: 30s}\ncircuits:\n  s:\n    <<: *d\n", []string{`b.yaml:4: circuits.s.<<: unknown field`}},
		{"b.yaml", "default:\n  cooldown: 30\n", []string{"b.yaml:2: default.cooldown: 30 has no unit; a duration is written as 30s, 1m30s or 100ms"}},
		{"b.yaml", "default:\n  cooldown: \"30\"\n", []string{`b.yaml:2: default.cooldown: "30" is no duration, such as 30s, 1m30s or 100ms`}},
		{"b.yaml", "default:\n  cooldown: [30s]\n", []string{"b.yaml:2: default.cooldown: a list is no duration, such as 30s, 1m30s or 100ms"}},
		{"b.yaml", "default:\n  cooldown:\n", []string{"b.yaml:2: default.cooldown: nothing is no duration, such as 30s, 1m30s or 100ms"}},
		{"b.yaml", "default:\n  cooldown: true\n", []string{"b.yaml:2: default.cooldown: true is no duration, such as 30s, 1m30s or 100ms"}},
		{"b.yaml", "default:\n  max_probes: 1.5\n", []string{"b.yaml:2: default.max_probes: 1.5 is no whole number"}},
		{"b.yaml", "default:\n  max_probes: \"1\"\n", []string{`b.yaml:2: default.max_probes: "1" is no whole number`}},
		{"b.yaml", "default:\n  max_probes: 99999999999999999999\n", []string{"b.yaml:2: default.max_probes: 99999999999999999999 is no whole number"}},
		{"b.yaml", "default:\n  failure_rate: 50%\n", []string{`b.yaml:2: default.failure_rate: "50%" is no number`}},
		{"b.yaml", "default:\n  shadow: yes\n", []string{`b.yaml:2: default.shadow: "yes" is neither true nor false`}},
		{"b.yaml", "redis:\n  prefix: 7\n", []string{"b.yaml:2: redis.prefix: 7 is no text"}},
		{"b.yaml", "redis: localhost:6379\n", []string{"b.yaml:1: redis: must be a table of fields, not a text"}},
		{"b.yaml", "circuits:\n- stripe\n", []string{"b.yaml:2: circuits: must be a table of fields, not a list"}},
		{"b.yaml", "circuits:\n  stripe: 3\n", []string{"b.yaml:2: circuits.stripe: must be a table of fields, not a number"}},
		{"b.yaml", "- a\n", []string{"b.yaml:1: must be a table of fields, not a list"}},
		{"b.yaml", "on_store_error: open\n", []string{`b.yaml:1: on_store_error: "open" is not one of fail_open, fail_closed, fail_local`}},
		{"b.yaml", "\nstore_timeout: -1s\n", []string{"b.yaml:2: store_timeout: is -1s: must not be negative"}},
		// What a Policy as a whole contradicts.
		{"b.yaml", "default:\n  failure_rate: 50\n", []string{"b.yaml:2: default.failure_rate: is 50: must be within 0 and 1"}},
		{"b.yaml", "default:\n  failure_rate: 50\ncircuits:\n  a: {}\n  b: {min_calls: -1}\n", []string{
			"b.yaml:2: default.failure_rate: is 50: must be within 0 and 1", "b.yaml:5: circuits.b.min_calls: is -1: must be within 0 and 2147483647"}},
		{"b.yaml", "default:\n  max_cooldown: 90s\ncircuits:\n  a:\n    cooldown: 2m\n", []string{
			"b.yaml:4: circuits.a.max_cooldown: is 1m30s: must not be shorter than Cooldown 2m0s"}},
		{"b.yaml", "circuits:\n  'a*':\n    slow_rate: 0.5\n", []string{`b.yaml:2: circuits."a*".slow_after: is 0s: SlowRate 0.5 needs it`}},
		{"b.yaml", "circuits:\n  " + strings.Repeat("k", 1025) + ": {}\n", []string{"b.yaml:2: circuits: a name has 1025 bytes: at most 1024"}},
		// All at once, in the order of the file.
		{"b.yaml", "x: 1\ndefault:\n  cooldown: 30\n  window: 1\ny: 2\n", []string{
			"b.yaml:1: x: unknown field",
			"b.yaml:3: default.cooldown: 30 has no unit; a duration is written as 30s, 1m30s or 100ms",
			"b.yaml:4: default.window: 1 has no unit; a duration is written as 30s, 1m30s or 100ms",
			"b.yaml:5: y: unknown field"}},
		// Names said twice.
		{"b.yaml", "default: {}\ndefault: {}\n", []string{"b.yaml:2: default: is in line 1 already"}},
		{"b.yaml", "circuits:\n  a: {}\n  b: {}\n  a: {}\n", []string{"b.yaml:4: circuits.a: is in line 2 already"}},
		{"b.json", "{\"default\": {\"cooldown\": \"1s\",\n\"cooldown\": \"2s\"}}", []string{"b.json:2: default.cooldown: is in line 1 already"}},
		// Syntax.
		{"b.yaml", "default: {}\n---\ndefault: {}\n", []string{"b.yaml: expected single document, found multiple"}},
		{"b.yaml", "? [a]\n: 1\n", []string{"b.yaml:1: the name of a field must be a text"}},
		{"b.yaml", "a: &a {b: *a}\n", []string{"b.yaml:1: tables or lists lie more than 16 deep"}},
		{"b.json", "{\n\n", []string{"b.json:3: ends too early"}},
		{"b.json", "", []string{"b.json:1: ends too early"}},
		{"b.json", "{}\n{}", []string{"b.json:2: something follows the value"}},
		{"b.json", strings.Repeat("[", 100), []string{"b.json:1: tables or lists lie more than 16 deep"}},
		{"b.json", "{\n \"default\": {\n  \"cooldown\": 30\n }\n}", []string{
			"b.json:3: default.cooldown: 30 has no unit; a duration is written as 30s, 1m30s or 100ms"}},
		{"b.json", "{\"default\":\n{\"cooldown\":\nnull}}", []string{"b.json:2: default.cooldown: nothing is no duration, such as 30s, 1m30s or 100ms"}},
		{"b.toml", "[default]\n\ncooldown = 30\n", []string{
			"b.toml:3: default.cooldown: 30 has no unit; a duration is written as 30s, 1m30s or 100ms"}},
		{"b.toml", "default.cooldown = 2026-11-30\n", []string{`b.toml:1: default.cooldown: "2026-11-30" is no duration, such as 30s, 1m30s or 100ms`}},
		{"b.toml", "\ncircuits = {\"a.b\" = {x = 1}}\n", []string{`b.toml:2: circuits."a.b".x: unknown field`}},
		{"b.toml", "[circuits.\"a.b\"]\nshadow = 1\n", []string{`b.toml:2: circuits."a.b".shadow: 1 is neither true nor false`}},
		{"b.toml", strings.Repeat("a.", 50000) + "b = '1s'", []string{"b.toml:1: tables or lists lie more than 16 deep"}},
		{"b.toml", "[[circuits]]\na = 1\n", []string{"b.toml:1: circuits: must be a table of fields, not a list"}},
		{"b.toml", "[default]\nmax_probes = 1.5\nfailure_rate = nan\n", []string{
			"b.toml:2: default.max_probes: 1.5 is no whole number", "b.toml:3: default.failure_rate: is NaN: must be within 0 and 1"}},
	} {
		_, err := breakerconfig.Parse(c.name, []byte(c.text), nil)
		if assert.Error(t, err, c.text) {
			assert.Equal(t, c.want, problemsOf(t, err), c.text)
		}
	}
}

// The words are those of the parsers, and change with them.
func TestSyntaxErrorsNameTheLine(t *testing.T) {
	for _, c := range []struct{ name, text, at string }{
		{"b.yaml", "default:\n\tcooldown: 30s\n", "b.yaml:2: "},
		{"b.yaml", "default:\n  cooldown: [30s\n", "b.yaml:3: "},
		{"b.yaml", "default: {}\nredis: *none\n", "b.yaml:2: "},
		{"b.yaml", "redis:\n  prefix: \xff\n", "b.yaml: "},
		{"b.json", "{\n\"default\": {,}}", "b.json:2: "},
		{"b.json", "{\n\"default\": {\"cooldown\": 'x'}}", "b.json:2: "},
		{"b.toml", "[default]\ncooldown = \n", "b.toml:2: "},
		{"b.toml", "[default]\ncooldown = '1s'\ncooldown = '2s'", "b.toml:3: "},
	} {
		_, err := breakerconfig.Parse(c.name, []byte(c.text), nil)
		require.Error(t, err, c.text)
		got := problemsOf(t, err)
		require.Len(t, got, 1)
		assert.Regexp(t, "^"+c.at+"[a-z]", got[0], c.text)
	}
}

func TestMistakesNameTheVariable(t *testing.T) {
	const file = "circuits: {a.b: {}, a-b: {}, stripe: {max_cooldown: 90s}}\n"
	for variable, want := range map[string]string{
		"BREAKER_=1":                                                     "BREAKER_: matches no setting",
		"BREAKER_COOLDOWN=30s":                                           "BREAKER_COOLDOWN: matches no setting",
		"BREAKER_DEFAULT_COOLDWN=30s":                                    "BREAKER_DEFAULT_COOLDWN: matches no setting",
		"BREAKER_DEFAULT_cooldown=30s":                                   "BREAKER_DEFAULT_cooldown: matches no setting",
		"BREAKER_REDIS_PASSWORD=x":                                       "BREAKER_REDIS_PASSWORD: matches no setting",
		"BREAKER_CIRCUITS_STRIPE=1":                                      "BREAKER_CIRCUITS_STRIPE: matches no setting",
		"BREAKER_CIRCUITS_COOLDOWN=30s":                                  "BREAKER_CIRCUITS_COOLDOWN: matches no setting",
		"BREAKER_CIRCUITS__COOLDOWN=30s":                                 "BREAKER_CIRCUITS__COOLDOWN: matches no setting",
		"BREAKER_PORT=tcp://10.0.0.1:80":                                 "BREAKER_PORT: matches no setting",
		"BREAKER_STORE_TIMEOUT=soon":                                     `BREAKER_STORE_TIMEOUT: store_timeout: "soon" is no duration, such as 30s, 1m30s or 100ms`,
		"BREAKER_STORE_TIMEOUT":                                          `BREAKER_STORE_TIMEOUT: store_timeout: "" is no duration, such as 30s, 1m30s or 100ms`,
		"BREAKER_DEFAULT_MAX_PROBES=many":                                `BREAKER_DEFAULT_MAX_PROBES: default.max_probes: "many" is no whole number`,
		"BREAKER_DEFAULT_FAILURE_RATE=2":                                 "BREAKER_DEFAULT_FAILURE_RATE: default.failure_rate: is 2: must be within 0 and 1",
		"BREAKER_DEFAULT_SHADOW=1":                                       `BREAKER_DEFAULT_SHADOW: default.shadow: "1" is neither true nor false`,
		"BREAKER_ON_STORE_ERROR=panic":                                   `BREAKER_ON_STORE_ERROR: on_store_error: "panic" is not one of fail_open, fail_closed, fail_local`,
		"BREAKER_CIRCUITS_A_B_COOLDOWN=30s":                              `BREAKER_CIRCUITS_A_B_COOLDOWN: may mean each of the circuits ["a-b" "a.b"]: rename one of them, or set it in the file`,
		"BREAKER_CIRCUITS_STRIPE_COOLDOWN=2m":                            "b.yaml:1: circuits.stripe.max_cooldown: is 1m30s: must not be shorter than Cooldown 2m0s",
		"BREAKER_CIRCUITS_STRIPE_MAX_COOLDOWN=5s":                        "BREAKER_CIRCUITS_STRIPE_MAX_COOLDOWN: circuits.stripe.max_cooldown: is 5s: must not be shorter than Cooldown 1m0s",
		"BREAKER_CIRCUITS_NEW_ONE_SLOW_RATE=1":                           "BREAKER_CIRCUITS_NEW_ONE_SLOW_RATE: circuits.new_one.slow_after: is 0s: SlowRate 1 needs it",
		"BREAKER_CIRCUITS_" + strings.Repeat("K", 1025) + "_COOLDOWN=1s": "BREAKER_CIRCUITS_" + strings.Repeat("K", 1025) + "_COOLDOWN: circuits: a name has 1025 bytes: at most 1024",
	} {
		_, err := breakerconfig.Parse("b.yaml", []byte(file), []string{variable})
		if assert.Error(t, err, variable) {
			assert.Equal(t, []string{want}, problemsOf(t, err), variable)
		}
	}
}

func TestMistakesOfTheFileComeBeforeThoseOfVariables(t *testing.T) {
	_, err := breakerconfig.Parse("b.yaml", []byte("x: 1\n\ny: 1\n"), []string{"BREAKER_B=1", "BREAKER_A=1"})
	assert.Equal(t, []string{"b.yaml:1: x: unknown field", "b.yaml:3: y: unknown field",
		"BREAKER_A: matches no setting", "BREAKER_B: matches no setting"}, problemsOf(t, err))
}
