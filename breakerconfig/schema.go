package breakerconfig

import (
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/breakerkit/breaker"
)

// What a configuration may say, beside policies. The names are those in files.
type topFields struct {
	OnStoreError string        `json:"on_store_error"`
	StoreTimeout time.Duration `json:"store_timeout"`
}

type redisFields struct {
	Address      string        `json:"address"`
	Prefix       string        `json:"prefix"`
	MaxStaleness time.Duration `json:"max_staleness"`
	Settle       time.Duration `json:"settle"`
}

// A schema has the index of each field of a struct, by its name in files.
type schema map[string]int

var (
	topSchema    = schemaOf(reflect.TypeFor[topFields]())
	redisSchema  = schemaOf(reflect.TypeFor[redisFields]())
	policySchema = schemaOf(reflect.TypeFor[breaker.Policy]())
)

func schemaOf(t reflect.Type) schema {
	s := make(schema)
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		s[name] = i
	}
	return s
}

// A setting is one value that somebody set, not yet understood.
type setting struct {
	kind kind
	text string
	at   place
}

// assign sets a field of a struct, or says what is wrong with the value.
func (s setting) assign(to reflect.Value) (problem string) {
	allowed := func(k kind) bool { return s.kind == k || s.kind == variableKind }
	quoted := strconv.Quote(s.text)
	switch {
	case to.Type() == reflect.TypeFor[time.Duration]():
		if s.kind == numberKind {
			return s.text + " has no unit; a duration is written as 30s, 1m30s or 100ms"
		}
		d, err := time.ParseDuration(s.text)
		if err != nil || !allowed(textKind) {
			return s.said(quoted) + " is no duration, such as 30s, 1m30s or 100ms"
		}
		to.SetInt(int64(d))
	case to.Kind() == reflect.Int:
		n, err := strconv.Atoi(s.text)
		if err != nil || !allowed(numberKind) {
			return s.said(quoted) + " is no whole number"
		}
		to.SetInt(int64(n))
	case to.Kind() == reflect.Float64:
		f, err := strconv.ParseFloat(s.text, 64)
		if err != nil || !allowed(numberKind) {
			return s.said(quoted) + " is no number"
		}
		to.SetFloat(f)
	case to.Kind() == reflect.Bool:
		if !allowed(boolKind) || s.text != "true" && s.text != "false" {
			return s.said(quoted) + " is neither true nor false"
		}
		to.SetBool(s.text == "true")
	default:
		if !allowed(textKind) {
			return s.said(quoted) + " is no text"
		}
		to.SetString(s.text)
	}
	return ""
}

// said is what stands there, for people.
func (s setting) said(quoted string) string {
	switch s.kind {
	case nullKind, tableKind, listKind:
		return s.kind.String()
	case numberKind, boolKind:
		return s.text
	}
	return quoted
}
