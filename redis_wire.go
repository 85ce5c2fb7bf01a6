package breaker

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// How a RedisStore speaks: its scripts, the names of its keys, and what goes
// over the wire. Whatever a server answers, reading it is an error at worst.

//go:embed lua/circuit.lua
var luaCircuit string

//go:embed lua/acquire.lua
var luaAcquire string

//go:embed lua/report.lua
var luaReport string

//go:embed lua/hear.lua
var luaHear string

//go:embed lua/control.lua
var luaControl string

//go:embed lua/read.lua
var luaRead string

//go:embed lua/names.lua
var luaNames string

//go:embed lua/prove.lua
var luaProve string

type script struct{ source, sha string }

type scripts struct{ acquire, report, hear, control, read, names, prove script }

var luaScripts = newScripts(func(source string) string { return source })

// newScripts returns the scripts as edit makes them; tests put another clock in.
func newScripts(edit func(string) string) scripts {
	of := func(source string) script {
		source = edit(source)
		sum := sha1.Sum([]byte(source))
		return script{source, hex.EncodeToString(sum[:])}
	}
	return scripts{
		acquire: of(luaCircuit + luaAcquire), report: of(luaCircuit + luaReport),
		hear: of(luaCircuit + luaHear), control: of(luaCircuit + luaControl),
		read: of(luaRead), names: of(luaNames), prove: of(luaProve),
	}
}

// onceCmd is a command that the client must not send a second time: a reply
// that was lost says nothing about whether the script ran.
type onceCmd struct{ *redis.Cmd }

func (onceCmd) NoRetry() bool { return true }

// run runs a script by its hash, and in full where the server does not know
// it: that loads it, and a server that says so again has failed.
func (s *RedisStore) run(ctx context.Context, sc script, keys []string, args []any) (any, error) {
	reply, err := s.eval(ctx, "evalsha", sc.sha, keys, args)
	if err != nil && strings.Contains(err.Error(), "NOSCRIPT") {
		return s.eval(ctx, "eval", sc.source, keys, args)
	}
	return reply, err
}

// texts runs a script whose reply is a list of texts.
func (s *RedisStore) texts(ctx context.Context, sc script, keys []string, args []any) ([]string, error) {
	reply, err := s.run(ctx, sc, keys, args)
	return textsOf(reply), err
}

func (s *RedisStore) eval(ctx context.Context, name, script string, keys []string, args []any) (reply any, err error) {
	defer clientPanicked(&err)
	words := make([]any, 0, 3+len(keys)+len(args))
	words = append(words, name, script, len(keys))
	for _, key := range keys {
		words = append(words, key)
	}
	cmd := onceCmd{redis.NewCmd(ctx, append(words, args...)...)}
	cmd.SetFirstKeyPos(3)
	_ = s.client.Process(ctx, cmd) // the error is the command's
	reply, err = cmd.Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, recordError(err)
	}
	return reply, nil
}

// clientPanicked turns a panic of the client, which some garbled replies make
// it do, into an error.
func clientPanicked(err *error) {
	if v := recover(); v != nil {
		*err = fmt.Errorf("breaker: redis: the client panicked: %v", v)
	}
}

// errRecord marks an error that is of one circuit's record alone; the store
// may be well.
var errRecord = errors.New("unreadable record")

func recordError(err error) error {
	if strings.Contains(err.Error(), "WRONGTYPE") {
		return fmt.Errorf("%w: %w", errRecord, err)
	}
	return err
}

func garbled(op string, reply []string) error {
	return fmt.Errorf("breaker: redis: %s got a reply it can't read: %.100q", op, reply)
}

// keys are the names of a circuit's record and history. What stands between
// the braces is never empty and has no brace, so that both are in one slot. They
// share their memory, for as long as a process remembers the circuit.
func (s *RedisStore) keys(key string) []string {
	history := s.prefix + "{" + escape(key) + "}:log"
	return []string{strings.TrimSuffix(history, ":log"), history}
}

// keyOf is the key of a circuit whose record has that name.
func (s *RedisStore) keyOf(record string) (key string, ok bool) {
	name, ok := strings.CutPrefix(record, s.prefix+"{")
	if name, ok2 := strings.CutSuffix(name, "}"); ok && ok2 {
		if name == "%" {
			return "", true
		}
		key, err := url.PathUnescape(name)
		return key, err == nil
	}
	return "", false
}

// escape writes s so that it has no brace, blank or control character, and is
// not empty; different strings stay different.
func escape(s string) string {
	if s == "" {
		return "%"
	}
	return strings.ReplaceAll(url.PathEscape(s), "%2F", "/")
}

