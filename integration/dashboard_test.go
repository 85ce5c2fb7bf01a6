package integration_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/admin"
)

const token = "a-token-for-tests"

// A site is a service with its dashboard under /ops/breakers/.
type site struct {
	b      *breaker.Breaker
	server *httptest.Server
	url    string
}

func newSite(t testing.TB, cfg admin.Config) site {
	t.Helper()
	feed := new(admin.Feed)
	silent := slog.New(slog.DiscardHandler)
	b, err := breaker.New(breaker.NewMemoryStore(breaker.MemoryConfig{}), breaker.Config{
		Observer: feed, Logger: silent, Instance: "web-1:4711", StoreTimeout: 30 * time.Second,
		Policies: map[string]breaker.Policy{
			"payments": {ConsecutiveFailures: 5, Cooldown: 10 * time.Minute},
			// These are open no longer than a test can wait.
			"stripe": {ConsecutiveFailures: 5, WindowFailures: 20, Window: time.Minute, Cooldown: 400 * time.Millisecond},
			"stock":  {ConsecutiveFailures: 5, Cooldown: 100 * time.Millisecond, MaxProbes: 2, ProbeSuccesses: 3},
		},
	})
	require.NoError(t, err)
	cfg.Feed, cfg.Logger = feed, silent
	h := admin.New(b, cfg)
	mux := http.NewServeMux()
	mux.Handle("/ops/breakers/", h)
	server := httptest.NewServer(mux)
	t.Cleanup(func() {
		h.Close()
		server.Close()
		assert.NoError(t, b.Close())
	})
	return site{b, server, server.URL + "/ops/breakers/"}
}

func (s site) fail(key, text string, n int) {
	for range n {
		_ = s.b.Execute(context.Background(), key, func(context.Context) error { return errors.New(text) })
	}
}

func (s site) succeed(keys ...string) {
	for _, key := range keys {
		_ = s.b.Execute(context.Background(), key, func(context.Context) error { return nil })
	}
}

// signedIn opens the dashboard and signs in by keyboard.
func signedIn(t testing.TB, s site, width, height int) *tab {
	t.Helper()
	tb := newTab(t, width, height)
	tb.run(chromedp.Navigate(s.url))
	tb.until(`document.activeElement.id === "token"`)
	tb.press(token, kb.Enter)
	tb.until(`document.getElementById("live").dataset.live === "on"`)
	return tb
}

// rows is a JavaScript expression: the rows' texts, in their order.
const rows = `[...document.querySelectorAll("#circuits .row")].map(r => r.innerText.replace(/\s+/g, " ").trim())`

func TestTheTokenIsAskedFor(t *testing.T) {
	t.Parallel() // it waits more than it works
	s := newSite(t, admin.Config{Token: token})
	s.succeed("payments")
	tb := newTab(t, 1200, 800)
	tb.run(chromedp.Navigate(s.url))
	tb.until(`document.activeElement.id === "token"`)
	tb.press("wrong", kb.Enter)
	tb.until(`document.getElementById("sign-in-error").innerText.includes("not valid")`)
	assert.NotContains(t, tb.shows(), "payments")
	tb.press(token, kb.Enter)
	tb.until(rows + `.length === 1`)
	assert.Equal(t, token, eval[string](tb, `sessionStorage.getItem("breaker-token")`))
	assert.Empty(t, eval[string](tb, `document.cookie + JSON.stringify(localStorage).replace("{}", "")`), "nowhere else")
	tb.run(chromedp.Click("#sign-out"))
	tb.until(`document.activeElement.id === "token" && sessionStorage.length === 0`)
	assert.NotContains(t, tb.shows(), "payments")
}

