package processes_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/redistest"
)

const (
	workerEnv = "BREAKER_PROCESS"
	many      = 64 // processes
	calls     = 30 // of each
	patience  = time.Minute
)

var (
	errDependency = errors.New("connection refused")
	policy        = breaker.Policy{ConsecutiveFailures: 5, Cooldown: time.Hour}
)

func TestMain(m *testing.M) {
	if addr := os.Getenv(workerEnv); addr != "" {
		worker(addr)
		return
	}
	os.Exit(m.Run())
}

// A teller is an Observer that says each transition on standard output.
type teller struct{ breaker.NopObserver }

func (teller) Transitioned(t breaker.Transition) { fmt.Println(t.From, ">", t.To) }
func (teller) StoreDegraded(err error)           { fmt.Println("degraded:", err) }

// worker makes calls as soon as its standard input ends, and says what became
// of them.
func worker(addr string) {
	client := redis.NewClient(&redis.Options{Addr: addr, PoolSize: 2})
	b, err := breaker.New(breaker.NewRedisStore(client, breaker.RedisConfig{}),
		breaker.Config{Policy: policy, Observer: teller{}, StoreTimeout: patience, OnStoreError: breaker.FailClosed})
	if err != nil {
		panic(err)
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	ran, rejected := 0, 0
	for range calls {
		err := b.Execute(context.Background(), "dead", func(context.Context) error { ran++; return errDependency })
		if errors.Is(err, breaker.ErrOpen) {
			rejected++
		}
	}
	if err := b.Close(); err != nil {
		panic(err)
	}
	fmt.Println("done", ran, rejected)
}

// All call a dependency that is down, at once, in their first moment: they open
// the circuit once, and tell of it once.
func TestSixtyFourProcessesStartedAtOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	starts := make([]io.Closer, many)
	outs := make([]*bufio.Reader, many)
	for i := range many {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), workerEnv+"="+server.Addr, "GOMAXPROCS=1")
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		limit := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
		t.Cleanup(func() { limit.Stop(); _ = cmd.Process.Kill(); _ = cmd.Wait() })
		starts[i], outs[i] = in, bufio.NewReader(out)
	}
	for _, out := range outs {
		line, err := out.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "ready\n", line)
	}
	for _, in := range starts {
		require.NoError(t, in.Close())
	}
	said := make(map[string]int)
	ran, rejected := 0, 0
	for _, out := range outs {
		text, err := io.ReadAll(out)
		require.NoError(t, err)
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		for _, line := range lines[:len(lines)-1] {
			said[line]++
		}
		var r, no int
		_, err = fmt.Sscanf(lines[len(lines)-1], "done %d %d", &r, &no)
		require.NoError(t, err, "%s", text)
		assert.Equal(t, calls, r+no)
		ran, rejected = ran+r, rejected+no
	}
	assert.Equal(t, map[string]int{"closed > open": 1}, said)
	assert.Positive(t, rejected)
	record, err := server.Client(nil).HGetAll(t.Context(), "breaker:{dead}").Result()
	require.NoError(t, err)
	assert.Equal(t, "1", record["generation"])
	t.Logf("| %d processes at once | %d calls, %d ran before all knew, %d rejected; told %v |", many, many*calls, ran, rejected, said)
}

// A schema is a version of this library that writes records in another way,
// played by what it does to the record after each of its scripts.
type schema struct {
	client *redis.Client // around the hook
	edit   func(c *redis.Client, record string)
}

func (s schema) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s schema) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (s schema) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		args := cmd.Args()
		if strings.HasPrefix(cmd.Name(), "eval") && err == nil && fmt.Sprint(args[2]) == "2" {
			s.edit(s.client, args[3].(string))
		}
		return err
	}
}

// While a fleet is upgraded, processes of several versions share a circuit. One
// knows no field head; one writes fields that this version does not know. Each
// sees what the others do, and nothing that any wrote is lost.
func TestVersionsShareACircuitDuringAnUpgrade(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	ctx := t.Context()
	exists := func(c *redis.Client, record string) bool { return c.Exists(ctx, record).Val() == 1 }
	start := func(edit func(c *redis.Client, record string)) *breaker.Breaker {
		client := server.Client(nil)
		if edit != nil {
			client.AddHook(schema{server.Client(nil), edit})
		}
		b, err := breaker.New(breaker.NewRedisStore(client, breaker.RedisConfig{}), breaker.Config{StoreTimeout: patience,
			Policy: breaker.Policy{ConsecutiveFailures: 4, Cooldown: 50 * time.Millisecond, ProbeSuccesses: 3, MaxProbes: 2}})
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, b.Close()) })
		return b
	}
	older := start(func(c *redis.Client, record string) { c.HDel(ctx, record, "head", "asked_at") })
	newer := start(func(c *redis.Client, record string) {
		if exists(c, record) {
			c.HSet(ctx, record, "version", 2, "mood", "gloomy", "weight", "12.50")
		}
	})
	fleet := []*breaker.Breaker{older, newer, start(nil)}
	fails := func(context.Context) error { return errDependency }
	works := func(context.Context) error { return nil }

	for round := range 10 {
		key := fmt.Sprint("pay-", round)
		for i := range 4 { // one failure of each in turn
			require.Equal(t, errDependency, fleet[i%3].Execute(ctx, key, fails))
		}
		eventually(t, "the circuit is not open to all", func() bool {
			for _, b := range fleet {
				if err := b.Execute(ctx, key, fails); !errors.Is(err, breaker.ErrOpen) && !errors.Is(err, breaker.ErrBusy) {
					return false
				}
			}
			return true
		})
		eventually(t, "the circuit is not closed to all", func() bool {
			for _, b := range fleet {
				if b.Execute(ctx, key, works) != nil {
					return false
				}
				if s, err := b.Snapshot(ctx, key); err != nil || s.State != breaker.StateClosed {
					return false
				}
			}
			return true
		})
		record := server.Client(nil).HGetAll(ctx, "breaker:{"+key+"}").Val()
		assert.Equal(t, "gloomy", record["mood"])
		assert.Equal(t, "12.50", record["weight"])
	}
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(5 * time.Millisecond) {
		require.True(t, time.Now().Before(end), what)
	}
}
