// Package sim replays a trace of calls against a policy, in virtual time.
package sim

import (
	"bufio"
	"cmp"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/breakerkit/breaker"
)

// A Call is one call of a trace, as it went when nothing stopped it.
type Call struct {
	At         time.Time
	Took       time.Duration
	Outcome    breaker.Outcome // Success, Failure or Ignored
	RetryAfter time.Duration
	Key        string
}

// Limits of what a trace may hold.
const (
	MaxCalls = 5_000_000
	maxLine  = 1 << 20
	maxTook  = 24 * time.Hour
)

var earliest, latest = time.Unix(0, 0), time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// fields are what a line may have, by name.
//
//	time         RFC 3339, or Unix seconds with or without a fraction; required
//	outcome      success, failure or ignored
//	status       an HTTP status, in place of an outcome: 5xx and 429 are failures
//	duration     how long the call took: "120ms", or seconds; default 0
//	retry_after  what the server asked for, likewise
//	key          the circuit; default ""
var fields = []string{"time", "outcome", "status", "duration", "retry_after", "key"}

// Read reads a trace: JSON objects, one a line, or CSV with a header. It tells
// the two apart by the first character. The calls come back in order of time.
// Columns, or members, that it does not know are left out of account.
func Read(r io.Reader) ([]Call, error) {
	in := bufio.NewReader(r)
	first, err := firstByte(in)
	if err != nil {
		return nil, fmt.Errorf("the trace is empty, or can't be read: %w", err)
	}
	read := readCSV
	if first == '{' {
		read = readJSON
	}
	calls, err := read(in)
	if err != nil {
		return nil, err
	}
	if len(calls) == 0 {
		return nil, errors.New("the trace has no calls")
	}
	slices.SortStableFunc(calls, func(a, b Call) int { return a.At.Compare(b.At) })
	return calls, nil
}

// firstByte skips a byte-order mark and white space, and peeks.
func firstByte(in *bufio.Reader) (byte, error) {
	for {
		c, _, err := in.ReadRune()
		if err != nil {
			return 0, err
		}
		if c != '\ufeff' && !strings.ContainsRune(" \t\r\n", c) {
			if err := in.UnreadRune(); err != nil {
				return 0, err
			}
			b, err := in.Peek(1)
			if err != nil {
				return 0, err
			}
			return b[0], nil
		}
	}
}

func readCSV(r io.Reader) (calls []Call, err error) {
	in := csv.NewReader(r)
	in.FieldsPerRecord = -1
	in.ReuseRecord = true
	header, err := in.Read()
	if err != nil {
		return nil, fmt.Errorf("line 1: %w", err)
	}
	place := make(map[string]int)
	for i, name := range header {
		name = strings.ToLower(strings.TrimSpace(name))
		if slices.Contains(fields, name) {
			if _, twice := place[name]; twice {
				return nil, fmt.Errorf("line 1: column %q is there twice", name)
			}
			place[name] = i
		}
	}
	if _, ok := place["time"]; !ok {
		return nil, fmt.Errorf("line 1: no column %q; the columns are %s", "time", strings.Join(fields, ", "))
	}
	for {
		record, err := in.Read()
		if errors.Is(err, io.EOF) {
			return calls, nil
		}
		if err != nil {
			return nil, err // names the line
		}
		line, _ := in.FieldPos(0)
		calls, err = add(calls, line, func(name string) string {
			if i, ok := place[name]; ok && i < len(record) {
				if name == "key" {
					return record[i]
				}
				return strings.TrimSpace(record[i])
			}
			return ""
		})
		if err != nil {
			return nil, err
		}
	}
}

