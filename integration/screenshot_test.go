package integration_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/admin"
)

// TestTheDashboardFitsItsWindow looks at a page with a bit of everything, in
// light, in dark and on a phone. With BREAKER_SCREENSHOTS set to a folder it
// leaves pictures there; BREAKER_UPDATE_SCREENSHOT=1 renews the README's.
func TestTheDashboardFitsItsWindow(t *testing.T) {
	t.Parallel() // it waits more than it works
	s := newSite(t, admin.Config{Token: token})
	s.populate(t)
	tb := signedIn(t, s, 1440, 900)
	tb.until(rows + `.length === 9`)
	open := func() {
		tb.do(`[...document.querySelectorAll("#circuits .row")].find(r => r.innerText.includes("stripe")).click()`)
		tb.until(`document.querySelector("#detail .timeline") !== null && document.getElementById("detail").innerText.includes("seen by")`)
	}
	for _, look := range []struct {
		name, scheme  string
		width, height int64
		open          bool
	}{
		{"list", "light", 1280, 800, false},
		{"narrow", "light", 320, 640, false},
		{"dashboard", "light", 1440, 960, true},
		{"dark", "dark", 1440, 960, true},
		{"phone", "light", 390, 844, false},
		{"phone-dark-detail", "dark", 390, 844, true},
		{"dialog", "dark", 1280, 800, true},
	} {
		_, err := chromedp.Call(tb.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: look.scheme}},
		})
		require.NoError(t, err)
		tb.run(chromedp.EmulateViewport(look.width, look.height))
		if look.open {
			open()
		}
		if look.name == "dialog" {
			tb.run(chromedp.Click(`[data-verb="force-open"]`))
		}
		assert.True(t, eval[bool](tb, `document.documentElement.scrollWidth <= innerWidth`), "%s scrolls sideways", look.name)
		picture, err := chromedp.Run(tb.ctx, chromedp.CaptureScreenshot())
		require.NoError(t, err)
		if folder := os.Getenv("BREAKER_SCREENSHOTS"); folder != "" {
			require.NoError(t, os.WriteFile(filepath.Join(folder, look.name+".png"), picture, 0o644))
		}
		if os.Getenv("BREAKER_UPDATE_SCREENSHOT") == "1" && look.name == "dashboard" {
			require.NoError(t, os.WriteFile("../docs/img/dashboard.png", picture, 0o644))
		}
		if look.name == "dialog" {
			tb.do(`document.getElementById("dialog").close()`)
		}
		if look.open {
			tb.do(`document.getElementById("close").click()`)
		}
	}
}

// populate makes a morning's worth of trouble.
func (s site) populate(t testing.TB) {
	t.Helper()
	s.succeed("search.internal:9200", "mail/eu-west", "geocoder", "tenant-7/webhooks", "taxes.example.com")
	s.fail("mail/eu-west", "421 too many connections", 2)
	s.fail("tenant-7/webhooks", "tls: handshake failure", 4)
	require.NoError(t, s.b.Force(t.Context(), "fraud-check", breaker.Override{
		State: breaker.StateOpen, For: 25 * time.Minute, Reason: "vendor's maintenance, ticket 4711", By: "ann"}))
	s.fail("rates.example.com", "context deadline exceeded", 3)

	// stripe failed for a while, recovered, and failed again; then two probes did.
	const refused = "dial tcp 10.0.0.7:443: connect: connection refused"
	probe := func(err error) {
		c := s.awaitProbe(t, "stripe")
		s.pause(t)
		c.Done(err)
	}
	s.fail("stripe", refused, 2)
	s.pause(t)
	s.fail("stripe", refused, 3)
	probe(nil)
	for range 2 {
		s.pause(t)
		s.fail("stripe", refused, 1)
		s.succeed("stripe")
	}
	s.pause(t)
	s.fail("stripe", refused, 5)
	probe(errors.New(refused))
	probe(&breaker.StatusError{Code: 503, RetryAfter: 4*time.Minute + 50*time.Second})

	s.fail("stock", "503 Service Unavailable", 5)
	c := s.awaitProbe(t, "stock")
	t.Cleanup(func() { c.Done(nil) })
}

// awaitProbe returns a probe of an open circuit, once there is one to be had.
func (s site) awaitProbe(t testing.TB, key string) (c *breaker.Call) {
	t.Helper()
	require.Eventually(t, func() (ok bool) {
		var err error
		c, err = s.b.Allow(context.Background(), key)
		return err == nil
	}, time.Minute, 20*time.Millisecond)
	return c
}

// pause lets a little of the real time pass that the page draws.
func (s site) pause(t testing.TB) {
	t.Helper()
	began := time.Now()
	require.Eventually(t, func() bool { return time.Since(began) > 150*time.Millisecond }, time.Minute, 10*time.Millisecond)
}