func TestThePageLivesWithoutReload(t *testing.T) {
	t.Parallel() // it waits more than it works
	s := newSite(t, admin.Config{Token: token})
	s.succeed("a-mail", "payments")
	tb := signedIn(t, s, 1200, 800)
	tb.until(rows + `.length === 2 && document.getElementById("verdict").innerText === "All 2 circuits are healthy"`)
	tb.do(`window.notReloaded = true`)

	s.fail("payments", "connection refused", 3)
	tb.until(rows + `.some(r => r.startsWith("Healthy payments") && r.includes("3 of 5 failures in a row"))`)
	s.fail("payments", "connection refused", 2)
	tb.until(rows + `[0].startsWith("Open payments connection refused 5 of 5 failures in a row")`) // before a-mail
	tb.until(`document.getElementById("verdict").innerText === "1 circuit is open"`)
	tb.until(`document.getElementById("announcer").textContent === "payments: Open"`) // what a screen reader says
	tb.until(`document.title.startsWith("(1 open)")`)
	assert.Regexp(t, `^Open, payments connection refused, 5 of 5 failures in a row, next probe at \d\d:\d\d:\d\d$`,
		eval[string](tb, `document.querySelector("#circuits .row").getAttribute("aria-label")`))
	countdown := eval[string](tb, `document.querySelector("#circuits [data-until]").innerText`)
	assert.Regexp(t, `^(10:00|9:\d\d)$`, countdown)
	tb.until(`document.querySelector("#circuits [data-until]").innerText !== %q`, countdown)

	s.succeed("new-one")
	tb.until(rows + `.length === 3`)
	require.NoError(t, s.b.Reset(t.Context(), "payments"))
	tb.until(`document.getElementById("verdict").innerText === "All 3 circuits are healthy"`)
	assert.True(t, eval[bool](tb, `window.notReloaded`))
}

// A stream that breaks is begun again, and what happened meanwhile is shown.
func TestThePageComesBackAfterABreak(t *testing.T) {
	t.Parallel() // it waits more than it works
	s := newSite(t, admin.Config{Token: token})
	s.succeed("payments")
	tb := signedIn(t, s, 1200, 800)
	tb.until(rows + `.length === 1`)
	tb.do(`window.said = []; new MutationObserver(() => said.push(document.getElementById("live-text").innerText)).observe(document.getElementById("live"), {childList: true, subtree: true})`)
	s.server.CloseClientConnections()
	s.fail("payments", "connection refused", 5)
	tb.until(`said.join().includes("Reconnecting…,Live")`)
	tb.until(rows + `[0].startsWith("Open payments")`)
}

func TestOneStateAloneIsShown(t *testing.T) {
	t.Parallel() // it waits more than it works
	s := newSite(t, admin.Config{Token: token})
	s.succeed("a-mail", "stock")
	s.fail("payments", "connection refused", 5)
	tb := signedIn(t, s, 1200, 800)
	tb.until(rows + `.length === 3`)
	tb.run(chromedp.Click(`[data-tile="open"]`))
	tb.until(rows + `.length === 1 && document.querySelector('[data-tile="open"]').getAttribute("aria-pressed") === "true"`)
	tb.run(chromedp.Click(`[data-tile="half-open"]`))
	tb.until(rows + `.length === 0 && document.getElementById("empty").innerText === "No circuit is like that."`)
	tb.run(chromedp.Click(`[data-tile="half-open"]`))
	tb.until(rows + `.length === 3`)
}

