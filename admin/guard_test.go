package admin_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/admin"
)

func TestTheTokenIsNeeded(t *testing.T) {
	b, h := newAdmin(t)
	fail(b, "stripe", 5)
	for _, header := range []string{
		"", "Bearer", "Bearer ", "Bearer wrong", "Bearer " + token + "x", "Bearer " + token[1:], token, "Basic " + token, "Bearer " + token + " x",
	} {
		for _, what := range [][2]string{
			{"GET", circuits}, {"GET", circuits + "/stripe"}, {"GET", circuits + "/nobody"}, {"GET", circuits + "/stripe/history"},
			{"GET", "/api/v1/events"}, {"HEAD", circuits}, {"POST", circuits + "/stripe/reset"}, {"POST", circuits + "/stripe/force-closed"},
		} {
			r := httptest.NewRequest(what[0], what[1], nil)
			r.RemoteAddr = "127.0.0.1:5000" // is no excuse
			if header != "" {
				r.Header.Set("Authorization", header)
			}
			got := send(t, h, r)
			require.Equal(t, 401, got.StatusCode, "%v with %q", what, header)
			assert.True(t, strings.HasPrefix(got.Header.Get("WWW-Authenticate"), "Bearer "))
			assert.NotContains(t, got.body, "stripe")
		}
	}
	assert.ErrorIs(t, succeed(b, "stripe"), breaker.ErrOpen, "nothing was done")

	for _, header := range []string{"Bearer " + token, "bearer " + token, "Bearer   " + token + " "} {
		r := httptest.NewRequest("GET", circuits, nil)
		r.Header.Set("Authorization", header)
		assert.Equal(t, 200, send(t, h, r).StatusCode, header)
	}
}

func TestWhiteSpaceAroundTheTokenIsNotPartOfIt(t *testing.T) {
	b := newBreaker(t, nil, breaker.Config{})
	h := admin.New(b, admin.Config{Token: token + "\n", Logger: silent}) // as files of secrets have it
	call(t, h, "GET", circuits, "", 200)
	h = admin.New(b, admin.Config{Token: " \n", Logger: silent}) // as an empty one does: there is none
	assert.Equal(t, 403, send(t, h, request("GET", circuits, "")).StatusCode)
}

func TestReadOnlyRefusesChangesWithATokenToo(t *testing.T) {
	b := newBreaker(t, nil, breaker.Config{})
	h := admin.New(b, admin.Config{Token: token, ReadOnly: true, Logger: silent})
	fail(b, "stripe", 5)
	call(t, h, "GET", circuits+"/stripe", "", 200)
	for _, verb := range []string{"reset", "force-open", "force-closed", "clear-override"} {
		call(t, h, "POST", circuits+"/stripe/"+verb, "", 403)
	}
	assert.ErrorIs(t, succeed(b, "stripe"), breaker.ErrOpen)
}

// Without a token: this machine, asked for by a name of this machine, to read.
func TestWithoutATokenOnlyThisMachineReads(t *testing.T) {
	b := newBreaker(t, nil, breaker.Config{})
	h := admin.New(b, admin.Config{Logger: silent})
	fail(b, "stripe", 5)
	for _, c := range []struct {
		remote, host, header string
		status               int
	}{
		{"127.0.0.1:5000", "localhost:8080", "", 200},
		{"127.0.0.1:5000", "LocalHost.", "", 200},
		{"127.8.9.1:5000", "127.0.0.1", "", 200},
		{"[::1]:5000", "[::1]:8080", "", 200},
		{"[::1]:5000", "[::1]", "", 200},
		{"[::ffff:127.0.0.1]:5000", "127.0.0.1:8080", "", 200},
		{"127.0.0.1:5000", "evil.example", "", 403}, // a name that now resolves to 127.0.0.1
		{"127.0.0.1:5000", "evil.example:8080", "", 403},
		{"127.0.0.1:5000", "localhost.evil.example", "", 403},
		{"127.0.0.1:5000", "127.0.0.1.evil.example", "", 403},
		{"127.0.0.1:5000", "", "", 403},
		{"127.0.0.1:5000", "10.0.0.7", "", 403},
		{"10.0.0.7:5000", "localhost", "", 403},
		{"[2001:db8::1]:5000", "localhost", "", 403},
		{"@", "localhost", "", 403}, // a Unix socket
		{"", "localhost", "", 403},
		{"127.0.0.1:5000", "localhost", "X-Forwarded-For", 403}, // a proxy on this machine
		{"127.0.0.1:5000", "localhost", "Forwarded", 403},
		{"127.0.0.1:5000", "localhost", "X-Real-IP", 403},
		{"127.0.0.1:5000", "localhost", "X-Forwarded-Host", 403},
		{"127.0.0.1:5000", "localhost", "Via", 403},
	} {
		for _, path := range []string{"/", "/assets/app.js", circuits, circuits + "/stripe"} {
			r := httptest.NewRequest("GET", path, nil)
			r.RemoteAddr, r.Host = c.remote, c.host
			if c.header != "" {
				r.Header.Set(c.header, "10.0.0.7")
			}
			assert.Equal(t, c.status, send(t, h, r).StatusCode, "%v %s", c, path)
		}
		r := httptest.NewRequest("POST", circuits+"/stripe/reset", nil)
		r.RemoteAddr, r.Host = c.remote, c.host
		assert.Equal(t, 403, send(t, h, r).StatusCode, "%v", c)
	}
	assert.ErrorIs(t, succeed(b, "stripe"), breaker.ErrOpen, "nothing was done")
}