func readJSON(r io.Reader) (calls []Call, err error) {
	in := bufio.NewScanner(r)
	in.Buffer(nil, maxLine)
	for line := 1; in.Scan(); line++ {
		if len(strings.TrimSpace(in.Text())) == 0 {
			continue
		}
		var object map[string]any
		d := json.NewDecoder(strings.NewReader(in.Text()))
		d.UseNumber()
		if err := d.Decode(&object); err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		calls, err = add(calls, line, func(name string) string {
			if v, ok := object[name]; ok && v != nil {
				return fmt.Sprint(v)
			}
			return ""
		})
		if err != nil {
			return nil, err
		}
	}
	return calls, in.Err()
}

func add(calls []Call, line int, field func(string) string) ([]Call, error) {
	if len(calls) == MaxCalls {
		return nil, fmt.Errorf("line %d: more than %d calls", line, MaxCalls)
	}
	c, err := parse(field)
	if err != nil {
		return nil, fmt.Errorf("line %d: %w", line, err)
	}
	return append(calls, c), nil
}

func parse(field func(string) string) (c Call, err error) {
	c.Key = strings.Clone(field("key")) // not to keep the whole line
	if len(c.Key) > breaker.MaxKeyLength {
		return c, fmt.Errorf("key has %d bytes: at most %d", len(c.Key), breaker.MaxKeyLength)
	}
	if c.At, err = parseTime(field("time")); err != nil {
		return c, fmt.Errorf("time: %w", err)
	}
	if c.Took, err = parseDuration(field("duration")); err != nil {
		return c, fmt.Errorf("duration: %w", err)
	}
	if c.RetryAfter, err = parseDuration(field("retry_after")); err != nil {
		return c, fmt.Errorf("retry_after: %w", err)
	}
	c.Outcome, err = parseOutcome(field("outcome"), field("status"))
	return c, err
}

func parseTime(text string) (t time.Time, err error) {
	if seconds, numErr := strconv.ParseFloat(text, 64); numErr == nil {
		if !(seconds >= 0 && seconds < float64(latest.Unix())) {
			return t, fmt.Errorf("%.40q is not a time in Unix seconds", text)
		}
		whole, part := math.Modf(seconds)
		t = time.Unix(int64(whole), int64(part*1e9))
	} else if t, err = time.Parse(time.RFC3339, text); err != nil {
		return t, fmt.Errorf("%.40q is neither RFC 3339 nor Unix seconds", text)
	}
	if t.Before(earliest) || !t.Before(latest) {
		return t, fmt.Errorf("%.40q is not between 1970 and 9999", text)
	}
	return t.UTC(), nil
}

func parseDuration(text string) (d time.Duration, err error) {
	if text == "" {
		return 0, nil
	}
	if seconds, numErr := strconv.ParseFloat(text, 64); numErr == nil {
		if !(seconds >= 0 && seconds <= maxTook.Seconds()) {
			return 0, fmt.Errorf("%.40q is not between 0 and %v", text, maxTook)
		}
		return time.Duration(seconds * float64(time.Second)), nil
	}
	if d, err = time.ParseDuration(text); err != nil {
		return 0, fmt.Errorf(`%.40q is neither like "120ms" nor a number of seconds`, text)
	}
	if d < 0 || d > maxTook {
		return 0, fmt.Errorf("%.40q is not between 0 and %v", text, maxTook)
	}
	return d, nil
}

func parseOutcome(outcome, status string) (o breaker.Outcome, err error) {
	switch {
	case outcome != "":
		err = o.UnmarshalText([]byte(strings.ToLower(outcome)))
		if err != nil || o == breaker.Undecided {
			return o, fmt.Errorf("outcome: %.40q is not success, failure or ignored", outcome)
		}
		return o, nil
	case status == "":
		return o, errors.New("neither an outcome nor a status")
	}
	code, err := strconv.Atoi(status)
	if err != nil || code < 100 || code > 599 {
		return o, fmt.Errorf("status: %.40q is not an HTTP status", status)
	}
	v := breaker.HTTPClassifier{}.Classify(&breaker.StatusError{Code: code})
	return cmp.Or(v.Outcome, breaker.Success), nil
}
