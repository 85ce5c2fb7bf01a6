package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// A guard decides who may do what.
type guard struct {
	token    bool              // there is one
	digest   [sha256.Size]byte // of the token: digests compare in constant time, whatever their lengths were
	readOnly bool
}

func newGuard(cfg Config) guard {
	return guard{token: cfg.Token != "", digest: sha256.Sum256([]byte(cfg.Token)), readOnly: cfg.ReadOnly}
}

// admits reports whether r may use the API, and answers it if not.
func (g *guard) admits(w http.ResponseWriter, r *http.Request) bool {
	if g.token && !g.bears(r) {
		w.Header().Set("WWW-Authenticate", `Bearer realm="circuit breakers"`)
		problem(w, http.StatusUnauthorized, "A valid token is needed: Authorization: Bearer <token>.")
		return false
	}
	if reads(r.Method) {
		return true
	}
	switch {
	case g.readOnly:
		problem(w, http.StatusForbidden, "This page is read-only: nothing can be changed here.")
	case !g.token:
		problem(w, http.StatusForbidden, "No token is configured: nothing can be changed.")
	default:
		return true
	}
	return false
}

func reads(method string) bool { return method == http.MethodGet || method == http.MethodHead }

func (g *guard) bears(r *http.Request) bool {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	digest := sha256.Sum256([]byte(strings.TrimSpace(token)))
	same := subtle.ConstantTimeCompare(digest[:], g.digest[:]) == 1
	return same && strings.EqualFold(scheme, "Bearer")
}

// near reports whether r may be answered at all. Without a token, that is if
// it comes from this machine and says so itself: a web page that has its own
// name resolve to 127.0.0.1 sends that name as the host, and a proxy on this
// machine says for whom it asks.
func (g *guard) near(r *http.Request) bool {
	if g.token {
		return true
	}
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-Ip", "Via"} {
		if len(r.Header.Values(name)) > 0 {
			return false
		}
	}
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && from.Addr().Unmap().IsLoopback() && loopbackHost(r.Host)
}

// loopbackHost reports whether a Host header names this machine.
func loopbackHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	} else {
		host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	}
	if strings.EqualFold(strings.TrimSuffix(host, "."), "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}
