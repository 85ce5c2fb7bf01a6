package breakerconfig

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
)

// A jsonReader makes nodes of the tokens of a decoder: it knows where each is,
// which a value decoded whole does not.
type jsonReader struct {
	*json.Decoder
	lines lineIndex
}

func parseJSON(data []byte) (*node, *syntaxError) {
	r := &jsonReader{json.NewDecoder(bytes.NewReader(data)), indexLines(data)}
	r.UseNumber()
	n, err := r.value(0)
	if err != nil {
		return nil, err
	}
	if _, err := r.Token(); err != io.EOF {
		return nil, syntaxErrorf(r.line(), "something follows the value")
	}
	return n, nil
}

// line is that of the token read last.
func (r *jsonReader) line() int { return r.lines.at(int(r.InputOffset()) - 1) }

func (r *jsonReader) next() (json.Token, *syntaxError) {
	token, err := r.Token()
	var wrong *json.SyntaxError
	switch {
	case err == nil:
		return token, nil
	case errors.As(err, &wrong):
		return nil, syntaxErrorf(r.lines.at(int(wrong.Offset)-1), "%v", wrong)
	case err == io.EOF, err == io.ErrUnexpectedEOF:
		return nil, syntaxErrorf(len(r.lines)+1, "ends too early")
	}
	return nil, syntaxErrorf(r.line(), "%s", strings.TrimPrefix(err.Error(), "json: "))
}

func (r *jsonReader) value(depth int) (*node, *syntaxError) {
	token, err := r.next()
	if err != nil {
		return nil, err
	}
	n := &node{line: r.line()}
	if depth > maxDepth {
		return nil, syntaxErrorf(n.line, "%s", errTooDeep)
	}
	switch v := token.(type) {
	case string:
		n.kind, n.text = textKind, v
	case json.Number:
		n.kind, n.text = numberKind, v.String()
	case bool:
		n.kind, n.text = boolKind, "false"
		if v {
			n.text = "true"
		}
	case json.Delim:
		n.kind = tableKind
		if v == '[' {
			n.kind = listKind
		}
		for r.More() {
			f := field{line: n.line}
			if n.kind == tableKind {
				name, err := r.next()
				if err != nil {
					return nil, err
				}
				f.name, _ = name.(string) // the decoder takes nothing else
				f.line = r.line()
			}
			if f.value, err = r.value(depth + 1); err != nil {
				return nil, err
			}
			n.fields = append(n.fields, f)
		}
		if _, err := r.next(); err != nil { // the bracket that closes it
			return nil, err
		}
	}
	return n, nil
}
