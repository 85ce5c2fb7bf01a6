package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/breakerkit/breaker"
)

// maxBody is the most that a request may say.
const maxBody = 64 << 10

// problem answers with an application/problem+json (RFC 9457).
func problem(w http.ResponseWriter, status int, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	writeJSON(w, map[string]any{"type": "about:blank", "title": http.StatusText(status), "status": status, "detail": detail})
}

// answer answers with v as JSON.
func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	writeJSON(w, v)
}

// writeJSON ignores errors: the client has gone, and nobody is left to tell.
func writeJSON(w io.Writer, v any) { _ = json.NewEncoder(w).Encode(v) }

// fail answers with what an error of the Breaker means.
func (h *Handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	var bad *badRequest
	switch {
	case errors.As(err, &bad):
		problem(w, bad.status, bad.detail)
	case errors.Is(err, errNoCircuit):
		problem(w, http.StatusNotFound, "The store knows no circuit of this key.")
	case r.Context().Err() != nil && errors.Is(err, context.Canceled):
		// Nobody is left to tell.
	case errors.Is(err, errors.ErrUnsupported):
		problem(w, http.StatusNotImplemented, err.Error())
	case errors.Is(err, breaker.ErrConfig):
		problem(w, http.StatusInternalServerError, err.Error())
	default:
		w.Header().Set("Retry-After", "1")
		problem(w, http.StatusServiceUnavailable, err.Error())
	}
}

// A badRequest is the client's mistake.
type badRequest struct {
	status int
	detail string
}

func (e *badRequest) Error() string { return e.detail }

func badRequestf(format string, args ...any) error {
	return &badRequest{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

// readFields reads a body that is an object of texts, or empty.
func readFields(w http.ResponseWriter, r *http.Request, allowed []string) (map[string]string, error) {
	text, err := readJSON(w, r)
	if err != nil || len(text) == 0 {
		return nil, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil || fields == nil {
		return nil, badRequestf("The body is not one object of JSON.")
	}
	said := make(map[string]string, len(fields))
	for name, raw := range fields {
		var value *string
		switch {
		case !slices.Contains(allowed, name):
			return nil, badRequestf("The field %.40q is not known here: only %s.", name, strings.Join(allowed, ", "))
		case json.Unmarshal(raw, &value) != nil || value == nil:
			return nil, badRequestf("The field %q is not text.", name)
		}
		said[name] = strings.TrimSpace(*value)
	}
	return said, nil
}

// readJSON returns the body, which may be empty.
func readJSON(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if given := r.Header.Get("Content-Type"); given != "" && !isJSON(given) || r.Header.Get("Content-Encoding") != "" {
		return nil, errNotJSON
	}
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, &badRequest{http.StatusRequestEntityTooLarge, "The body has more than 64 KiB."}
	case err != nil:
		return nil, badRequestf("The body could not be read.")
	case len(text) > 0 && r.Header.Get("Content-Type") == "":
		return nil, errNotJSON
	case !utf8.Valid(text):
		return nil, badRequestf("The body is not valid UTF-8.")
	}
	return bytes.TrimSpace(text), nil
}

var errNotJSON = &badRequest{http.StatusUnsupportedMediaType, "The body must be application/json, not encoded further."}

func isJSON(contentType string) bool {
	kind, params, err := mime.ParseMediaType(contentType)
	charset, set := params["charset"]
	return err == nil && kind == "application/json" && (!set || strings.EqualFold(charset, "utf-8"))
}
