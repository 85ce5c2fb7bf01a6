package main

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/redistest"
)

const patience = 30 * time.Second

// start runs a command that goes on until ctx ends or it is told to stop.
func (c ctl) start(ctx context.Context, in io.Reader, args ...string) (out *screen, ended chan int) {
	out, ended = new(screen), make(chan int, 1)
	go func() {
		ended <- run(ctx, args, terminal{in, out, out, func(name string) string { return c.env[name] }})
	}()
	return out, ended
}

func requireEnds(t *testing.T, ended chan int, out *screen) {
	t.Helper()
	select {
	case code := <-ended:
		require.Equal(t, exitDone, code, out.String())
	case <-time.After(patience):
		require.Fail(t, "it does not end")
	}
}

// The whole program, with its keyboard and its screen: it shows a circuit that
// opens, holds it closed when told to, and ends.
func TestWatchShowsAndSteersLive(t *testing.T) {
	server := redistest.Start(t)
	c, b := on(t, server), fleet(t, server.Client(nil))
	calls(b, 5, "stripe", errDown)
	keyboard, press := io.Pipe()
	defer press.Close()
	out, ended := c.start(t.Context(), keyboard, "watch", "--interval", "100ms", "--by", "ann")
	typed := func(keys string) {
		_, err := io.WriteString(press, keys)
		require.NoError(t, err)
	}
	shows := func(text string) {
		t.Helper()
		require.Eventually(t, func() bool { return strings.Contains(out.String(), text) }, patience, 20*time.Millisecond, text)
	}
	shows("stripe")
	typed("c")
	shows("hold closed")
	typed("y")
	require.Eventually(t, func() bool {
		s, err := b.Snapshot(bg, "stripe")
		return err == nil && s.Override != nil && s.Override.State == breaker.StateClosed && s.Override.By == "ann"
	}, patience, 20*time.Millisecond)
	typed("q")
	requireEnds(t, ended, out)
}

// model is a watch screen over a memory store, as if read once.
func model(t *testing.T) (*watch, *breaker.Breaker) {
	t.Helper()
	b, err := breaker.New(breaker.NewMemoryStore(breaker.MemoryConfig{}), breaker.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, b.Close()) })
	calls(b, 1, "apple", nil)
	calls(b, 1, "pear", nil)
	calls(b, 5, "stripe", errDown)
	m := &watch{ctx: bg, b: b, who: "ann", interval: time.Second, all: true}
	m.Update(tea.WindowSizeMsg{Width: 80, Height: 40})
	m.Update(m.read())
	return m, b
}

func (m *watch) typed(keys ...string) (last tea.Cmd) {
	for _, key := range keys {
		last = m.press(key, key)
	}
	return last
}

// plain is the screen without colours.
func (m *watch) plain() string {
	return regexp.MustCompile("\x1b\\[[0-9;]*m").ReplaceAllString(m.screen(time.Now()), "")
}

func TestTheWatchScreen(t *testing.T) {
	m, b := model(t)
	screen := m.plain()
	assert.Contains(t, screen, "3 circuits: 1 open, 0 half-open, 2 closed")
	assert.Less(t, strings.Index(screen, "stripe"), strings.Index(screen, "apple"), "those not closed come first")
	assert.Contains(t, screen, "connection refused", "details of the chosen one")

	m.typed("down", "j", "down", "up")
	assert.Equal(t, "apple", m.chosen)
	m.typed("a")
	assert.NotContains(t, m.plain(), "apple")
	m.typed("a", "/", "p", "e", "a", "x", "backspace", "enter")
	assert.Contains(t, m.plain(), "pear")
	assert.NotContains(t, m.plain(), "stripe")

	require.Nil(t, m.typed("o", "n"), "not confirmed")
	assert.Empty(t, m.asked)
	steps := m.typed("o", "y")
	m.Update(steps())
	assert.Contains(t, m.plain(), "done: hold open pear")
	snapshot, err := b.Snapshot(bg, "pear")
	require.NoError(t, err)
	assert.Equal(t, "ann", snapshot.Override.By)
	m.Update(m.typed("x", "y")())
	assert.Contains(t, m.plain(), "done: let go of pear")

	m.typed("/", "esc")
	m.Update(m.read())
	m.Update(m.typed("k", "k", "k", "r", "y")())
	assert.Equal(t, breaker.StateClosed, must(b.Snapshot(bg, "stripe")).State)
	assert.NotNil(t, m.typed("q"))
}

func must(s breaker.Snapshot, _ error) breaker.Snapshot { return s }

func TestTheWatchScreenFitsAnyWindow(t *testing.T) {
	m, b := model(t)
	for i := range 100 {
		calls(b, 5, strings.Repeat("long", i), errDown)
	}
	m.Update(m.read())
	for _, size := range []tea.WindowSizeMsg{{Width: 20, Height: 5}, {Width: 200, Height: 50}, {Width: 1, Height: 1}, {}} {
		m.Update(size)
		lines := strings.Split(m.plain(), "\n")
		if size.Height > 4 {
			assert.LessOrEqual(t, len(lines), size.Height)
		}
		for _, line := range lines {
			if size.Width > 0 {
				assert.LessOrEqual(t, len([]rune(line)), size.Width)
			}
		}
	}
	for range 200 {
		m.typed("down")
	}
	m.Update(tea.WindowSizeMsg{Width: 80, Height: 40})
	assert.Contains(t, m.plain(), "pear", "the last one is in view")
}

func TestWatchKeepsWhatItReadLastWhileTheStoreFails(t *testing.T) {
	m, _ := model(t)
	m.Update(readMsg{err: breaker.ErrStore, at: time.Now()})
	assert.Contains(t, m.plain(), "stripe")
	assert.Contains(t, m.plain(), "store failed")
	m.readAt = time.Now().Add(-time.Minute)
	assert.Contains(t, m.plain(), "as of 1m0s ago")
}

func TestServeIsTheDashboardOfTheFleet(t *testing.T) {
	server := redistest.Start(t)
	c, b := on(t, server), fleet(t, server.Client(nil))
	c.env["BREAKER_ADMIN_TOKEN"] = "t0ken"
	calls(b, 5, "stripe", errDown)
	require.NoError(t, b.Close())
	ctx, stop := context.WithCancel(t.Context())
	out, ended := c.start(ctx, nil, "serve", "--listen", "127.0.0.1:0")
	require.Eventually(t, func() bool { return strings.Contains(out.String(), "serving on ") }, patience, 20*time.Millisecond)
	addr := strings.TrimSpace(strings.TrimPrefix(out.String(), "serving on "))
	get := func(token string) (int, string) {
		req, err := http.NewRequest(http.MethodGet, "http://"+addr+"/api/v1/circuit-breakers", nil)
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(body)
	}
	code, body := get("t0ken")
	assert.Equal(t, http.StatusOK, code)
	assert.Contains(t, body, "stripe")
	code, body = get("guessed")
	assert.Equal(t, http.StatusUnauthorized, code)
	assert.NotContains(t, body, "stripe")
	stop()
	requireEnds(t, ended, out)
	assert.NotContains(t, out.String(), "t0ken")
}
