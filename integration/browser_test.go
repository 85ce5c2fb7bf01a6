package integration_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// limit is for all that one test does in the browser.
const limit = 2 * time.Minute

// A tab is a page of a real browser, headless, that fails its test if the page
// breaks a rule of its own or an error is not caught.
type tab struct {
	t   testing.TB
	ctx context.Context

	mu       sync.Mutex
	messages []string
}

// newTab opens a tab of a browser of its own, in which nothing is stored.
// Without a Chromium on the PATH the test is skipped; with
// BREAKER_REQUIRE_CHROMIUM=1 it fails.
func newTab(t testing.TB, width, height int, flags ...chromedp.ExecAllocatorOption) *tab {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("BREAKER_REQUIRE_CHROMIUM") == "1" {
			t.Fatal("BREAKER_REQUIRE_CHROMIUM=1, but there is no chromium on the PATH")
		}
		t.Skip("no chromium on the PATH: a test in a browser is skipped")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.WindowSize(width, height),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-sync", true), chromedp.NoFirstRun, chromedp.Flag("disable-dev-shm-usage", true))
	ctx, cancelLimit := context.WithTimeout(context.Background(), limit)
	allocated, cancelBrowser := chromedp.NewExecAllocator(ctx, append(options, flags...)...)
	page, cancelPage := chromedp.NewContext(allocated)
	tb := &tab{t: t, ctx: page}
	t.Cleanup(func() {
		cancelPage()
		cancelBrowser()
		cancelLimit()
		tb.mu.Lock()
		defer tb.mu.Unlock()
		assert.Empty(t, tb.messages, "what the browser's console has")
	})
	require.NoError(t, chromedp.Listen(page, tb.listen))
	tb.run(chromedp.EmulateViewport(int64(width), int64(height)))
	return tb
}

// listen collects errors. That a server went away is no error of the page.
func (tb *tab) listen(event any) {
	var text string
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		text = e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			text += " " + e.ExceptionDetails.Exception.Description
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError && e.Entry.Source != log.EntrySourceNetwork {
			text = e.Entry.Text
		}
	}
	if text != "" {
		tb.mu.Lock()
		defer tb.mu.Unlock()
		tb.messages = append(tb.messages, text)
	}
}

func (tb *tab) run(steps ...chromedp.Action[chromedp.Void]) {
	tb.t.Helper()
	if err := chromedp.Do(tb.ctx, steps...); err != nil {
		require.NoError(tb.t, err, "the page shows:\n%s", tb.shows())
	}
}

// shows is all the text one can see on the page, for errors.
func (tb *tab) shows() (text string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.ctx), 5*time.Second)
	defer cancel()
	text, _ = chromedp.Run(ctx, chromedp.Evaluate[string](`document.body.innerText`))
	return text
}

// eval returns what an expression of JavaScript is.
func eval[T any](tb *tab, expression string) T {
	tb.t.Helper()
	v, err := chromedp.Run(tb.ctx, chromedp.Evaluate[T](expression))
	require.NoError(tb.t, err, expression)
	return v
}

// until waits until an expression of JavaScript is true.
func (tb *tab) until(format string, args ...any) {
	tb.t.Helper()
	expression := fmt.Sprintf(format, args...)
	ctx, cancel := context.WithTimeout(tb.ctx, limit/4)
	defer cancel()
	if err := chromedp.Do(ctx, chromedp.Poll[chromedp.Void](expression, chromedp.WithPollingInterval(20*time.Millisecond))); err != nil {
		require.NoError(tb.t, err, "%s; the page shows:\n%s", expression, tb.shows())
	}
}

// press presses keys, as a person without a mouse does.
func (tb *tab) press(keys ...string) {
	tb.t.Helper()
	tb.run(chromedp.KeyEvent(strings.Join(keys, "")))
}

// focused is the text of what has the focus, and its id.
func (tb *tab) focused() string {
	tb.t.Helper()
	return eval[string](tb, `document.activeElement.id + "|" + document.activeElement.innerText`)
}

// do runs JavaScript, whatever its value.
func (tb *tab) do(script string) {
	tb.t.Helper()
	tb.run(chromedp.Evaluate[chromedp.Void](script))
}

// slash presses "/" as a keyboard does: a page that takes it for a command
// keeps it from being typed. press would type it all the same.
func (tb *tab) slash() {
	tb.t.Helper()
	for _, kind := range []input.DispatchKeyEventType{input.DispatchKeyEventTypeKeyDown, input.DispatchKeyEventTypeKeyUp} {
		params := input.DispatchKeyEventParams{Type: kind, Key: "/", Code: "Slash"}
		if kind == input.DispatchKeyEventTypeKeyDown {
			params.Text = "/"
		}
		_, err := chromedp.Call(tb.ctx, input.DispatchKeyEvent, params)
		require.NoError(tb.t, err)
	}
}
