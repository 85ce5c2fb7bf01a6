package notify

import (
	"errors"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// A redactor takes from a text what could give a channel's secrets away: all
// URLs, and each piece of the channel's own but a mail server's host.
type redactor struct{ pieces []string }

var (
	anyURL    = regexp.MustCompile(`[a-zA-Z][a-zA-Z0-9+.-]*://[^\s"'<>]+`)
	pieceEnds = regexp.MustCompile(`[^A-Za-z0-9_]+`)
)

// minPiece is the length from which a piece is taken for a secret, and not for
// a word that may stand in any text.
const minPiece = 4

func newRedactor(u *url.URL) redactor {
	password, _ := u.User.Password()
	texts := []string{u.User.Username(), password, u.User.String(), u.Path, u.RawPath, u.RawQuery, u.Fragment}
	if u.Scheme != "smtp" {
		texts = append(texts, u.Host)
	}
	for _, values := range u.Query() {
		texts = append(texts, values...)
	}
	var r redactor
	for _, text := range texts {
		for _, whole := range []string{text, url.QueryEscape(text), url.PathEscape(text)} {
			r.pieces = append(r.pieces, whole)
			r.pieces = append(r.pieces, pieceEnds.Split(whole, -1)...)
		}
	}
	r.pieces = slices.DeleteFunc(r.pieces, func(piece string) bool { return len(piece) < minPiece })
	slices.SortFunc(r.pieces, func(a, b string) int { return len(b) - len(a) }) // the longest first
	r.pieces = slices.Compact(r.pieces)
	return r
}

func (r redactor) text(s string) string {
	s = anyURL.ReplaceAllString(s, "[url]")
	for _, piece := range r.pieces {
		s = strings.ReplaceAll(s, piece, "***")
	}
	return s
}

// error returns an error that has the redacted text of err and nothing else of
// it: what it wraps could show what the text does not.
func (r redactor) error(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(r.text(err.Error()))
}
