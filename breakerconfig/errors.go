package breakerconfig

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/breakerkit/breaker"
)

// An Error is one thing that is wrong with a configuration. It is
// breaker.ErrConfig.
type Error struct {
	File     string // as it was named to Load; empty for a variable
	Line     int    // in File, from 1 on; 0 if there is no one line
	Variable string // of the environment; empty for a file
	Field    string // such as "circuits.stripe.cooldown"; empty if there is none
	Problem  string
}

// Error returns text such as "breaker.yaml:7: circuits.stripe.cooldown: ...".
func (e *Error) Error() string {
	text := "breakerconfig: "
	switch {
	case e.Variable != "":
		text += e.Variable + ": "
	case e.Line > 0:
		text += fmt.Sprintf("%s:%d: ", e.File, e.Line)
	default:
		text += e.File + ": "
	}
	if e.Field != "" {
		text += e.Field + ": "
	}
	return text + e.Problem
}

// Is reports whether target is breaker.ErrConfig.
func (e *Error) Is(target error) bool { return target == breaker.ErrConfig }

// A place is where something was said: a line of the file, or a variable.
type place struct {
	file     string
	line     int
	variable string
}

// problems collects what is wrong.
type problems []*Error

func (ps *problems) add(at place, field, problem string, args ...any) {
	*ps = append(*ps, &Error{File: at.file, Line: at.line, Variable: at.variable, Field: field,
		Problem: fmt.Sprintf(problem, args...)})
}

// err joins the problems in the order of the file, those of variables last.
func (ps problems) err() error {
	slices.SortStableFunc(ps, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Variable, b.Variable), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Field, b.Field))
	})
	errs := make([]error, len(ps))
	for i, p := range ps {
		errs[i] = p
	}
	return errors.Join(errs...)
}