func TestWrongMethodsAreToldTheRightOnes(t *testing.T) {
	b, h := newAdmin(t)
	fail(b, "stripe", 5)
	for path, allowed := range map[string]string{
		"/": "GET, HEAD", "/assets/app.js": "GET, HEAD", circuits: "GET, HEAD", circuits + "/stripe": "GET, HEAD",
		circuits + "/stripe/history": "GET, HEAD", "/api/v1/events": "GET, HEAD",
		circuits + "/stripe/reset": "POST", circuits + "/stripe/force-open": "POST",
		circuits + "/stripe/force-closed": "POST", circuits + "/stripe/clear-override": "POST",
	} {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"} {
			if strings.Contains(allowed, method) {
				continue
			}
			got := send(t, h, request(method, path, ""))
			require.Equal(t, 405, got.StatusCode, "%s %s", method, path)
			assert.Equal(t, allowed, got.Header.Get("Allow"), "%s %s", method, path)
		}
	}
	assert.ErrorIs(t, succeed(b, "stripe"), breaker.ErrOpen, "nothing was done")
	assert.Equal(t, 200, send(t, h, request("HEAD", circuits+"/stripe", "")).StatusCode)
}

func TestOtherPathsAreNotFound(t *testing.T) {
	b, h := newAdmin(t)
	require.NoError(t, succeed(b, "stripe"))
	for _, path := range []string{
		"/api/v1", "/api/v1/nothing", "/api/v2/circuit-breakers", circuits + "x", circuits + "/stripe/", circuits + "/stripe/resett",
		circuits + "/stripe/reset/", circuits + "/stripe/reset/x", circuits + "/stripe/history/..", "/api/v1/events/", "/assets/", "/assets/none.js",
		"/assets/../admin.go", "/assets/%2e%2e/admin.go", "/assets/index.html", "/index.html",
	} {
		assert.Equal(t, 404, send(t, h, request("GET", path, "")).StatusCode, path)
	}
}