func TestAResetIsConfirmedWithAReason(t *testing.T) {
	t.Parallel() // it waits more than it works
	s := newSite(t, admin.Config{Token: token})
	s.fail("payments", "connection refused", 5)
	tb := signedIn(t, s, 1200, 800)
	tb.until(rows + `.length === 1`)
	tb.run(chromedp.Click("#circuits .row"))
	tb.until(`document.querySelector("#detail .timeline") && document.getElementById("detail").innerText.includes("seen by web-1:4711")`)
	tb.run(chromedp.Click(`[data-verb="reset"]`), chromedp.WaitVisible("#dialog"))
	tb.until(`document.activeElement.id === "reason"`)
	tb.press("  ", kb.Tab, "ann", kb.Enter)
	tb.until(`document.querySelector("#dialog .error").innerText !== ""`)
	assert.Equal(t, breaker.StateOpen, stateOf(t, s.b, "payments"), "a reason is needed")

	tb.press(kb.Escape)
	tb.until(`!document.getElementById("dialog").open`)
	assert.Equal(t, breaker.StateOpen, stateOf(t, s.b, "payments"), "not confirmed")

	tb.run(chromedp.Click(`[data-verb="reset"]`), chromedp.SendKeys("#reason", "they fixed it"), chromedp.SendKeys("#by", "ann"), chromedp.Click("#confirm"))
	tb.until(`document.getElementById("verdict").innerText === "The one circuit is healthy" && !document.getElementById("dialog").open`)
	assert.Equal(t, breaker.StateClosed, stateOf(t, s.b, "payments"))
	tb.until(`document.querySelector("#detail .events").innerText.includes("by ann (they fixed it)")`)

	tb.run(chromedp.Click(`[data-verb="force-open"]`), chromedp.SetValue("#duration", "30m"), chromedp.SendKeys("#reason", "maintenance"), chromedp.Click("#confirm"))
	tb.until(`document.getElementById("detail").innerText.includes("Held open by ann")`) // who is remembered
	snap, err := s.b.Snapshot(t.Context(), "payments")
	require.NoError(t, err)
	assert.Equal(t, "ann", snap.Override.By)
	assert.Equal(t, "maintenance", snap.Override.Reason)
	assert.WithinDuration(t, time.Now().Add(30*time.Minute), snap.Override.Until, time.Minute)
	tb.run(chromedp.Click(`[data-verb="clear-override"]`), chromedp.SendKeys("#reason", "done"), chromedp.Click("#confirm"))
	tb.until(`document.getElementById("verdict").innerText === "The one circuit is healthy"`)
}

func stateOf(t testing.TB, b *breaker.Breaker, key string) breaker.State {
	t.Helper()
	snap, err := b.Snapshot(t.Context(), key)
	require.NoError(t, err)
	return snap.State
}

// What comes from outside is text, wherever it shows.
func TestHostileTextsStayText(t *testing.T) {
	t.Parallel() // it waits more than it works
	s := newSite(t, admin.Config{Token: token, Title: `<img src=x onerror="hacked=1">`})
	keys := []string{`<img src=x onerror="hacked=2">`, `</li><script>hacked=3</script>`, `"><svg onload=hacked=4>`, "javascript:hacked=5", "\u202egnp.exe", "", "..", ".", "/", "%2F", "\xff\xfe"}
	for _, key := range keys {
		s.fail(key, `<img src=x onerror="hacked=6">`+"\u202e", 5)
		require.NoError(t, s.b.Force(t.Context(), key, breaker.Override{State: breaker.StateOpen, Reason: `<script>hacked=7</script>`, By: `<b onclick=hacked=8>ann</b>`}))
	}
	tb := signedIn(t, s, 1200, 800)
	tb.until(rows+`.length === %d`, len(keys))
	for i := range keys {
		tb.do(fmt.Sprintf(`document.querySelectorAll("#circuits .row")[%d].click()`, i))
		tb.until(`document.querySelector("#detail .timeline") !== null`)
		for _, part := range []string{`<script>hacked=7</script>`, `<b onclick=hacked=8>ann</b>`, `<img src=x onerror="hacked=6">\u202e`} {
			assert.Contains(t, eval[string](tb, `document.getElementById("detail").innerText`), part)
		}
		tb.press(kb.Escape)
	}
	text := tb.shows()
	for _, key := range []string{keys[0], keys[1], keys[2], keys[3], `\u202egnp.exe`, "(the empty key)"} {
		assert.Contains(t, text, key)
	}
	assert.True(t, eval[bool](tb, `typeof hacked === "undefined"`))
	assert.Zero(t, eval[int](tb, `document.querySelectorAll("img, #board script, #board b[onclick]").length`))

	// And each can be steered by its name, from the browser's own URLs.
	for left := len(keys); left > 0; left-- {
		tb.until(`document.querySelectorAll('#circuits .row[data-state="open"]').length === %d`, left)
		tb.run(chromedp.Click(`#circuits .row[data-state="open"]`))
		tb.run(chromedp.Click(`[data-verb="reset"]`), chromedp.SetValue("#reason", "over"), chromedp.SetValue("#by", "ann"), chromedp.Click("#confirm"))
		tb.until(`!document.getElementById("dialog").open`)
		tb.press(kb.Escape)
		tb.until(`document.getElementById("detail").hidden`)
	}
	for _, key := range keys {
		assert.Equal(t, breaker.StateClosed, stateOf(t, s.b, key), "%q", key)
	}
}