// args are the arguments that every script of a circuit begins with. They take
// the ledger's tallies as told.
func (s *RedisStore) args(ctx context.Context, p *Policy, l *ledger, id string) []any {
	e := l.evidence(s.process, s.now())
	since := int64(-1)
	if e.HasSucceeded {
		since = e.SinceSuccess.Milliseconds()
	}
	var tallies strings.Builder
	for _, t := range e.Tallies {
		fmt.Fprintf(&tallies, "%d,%d;", t.Age.Milliseconds(), t.Calls)
	}
	args := make([]any, 0, 16)
	return append(args, policyArg(p),
		strconv.FormatInt(millis(s.settle), 10)+","+strconv.FormatFloat(s.jitter(), 'f', -1, 64),
		InstanceOf(ctx), e.Process,
		fmt.Sprintf("%d,%d,%d", e.Generation, e.Streak, since), tallies.String(), id)
}

// policyArg writes the numbers of p that the scripts use, in their order.
func policyArg(p *Policy) string {
	b := make([]byte, 0, 128)
	ints := func(ns ...int64) {
		for _, n := range ns {
			b = append(strconv.AppendInt(b, n, 10), ',')
		}
	}
	floats := func(fs ...float64) {
		for _, f := range fs {
			b = append(strconv.AppendFloat(b, f, 'f', -1, 64), ',')
		}
	}
	ints(int64(p.ConsecutiveFailures), int64(p.WindowFailures))
	floats(p.FailureRate, p.SlowRate)
	ints(millis(p.SlowAfter), int64(p.MinCalls), millis(p.Window), millis(p.Cooldown), millis(p.MaxCooldown))
	floats(p.CooldownJitter)
	ints(int64(p.MaxProbes), int64(p.ProbeSuccesses), millis(p.ProbeLease))
	return string(b)
}

// A head is what a call on a healthy circuit needs to know of it.
type head struct {
	closed     bool // closed, with no override and no rule about to settle
	recorded   bool
	generation uint64
	streak     uint64 // when it began; 0: none
	leases     string
}

// headCommand reads a head: the scripts keep it in one field, since each further
// one costs. The others tell a record that has lost its head, which the script
// mends, from no record. It is put together here since HMGet has an allocation
// for each field.
func headCommand(ctx context.Context, record string) *redis.SliceCmd {
	return redis.NewSliceCmd(ctx, "hmget", record, "head", "state", "version")
}

// head reads a circuit's head.
func (s *RedisStore) head(ctx context.Context, record string) (head, error) {
	cmd := headCommand(ctx, record)
	_ = s.client.Process(ctx, cmd) // headOf finds its error in cmd
	return headOf(cmd)
}

// headOf reads the reply to a headCommand. A head is "run" or "ask",
// the generation, when the streak began and the leases, with blanks between.
func headOf(cmd *redis.SliceCmd) (head, error) {
	fields, err := cmd.Result()
	if err != nil {
		return head{}, recordError(err)
	}
	f := textsOf(fields)
	if len(f) != 3 {
		return head{}, garbled("acquire", f)
	}
	h := parseHead(f[0])
	h.recorded = f[0] != "" || f[1] != "" || f[2] != ""
	h.closed = h.closed || !h.recorded
	return h, nil
}

// parseHead reads a head. What is none is of a circuit that is not known to be
// closed.
func parseHead(text string) (h head) {
	part := strings.SplitN(text, " ", 4)
	if len(part) == 4 {
		h.closed, h.leases = part[0] == "run", part[3]
		h.generation, h.streak = uint64(recordInt(part[1])), uint64(recordInt(part[2]))
	}
	return h
}

// view is what calls act on after a head; nil where the script must decide.
func (h *head) view(sent time.Time) *view {
	if !h.closed {
		return nil
	}
	return &view{verdict: verdictRun, generation: h.generation, streak: h.streak, read: sent}
}

// load reads a circuit, and the server's time.
func (s *RedisStore) load(ctx context.Context, key string) (*Circuit, time.Time, error) {
	reply, err := s.run(ctx, s.scripts.read, s.keys(key)[:1], nil)
	if err != nil {
		return nil, time.Time{}, err
	}
	parts, _ := reply.([]any)
	if len(parts) != 2 {
		return nil, time.Time{}, garbled("snapshot", textsOf(reply))
	}
	clock, fields := textsOf(parts[0]), textsOf(parts[1])
	if len(clock) != 2 {
		return nil, time.Time{}, garbled("snapshot", clock)
	}
	now := time.UnixMilli(parseInt(clock[0])*1000 + parseInt(clock[1])/1000).UTC()
	record := make(map[string]string, len(fields)/2)
	for i := 0; i+1 < len(fields); i += 2 {
		record[fields[i]] = fields[i+1]
	}
	return decodeCircuit(record), now, nil
}