func TestBodiesAreCheckedBeforeAnythingIsDone(t *testing.T) {
	b, h := newAdmin(t)
	fail(b, "stripe", 5)
	json := "application/json"
	for _, c := range []struct {
		kind, body string
		status     int
	}{
		{"text/plain", `{}`, 415},
		{"", `{}`, 415},
		{"application/x-www-form-urlencoded", "by=ann", 415}, // what a form of another site could send
		{"multipart/form-data; boundary=x", "--x--", 415},
		{"text/plain", "", 415},
		{"application/json; charset=latin1", `{}`, 415},
		{"application/jsonx", `{}`, 415},
		{"nonsense/", `{}`, 415},
		{json, `{"by":"` + strings.Repeat("x", 64<<10) + `"}`, 413},
		{json, strings.Repeat(" ", 64<<10+1), 413},
		{json, `{`, 400}, {json, `[]`, 400}, {json, `null`, 400}, {json, `"x"`, 400}, {json, `{} {}`, 400}, {json, `{"by":"ann",}`, 400},
		{json, `{"buy":"ann"}`, 400}, {json, `{"By":"ann"}`, 400}, {json, `{"by":1}`, 400}, {json, `{"by":null}`, 400}, {json, `{"by":{}}`, 400},
		{json, `{"state":"closed"}`, 400}, {json, "{\"by\":\"\xff\"}", 400},
		{json, `{"by":"ann","reason":"` + strings.Repeat("x", 300) + `"}`, 400},
	} {
		for _, verb := range []string{"reset", "force-open", "force-closed", "clear-override"} {
			r := request("POST", circuits+"/stripe/"+verb, c.body)
			r.Header.Del("Content-Type")
			if c.kind != "" {
				r.Header.Set("Content-Type", c.kind)
			}
			got := send(t, h, r)
			assert.Equal(t, c.status, got.StatusCode, "%s with %s: %.40q: %s", verb, c.kind, c.body, got.body)
		}
	}
	for _, duration := range []string{"soon", "10", "-1s", "0s", "10y", "1e3s"} {
		call(t, h, "POST", circuits+"/stripe/force-open", `{"duration":"`+duration+`"}`, 400)
	}
	call(t, h, "POST", circuits+"/stripe/reset", `{"duration":"10m"}`, 400) // a reset has none
	r := request("POST", circuits+"/stripe/reset", `{}`)
	r.Header.Set("Content-Encoding", "gzip")
	assert.Equal(t, 415, send(t, h, r).StatusCode)
	got := call(t, h, "GET", circuits+"/stripe", "", 200)
	assert.Equal(t, "open", got["state"], "nothing was done")
	assert.NotContains(t, got, "override")

	r = request("POST", circuits+"/stripe/reset", `{"by":"ann"}`)
	r.Header.Set("Content-Type", "Application/JSON; charset=UTF-8")
	assert.Equal(t, 200, send(t, h, r).StatusCode)
}

func TestThePageKeepsToItself(t *testing.T) {
	b := newBreaker(t, nil, breaker.Config{})
	h := admin.New(b, admin.Config{Token: token, Title: `<script>alert("title")</script>`, Logger: silent})
	got := send(t, h, httptest.NewRequest("GET", "/", nil)) // nothing secret is in it: no token needed
	require.Equal(t, 200, got.StatusCode)
	policy := got.Header.Get("Content-Security-Policy")
	for _, part := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "form-action 'none'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"} {
		assert.Contains(t, policy, part)
	}
	assert.NotContains(t, policy, "unsafe")
	assert.NotContains(t, got.body, token)
	assert.NotContains(t, got.body, "<script>alert")
	assert.NotRegexp(t, `(?i)<script(>|[^>]*>[^<])|<style|\sstyle=|\son\w+=|https?://`, got.body, "nothing inline, nothing from elsewhere")
	for header, want := range map[string]string{
		"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cross-Origin-Opener-Policy": "same-origin",
		"X-Frame-Options": "DENY", "Cache-Control": "no-store",
	} {
		assert.Equal(t, want, got.Header.Get(header), header)
	}
}

func TestThePageIsServedUnderItsSlash(t *testing.T) {
	_, h := newAdmin(t)
	for path, location := range map[string]string{"/ops/breakers": "./breakers/", "/ops/breakers?x=/": "./breakers/"} {
		r := httptest.NewRequest("GET", path, nil)
		got := send(t, http.StripPrefix("/ops/breakers", h), r)
		assert.Equal(t, 307, got.StatusCode)
		assert.Equal(t, location, got.Header.Get("Location"))
	}
	for _, path := range []string{"/", "/ops/", "/api/", "/api/v1/"} {
		got := send(t, h, httptest.NewRequest("GET", path, nil))
		assert.Equal(t, 200, got.StatusCode, path)
	}
}

func TestAssetsAreKeptByTheBrowser(t *testing.T) {
	_, h := newAdmin(t)
	for file, kind := range map[string]string{"app.js": "text/javascript; charset=utf-8", "style.css": "text/css; charset=utf-8"} {
		got := send(t, h, httptest.NewRequest("GET", "/assets/"+file, nil))
		require.Equal(t, 200, got.StatusCode)
		assert.Equal(t, kind, got.Header.Get("Content-Type"))
		r := httptest.NewRequest("GET", "/assets/"+file, nil)
		r.Header.Set("If-None-Match", got.Header.Get("ETag"))
		again := send(t, h, r)
		assert.Equal(t, 304, again.StatusCode)
		assert.Empty(t, again.body)
	}
}
