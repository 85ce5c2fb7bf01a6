package storetest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/breakerkit/breaker"
)

// strangeKeys are strings that some store might take for others.
var strangeKeys = []string{
	"", " ", "  ", "a", "A", "a ", " a", "a\n", "a\r\n", "\t", "a\x00", "\x00", "a\x00b",
	"{}", "{", "}", "{{", "}}", "{a}", "{a}b", "a}b{c", "{a}:log", "a:log", "log", "names", "{names}",
	"%", "%25", "%7B", "a%20", "a/b", "a\\b", "*", "?", "[a]", "a,b;c", `"a"`, "'a'", "a'; --", "$1", "null", "0",
	"ключ", "鍵", "é", "e\u0301", "\U0001f511", "\ufeffa", "\xff", "\xfe", "a\xc3", "\xed\xa0\x80",
	strings.Repeat("k", breaker.MaxKeyLength), strings.Repeat("k", breaker.MaxKeyLength-1),
	strings.Repeat("\xff", breaker.MaxKeyLength), strings.Repeat("{", breaker.MaxKeyLength),
}

// Names of circuits.
var keys = []check{
	{"KeysAreIndependentWhateverTheirBytes", func(s *scene) {
		c := s.caller(consecutive(1))
		for i, key := range strangeKeys {
			c = c.on(key)
			if snap := c.snapshot(); snap.State != breaker.StateClosed || snap.LastFailure != nil {
				s.Fatalf("%.40q is already another key's circuit: %s", key, text(snap))
			}
			r := failed
			r.Error = fmt.Sprint("error no. ", i)
			c.opens(r, breaker.CauseConsecutiveFailures)
		}
		for i, key := range strangeKeys {
			c = c.on(key)
			equal(s, fmt.Sprintf("error of %.40q", key), c.is(breaker.StateOpen).LastFailure.Error, fmt.Sprint("error no. ", i))
		}
	}},

	{"KeysListsEachCircuitOnceWithItsVeryBytes", func(s *scene) {
		c := s.caller(consecutive(2))
		as[breaker.Lister](c)
		if got := c.list(); len(got) > 0 {
			s.Errorf("Keys of an empty store: %q", got)
		}
		for i, key := range strangeKeys { // most of them healthy
			c = c.on(key)
			c.calls(2, succeeded)
			if i%5 == 0 {
				c.trip()
			}
		}
		want := slices.Sorted(slices.Values(strangeKeys))
		there := c.elsewhere()
		for _, c := range []*caller{c, there, c} {
			if got := c.list(); !slices.Equal(got, want) {
				s.Errorf("Keys in process %s: %.2000q\nwant %.2000q", c.process, got, want)
			}
		}
		for key, err := range as[breaker.Lister](c).Keys(ctx) { // may be left early
			if err != nil {
				s.Errorf("Keys: %q, %v", key, err)
			}
			break
		}
	}},

	{"KeysListsCircuitsThatWereOnlySteered", func(s *scene) {
		c := s.caller(consecutive(2))
		as[breaker.Lister](c)
		c.on("read").snapshot() // reading one does not make one
		c.on("forced").force(forOpen)
		c.on("reset").reset()
		if got, want := c.list(), []string{"forced", "reset"}; !slices.Equal(got, want) {
			s.Errorf("Keys: %q; want %q", got, want)
		}
	}},
}

// list returns what Keys ranges over, in order.
func (c *caller) list() []string {
	c.Helper()
	var got []string
	for key, err := range as[breaker.Lister](c).Keys(ctx) {
		if err != nil {
			c.Fatalf("Keys: %v", err)
		}
		got = append(got, key)
	}
	slices.Sort(got)
	return got
}