// decodeCircuit reads a record. What is missing or unreadable counts as never set.
func decodeCircuit(f map[string]string) *Circuit {
	int64Of := func(name string) int64 { return recordInt(f[name]) }
	intOf := func(name string) int { return int(recordInt(f[name])) }
	c := &Circuit{
		State: stateOf(f["state"]), Generation: uint64(int64Of("generation")), ChangedAt: int64Of("changed_at"),
		Streak: intOf("streak"), StreakSince: int64Of("streak_since"),
		Counted: Window{By: f["window_by"]}, RetryHint: int64Of("retry_hint"), MetAt: int64Of("met_at"), AskedAt: int64Of("asked_at"),
		OpenedAt: int64Of("opened_at"), RetryAt: int64Of("retry_at"), Reopens: intOf("reopens"),
		ProbeSuccesses: intOf("probe_successes"),
	}
	const digits = 13 // of one failure's time
	for t := f["failures"]; len(t) >= digits; t = t[digits:] {
		c.Counted.Failures = append(c.Counted.Failures, parseInt(t[:digits]))
	}
	for _, part := range strings.Split(f["window"], ";") {
		if n := strings.Split(part, ","); len(n) == 4 {
			c.Counted.Buckets = append(c.Counted.Buckets, Bucket{
				parseInt(n[0]), int(parseInt(n[1])), int(parseInt(n[2])), int(parseInt(n[3]))})
		}
	}
	for _, part := range strings.Split(f["leases"], ";") {
		if owner, until, ok := strings.Cut(part, ","); ok {
			c.Leases = append(c.Leases, Lease{owner, parseInt(until)})
		}
	}
	if at := int64Of("last_failure_at"); at > 0 {
		c.LastFailure = &Event{At: timeOf(at), Kind: EventFailure, Outcome: Failure,
			Error: f["last_error"], Instance: f["last_instance"]}
	}
	if isOverride(f["override"]) {
		c.Override = &Override{State: stateOf(f["override"]), Until: timeOf(int64Of("override_until")),
			Reason: f["override_reason"], By: f["override_by"]}
	}
	return c
}

func (s *RedisStore) transition(reply []string, key, instance string) *Transition {
	if len(reply) == 0 || reply[0] == "" {
		return nil
	}
	t := decodeTransition(reply[0], key, instance)
	return &t
}

// decodeTransition reads from, to, generation, at, cause, retry_at and the
// counts, as transition of circuit.lua writes them.
func decodeTransition(text, key, instance string) Transition {
	f := strings.Split(text, ",")
	for len(f) < 11 {
		f = append(f, "")
	}
	n := func(i int) int { return int(parseInt(f[i])) }
	return Transition{
		Key: key, Instance: instance, From: stateOf(f[0]), To: stateOf(f[1]),
		Generation: parseUint(f[2]), At: timeOf(parseInt(f[3])), Cause: f[4], RetryAt: timeOf(parseInt(f[5])),
		Counts: Counts{ConsecutiveFailures: n(6), WindowCalls: n(7), WindowFailures: n(8), WindowSlow: n(9), ProbeSuccesses: n(10)},
	}
}

// decodeEvent reads a line of the history.
func decodeEvent(line, key string) (Event, bool) {
	var raw struct {
		At, Till                    int64 `json:",string"`
		Kind                        EventKind
		Error, Instance, By, Reason string
		Outcome, State, Transition  string
	}
	if err := json.Unmarshal([]byte(line), &raw); err != nil {
		return Event{}, false
	}
	e := Event{At: timeOf(raw.At), Kind: raw.Kind, Error: raw.Error, Instance: raw.Instance, By: raw.By}
	if raw.Outcome != "" && e.Outcome.UnmarshalText([]byte(raw.Outcome)) != nil {
		return Event{}, false
	}
	if raw.Transition != "" {
		t := decodeTransition(raw.Transition, key, raw.Instance)
		e.Transition = &t
	}
	if raw.State != "" {
		e.Override = &Override{State: stateOf(raw.State), Until: timeOf(raw.Till), Reason: raw.Reason, By: raw.By}
	}
	return e, true
}

// recordInt reads a number of a record, as circuit.lua does: at most fifteen
// digits and nothing else.
func recordInt(s string) int64 {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || len(s) > 15 {
		return 0
	}
	return int64(n)
}

// isOverride reports whether a record's override is one.
func isOverride(s string) bool { return s == "open" || s == "closed" }

// stateOf reads a state; what is none of them counts as closed.
func stateOf(text string) State {
	var s State
	_ = s.UnmarshalText([]byte(text)) // closed is what it leaves
	return s
}

// textsOf reads a reply of strings and integers; anything else in it is empty.
func textsOf(reply any) []string {
	parts, ok := reply.([]any)
	if !ok {
		return nil
	}
	texts := make([]string, len(parts))
	for i, part := range parts {
		switch v := part.(type) {
		case string:
			texts[i] = v
		case int64:
			texts[i] = strconv.FormatInt(v, 10)
		}
	}
	return texts
}

// parseInt reads an integer; anything else is 0, and one too large for what is
// done with it is the largest that is not.
func parseInt(s string) int64 {
	const most = math.MaxInt64 / int64(time.Millisecond)
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0
	}
	return min(max(n, -most), most)
}

func parseUint(s string) uint64 { return uint64(max(parseInt(s), 0)) }
