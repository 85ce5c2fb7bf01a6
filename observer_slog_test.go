package breaker_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakertest"
)

// logLines are the lines of a log, read once nobody writes to it any more.
func logLines(t *testing.T, log *bytes.Buffer) (lines []map[string]any) {
	t.Helper()
	synctest.Wait()
	for each := range bytes.Lines(log.Bytes()) {
		var line map[string]any
		require.NoError(t, json.Unmarshal(each, &line))
		delete(line, "time")
		lines = append(lines, line)
	}
	log.Reset()
	return lines
}

func jsonLogger(level slog.Level) (*slog.Logger, *bytes.Buffer) {
	log := new(bytes.Buffer)
	return slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: level})), log
}

func TestTheLogObserverWritesTransitionsAndRejections(t *testing.T) {
	memoryBubble(t, func(t *testing.T, join join) {
		logger, log := jsonLogger(slog.LevelDebug)
		b := join(breaker.Config{Instance: "web-1", Observer: breaker.NewLogObserver(logger)})
		trip(t, b, "stripe", 5)
		requireRejected(t, execute(b, "stripe", nil), breaker.ErrOpen)
		opened := logLines(t, log)
		require.Len(t, opened, 2)
		byMessage := map[any]map[string]any{opened[0]["msg"]: opened[0], opened[1]["msg"]: opened[1]}
		assert.Equal(t, map[string]any{
			"level": "WARN", "msg": "breaker: circuit open", "key": "stripe", "from": "closed",
			"cause": "consecutive_failures", "generation": 1.0, "instance": "web-1", "consecutive_failures": 5.0,
			"retry_at": snapshotOf(t, b, "stripe").RetryAt.Format(time.RFC3339Nano),
		}, byMessage["breaker: circuit open"])
		assert.Equal(t, map[string]any{
			"level": "DEBUG", "msg": "breaker: call rejected", "key": "stripe", "state": "open",
			"retry_after": float64(time.Minute), "last_error": "connection refused",
		}, byMessage["breaker: call rejected"])

		time.Sleep(time.Minute)
		executeN(t, b, "stripe", 1, nil)
		recovered := logLines(t, log)
		require.Len(t, recovered, 2)
		for i, message := range []string{"breaker: circuit half-open", "breaker: circuit closed"} {
			assert.Equal(t, message, recovered[i]["msg"])
			assert.Equal(t, "INFO", recovered[i]["level"])
			assert.NotContains(t, recovered[i], "retry_at")
		}
	})
}

func TestTheLogObserverCountsTheWindowWhereThereIsOne(t *testing.T) {
	memoryBubble(t, func(t *testing.T, join join) {
		logger, log := jsonLogger(slog.LevelInfo)
		b := join(breaker.Config{Policy: breaker.Policy{FailureRate: 0.5, MinCalls: 4}, Observer: breaker.NewLogObserver(logger)})
		executeN(t, b, "k", 2, nil)
		trip(t, b, "k", 2)
		lines := logLines(t, log)
		require.Len(t, lines, 1)
		assert.Equal(t, "failure_rate", lines[0]["cause"])
		assert.EqualValues(t, 4, lines[0]["window_calls"])
		assert.EqualValues(t, 2, lines[0]["window_failures"])
	})
}

// Whether the Breaker or the Observer logs an outage, there is one line for
// each end of it.
func TestAnOutageIsLoggedOnce(t *testing.T) {
	for name, observe := range map[string]func(*slog.Logger) breaker.Observer{
		"no observer": func(*slog.Logger) breaker.Observer { return nil },
		"another":     func(*slog.Logger) breaker.Observer { return breaker.NopObserver{} },
		"the log's":   breaker.NewLogObserver,
		"the log's, too": func(l *slog.Logger) breaker.Observer {
			return breaker.Observers(new(hearing), breaker.NewLogObserver(l))
		},
		"within a joined": func(l *slog.Logger) breaker.Observer {
			return breaker.Observers(breaker.Observers(breaker.NewLogObserver(l)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				logger, log := jsonLogger(slog.LevelInfo)
				store := breakertest.NewFlakyStore(nil)
				b := newBreaker(t, store, breaker.Config{Logger: logger, Observer: observe(logger)})
				store.Fail(errors.New("no route"))
				executeN(t, b, "k", 1, nil)
				store.Recover()
				time.Sleep(3 * time.Second)
				executeN(t, b, "k", 1, nil)
				assert.Equal(t, []map[string]any{
					{"level": "WARN", "msg": "breaker: store degraded", "error": "no route"},
					{"level": "INFO", "msg": "breaker: store recovered", "down": float64(3 * time.Second)},
				}, logLines(t, log))
			})
		})
	}
}

func TestTheLogObserverCostsNothingBelowItsLevel(t *testing.T) {
	logger, log := jsonLogger(slog.LevelError)
	o := breaker.NewLogObserver(logger)
	rejected := &breaker.RejectedError{Key: "k", State: breaker.StateOpen}
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		o.CallDone("k", breaker.Failure, time.Second)
		o.Rejected("k", rejected)
		o.Transitioned(breaker.Transition{Key: "k", To: breaker.StateOpen})
	}))
	assert.Zero(t, log.Len())
}

func TestTheLogObserverOfNoLoggerWritesToTheDefault(t *testing.T) {
	logger, log := jsonLogger(slog.LevelInfo)
	before := slog.Default()
	slog.SetDefault(logger)
	defer slog.SetDefault(before)
	breaker.NewLogObserver(nil).Transitioned(breaker.Transition{Key: "k", To: 7})
	assert.Contains(t, log.String(), "circuit changed")
}

func ExampleNewLogObserver() {
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr { // leave out what differs each time
			if a.Key == slog.TimeKey || a.Key == "retry_at" {
				return slog.Attr{}
			}
			return a
		},
	}))
	b, err := breaker.New(breaker.NewMemoryStore(breaker.MemoryConfig{}), breaker.Config{
		Policy: breaker.Policy{ConsecutiveFailures: 1}, Observer: breaker.NewLogObserver(logger), Instance: "web-1",
	})
	if err != nil {
		panic(err)
	}
	_ = execute(b, "stripe", errDown)
	_ = b.Close() // brings the last notices
	// Output:
	// level=WARN msg="breaker: circuit open" key=stripe from=closed cause=consecutive_failures generation=1 instance=web-1 consecutive_failures=1
}
