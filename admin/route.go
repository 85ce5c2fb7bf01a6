package admin

import (
	"net/http"
	"net/url"
	"strings"
)

// A target is what a path leads to.
type target struct {
	route string // a key of endpoints
	key   string // of the circuit, where the route has one
	asset string // the file, for routeAsset
}

type endpoint func(h *Handler, w http.ResponseWriter, r *http.Request, t target)

// The routes, as docs/openapi.yaml names them.
const (
	routePage     = "/"
	routeAsset    = "/assets/{file}"
	routeEvents   = "/api/v1/events"
	routeCircuits = "/api/v1/circuit-breakers"
	routeCircuit  = routeCircuits + "/{key}"
)

var endpoints map[string]map[string]endpoint

func init() { // not a literal: endpoints lead back to it
	endpoints = map[string]map[string]endpoint{
		routePage:                        {http.MethodGet: (*Handler).servePage},
		routeAsset:                       {http.MethodGet: (*Handler).serveAsset},
		routeEvents:                      {http.MethodGet: (*Handler).serveEvents},
		routeCircuits:                    {http.MethodGet: (*Handler).serveList},
		routeCircuit:                     {http.MethodGet: (*Handler).serveCircuit},
		routeCircuit + "/history":        {http.MethodGet: (*Handler).serveHistory},
		routeCircuit + "/reset":          {http.MethodPost: (*Handler).serveReset},
		routeCircuit + "/force-open":     {http.MethodPost: (*Handler).serveForceOpen},
		routeCircuit + "/force-closed":   {http.MethodPost: (*Handler).serveForceClosed},
		routeCircuit + "/clear-override": {http.MethodPost: (*Handler).serveClearOverride},
	}
}

// findTarget reads an escaped path from its end. A "/" within a key is
// escaped, so the last route it contains is the one that is meant, whatever
// stands before it.
func findTarget(path string) (t target, ok bool) {
	if path != "" && path[0] != '/' {
		path = "/" + path // http.StripPrefix took it off with the prefix
	}
	if i := strings.LastIndex(path, routeCircuits); i >= 0 {
		rest := path[i+len(routeCircuits):]
		if rest == "" {
			return target{route: routeCircuits}, true
		}
		if segment, ok := strings.CutPrefix(rest, "/"); ok {
			return circuitTarget(segment)
		}
	}
	if strings.HasSuffix(path, routeEvents) {
		return target{route: routeEvents}, true
	}
	if i := strings.LastIndex(path, "/assets/"); i >= 0 {
		return target{route: routeAsset, asset: path[i+len("/assets/"):]}, true
	}
	// "" is a prefix without its "/"; from there the page redirects.
	page := path == "" || strings.HasSuffix(path, "/") && !strings.HasSuffix(path, routeEvents+"/")
	return target{route: routePage}, page
}

// circuitTarget reads "{key}" and "{key}/verb".
func circuitTarget(rest string) (t target, ok bool) {
	segment, verb, hasVerb := strings.Cut(rest, "/")
	t.route = routeCircuit
	if hasVerb {
		t.route += "/" + verb
	}
	if _, ok = endpoints[t.route]; !ok {
		return target{}, false
	}
	t.key, ok = keyOf(segment)
	return t, ok
}

// endpoint returns what serves a method, nil if nothing does, and the methods
// that are served.
func (t *target) endpoint(method string) (serve endpoint, allowed string) {
	methods := endpoints[t.route]
	if method == http.MethodHead {
		method = http.MethodGet // net/http leaves the body out
	}
	if methods[http.MethodGet] != nil {
		return methods[method], "GET, HEAD"
	}
	return methods[method], "POST"
}

// public reports whether the target holds nothing of the circuits.
func (t *target) public() bool { return t.route == routePage || t.route == routeAsset }

// keyMark begins the segments of keys that a percent-encoding alone would not
// bring here. No percent-encoder leaves a "," as it is, so that it is free.
const keyMark = ","

// idOf writes a key as one segment of a path. It is percent-encoded; browsers
// and proxies resolve "." and ".." even so, and take an empty segment out, so
// these are marked.
func idOf(key string) string {
	if key == "" || key == "." || key == ".." {
		return keyMark + key
	}
	return url.PathEscape(key)
}

// keyOf reads what idOf writes, and any other percent-encoding of a key.
func keyOf(segment string) (key string, ok bool) {
	key, err := url.PathUnescape(strings.TrimPrefix(segment, keyMark))
	return key, err == nil
}
