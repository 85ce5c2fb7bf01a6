package admin

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"html/template"
	"net/http"
	"path"
	"strings"
)

//go:embed assets
var assets embed.FS

var pageTemplate = template.Must(template.ParseFS(assets, "assets/index.html"))

// contentPolicy lets the page use its own files and this API, and nothing
// else: no inline script or style, no form that is sent, no frame around it,
// no text that becomes markup.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

func renderPage(cfg Config) []byte {
	var page bytes.Buffer
	err := pageTemplate.Execute(&page, map[string]any{
		"Title":    cfg.Title,
		"SignIn":   cfg.Token != "",
		"ReadOnly": cfg.ReadOnly || cfg.Token == "",
	})
	if err != nil {
		panic("admin: the page: " + err.Error()) // the template is ours, and any text fits into it
	}
	return page.Bytes()
}

func (h *Handler) servePage(w http.ResponseWriter, r *http.Request, _ target) {
	// The page's links are relative, so that any prefix will do. They need its "/".
	if asked, _, _ := strings.Cut(r.RequestURI, "?"); asked != "" && !strings.HasSuffix(asked, "/") {
		w.Header().Set("Location", "./"+path.Base(asked)+"/")
		w.WriteHeader(http.StatusTemporaryRedirect)
		return
	}
	w.Header().Set("Content-Security-Policy", contentPolicy)
	w.Header().Set("Cross-Origin-Opener-Policy", "same-origin")
	w.Header().Set("X-Frame-Options", "DENY")
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(h.page)
}

// assetTypes are the files that are served as they are. The system's own table
// may call them something that a browser does not run.
var assetTypes = map[string]string{".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}

func (h *Handler) serveAsset(w http.ResponseWriter, r *http.Request, t target) {
	text, err := assets.ReadFile("assets/" + t.asset)
	if err != nil || assetTypes[path.Ext(t.asset)] == "" {
		problem(w, http.StatusNotFound, "There is no such page.")
		return
	}
	sum := sha256.Sum256(text)
	w.Header().Set("ETag", `"`+hex.EncodeToString(sum[:8])+`"`)
	w.Header().Set("Cache-Control", "no-cache") // kept, but asked about each time
	if w.Header().Get("ETag") == r.Header.Get("If-None-Match") {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.Header().Set("Content-Type", assetTypes[path.Ext(t.asset)])
	_, _ = w.Write(text)
}
