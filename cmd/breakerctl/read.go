package main

import (
	"context"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/breakerkit/breaker"
)

// A circuit is a snapshot, or why there is none.
type circuit struct {
	breaker.Snapshot
	Unreadable string `json:"unreadable,omitempty"`
}

// readers is how many circuits are read at once.
const readers = 16

// readAll reads all circuits that want wants, in order of their keys.
func readAll(ctx context.Context, b *breaker.Breaker, want func(key string) bool) (all []circuit, err error) {
	var keys []string
	for key, err := range b.Keys(ctx) {
		if err != nil {
			return nil, storeError("list circuits", err)
		}
		if want(key) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	all = make([]circuit, len(keys))
	next := make(chan int)
	var work sync.WaitGroup
	for range min(readers, len(keys)) {
		work.Go(func() {
			for i := range next {
				snapshot, err := b.Snapshot(ctx, keys[i])
				all[i] = circuit{Snapshot: snapshot}
				if err != nil {
					all[i].Key, all[i].Unreadable = keys[i], err.Error()
				}
			}
		})
	}
	for i := range keys {
		next <- i
	}
	close(next)
	work.Wait()
	return all, ctx.Err()
}

// unreadable is an error if some circuits could not be read.
func unreadable(all []circuit) error {
	count := 0
	for _, c := range all {
		if c.Unreadable != "" {
			count++
		}
	}
	if count == 0 {
		return nil
	}
	return fmt.Errorf("%w: %d of %d circuits could not be read", breaker.ErrStore, count, len(all))
}

func newList(s *settings) *cobra.Command {
	var states []string
	var match string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the circuits in use",
		Example: `  breakerctl list --state open,half-open
  breakerctl list --match 'tenant-7/*' -o json`,
		Args: with(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			wanted, err := parseStates(states)
			if err != nil {
				return err
			}
			if _, err := path.Match(match, ""); err != nil {
				return usagef("--match is %q: %w", match, err)
			}
			return s.withBreaker(func(b *breaker.Breaker) error {
				all, err := readAll(cmd.Context(), b, func(key string) bool { return match == "" || matches(match, key) })
				if err != nil {
					return err
				}
				trouble := unreadable(all)
				all = slices.DeleteFunc(all, func(c circuit) bool {
					return len(wanted) > 0 && c.Unreadable == "" && !slices.Contains(wanted, c.State)
				})
				if err := s.print(cmd.OutOrStdout(), all, func(w io.Writer) error { return printList(w, all, time.Now()) }); err != nil {
					return err
				}
				return trouble
			})
		},
	}
	cmd.Flags().StringSliceVar(&states, "state", nil, "only circuits in these states: closed, open, half-open")
	cmd.Flags().StringVar(&match, "match", "", "only keys that match a pattern, with * (also over /) and ?")
	_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions([]string{"closed", "open", "half-open"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// matches is path.Match, with a star that also stands for slashes.
func matches(pattern, key string) bool {
	plain := strings.NewReplacer("/", "\x01")
	ok, _ := path.Match(plain.Replace(pattern), plain.Replace(key))
	return ok
}

func parseStates(names []string) (states []breaker.State, err error) {
	for _, name := range names {
		var state breaker.State
		if err := state.UnmarshalText([]byte(name)); err != nil {
			return nil, usagef("--state is %q: want closed, open or half-open", name)
		}
		states = append(states, state)
	}
	return states, nil
}

func newShow(s *settings) *cobra.Command {
	return &cobra.Command{
		Use: "show KEY...", Short: "Show circuits in full", Args: with(cobra.MinimumNArgs(1)), ValidArgsFunction: s.completeKeys,
		Long: "Show circuits in full. A key that nobody has used is a closed circuit.",
		RunE: func(cmd *cobra.Command, keys []string) error {
			return s.withBreaker(func(b *breaker.Breaker) error { return s.show(cmd, b, keys) })
		},
	}
}

func (s *settings) show(cmd *cobra.Command, b *breaker.Breaker, keys []string) error {
	all := []circuit{}
	for _, key := range keys {
		snapshot, err := b.Snapshot(cmd.Context(), key)
		if err != nil {
			return storeError("show", err)
		}
		all = append(all, circuit{Snapshot: snapshot})
	}
	return s.print(cmd.OutOrStdout(), all, func(w io.Writer) error {
		for i, c := range all {
			if i > 0 {
				fmt.Fprintln(w)
			}
			if err := printCircuit(w, c.Snapshot, time.Now()); err != nil {
				return err
			}
		}
		return nil
	})
}

func newHistory(s *settings) *cobra.Command {
	limit := 0
	cmd := &cobra.Command{
		Use: "history KEY", Short: "Show what happened to a circuit, newest first", Args: with(cobra.ExactArgs(1)), ValidArgsFunction: s.completeKeys,
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 0 {
				return usagef("--limit is %d: must not be negative", limit)
			}
			return s.withBreaker(func(b *breaker.Breaker) error {
				events, err := b.History(cmd.Context(), args[0])
				if err != nil {
					return storeError("history", err)
				}
				if limit > 0 && len(events) > limit {
					events = events[:limit]
				}
				return s.print(cmd.OutOrStdout(), events, func(w io.Writer) error { return printHistory(w, events) })
			})
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 0, "show at most so many events (default all that are kept, 100)")
	return cmd
}

// completeKeys completes a key by those in use.
func (s *settings) completeKeys(cmd *cobra.Command, _ []string, begin string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var keys []cobra.Completion
	ctx, cancel := context.WithTimeout(cmd.Context(), time.Second)
	defer cancel()
	_ = s.withBreaker(func(b *breaker.Breaker) error {
		for key, err := range b.Keys(ctx) {
			if err != nil || len(keys) == 1000 || ctx.Err() != nil {
				return err
			}
			if strings.HasPrefix(key, begin) {
				keys = append(keys, key)
			}
		}
		return nil
	})
	return keys, cobra.ShellCompDirectiveNoFileComp
}

func (s *settings) withBreaker(do func(b *breaker.Breaker) error) error {
	if _, err := s.json(); err != nil {
		return err
	}
	b, closeAll, err := s.open()
	if err != nil {
		return err
	}
	defer closeAll()
	return do(b)
}