func TestTheKeyboardIsEnough(t *testing.T) {
	t.Parallel() // it waits more than it works
	s := newSite(t, admin.Config{Token: token})
	s.succeed("a-mail", "stock")
	s.fail("payments", "connection refused", 5)
	tb := signedIn(t, s, 1200, 800)
	tb.until(rows + `.length === 3`)
	tb.slash()
	tb.until(`document.activeElement.id === "search"`)
	tb.press("STOCK")
	tb.until(rows + `.length === 1`)
	tb.do(`document.getElementById("search").select()`)
	tb.press(kb.Delete)
	tb.until(rows + `.length === 3`)

	tb.press(kb.Tab)
	assert.Contains(t, tb.focused(), "payments")
	tb.press(kb.ArrowDown)
	assert.Contains(t, tb.focused(), "a-mail")
	s.fail("stock", "down", 5) // moves above it
	tb.until(rows + `[1].startsWith("Open stock")`)
	assert.Contains(t, tb.focused(), "a-mail", "what has the focus keeps it")
	tb.press(kb.ArrowUp, kb.ArrowUp, kb.Enter)
	tb.until(`document.activeElement.id === "detail-title"`)
	assert.Contains(t, tb.focused(), "payments")
	tb.press(kb.Tab, kb.Tab, kb.Enter) // past Close, to the first action
	tb.until(`document.getElementById("dialog").open && document.activeElement.id === "reason"`)
	tb.press(kb.Escape)
	tb.until(`!document.getElementById("dialog").open`)
	assert.Contains(t, tb.focused(), "Reset")
	tb.press(kb.Escape)
	tb.until(`document.getElementById("detail").hidden`)
	assert.Contains(t, tb.focused(), "payments", "and back to where one was")
}

// Without a token there is nothing to sign in to, and nothing to change.
func TestThePageWithoutATokenOnlyShows(t *testing.T) {
	t.Parallel() // it waits more than it works
	s := newSite(t, admin.Config{})
	s.fail("payments", "connection refused", 5)
	tb := newTab(t, 1200, 800)
	tb.run(chromedp.Navigate(s.url))
	tb.until(rows + `.length === 1`)
	tb.run(chromedp.Click("#circuits .row"))
	tb.until(`document.querySelector("#detail .timeline") !== null`)
	assert.Zero(t, eval[int](tb, `document.querySelectorAll("[data-verb]").length`))
	assert.NotContains(t, tb.shows(), "Sign")
}

func TestTenThousandCircuitsAreUsable(t *testing.T) {
	t.Parallel() // it waits more than it works
	s := newSite(t, admin.Config{Token: token})
	for i := range 10_000 {
		s.succeed(strings.Repeat("k", i%7) + time.Duration(i).String())
	}
	s.fail("zzz", "down", 5)
	tb := signedIn(t, s, 1200, 800)
	tb.until(rows + `.length === 101`)
	tb.until(rows + `[0].startsWith("Open zzz")`)
	tb.until(`document.getElementById("tiles").innerText.includes("10,000")`)
	tb.run(chromedp.Click("#more"))
	tb.until(rows + `.length === 201`)
}
