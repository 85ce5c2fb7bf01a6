package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/breakerkit/breaker"
)

// steer returns a command that does something to circuits, one after another,
// and shows them as they are then. It stops at the first that fails.
func steer(s *settings, use, short, long string, do func(ctx context.Context, b *breaker.Breaker, key string) error) *cobra.Command {
	return &cobra.Command{
		Use: use + " KEY...", Short: short, Long: long, Args: with(cobra.MinimumNArgs(1)), ValidArgsFunction: s.completeKeys,
		RunE: func(cmd *cobra.Command, keys []string) error {
			return s.withBreaker(func(b *breaker.Breaker) error {
				for i, key := range keys {
					if err := do(s.operator(cmd.Context()), b, key); err != nil {
						return fmt.Errorf("%s: %d of %d circuits done: %w", use, i, len(keys), storeError(use, err))
					}
				}
				return s.show(cmd, b, keys)
			})
		},
	}
}

func newReset(s *settings) *cobra.Command {
	return steer(s, "reset", "Close circuits and forget their counts and overrides",
		"Close circuits and forget their counts and overrides. Their history is kept. Calls under way change nothing any more.",
		func(ctx context.Context, b *breaker.Breaker, key string) error { return b.Reset(ctx, key) })
}

func newClear(s *settings) *cobra.Command {
	return steer(s, "clear", "Let go of circuits that are held: each is again what it knows itself", "",
		func(ctx context.Context, b *breaker.Breaker, key string) error { return b.ClearOverride(ctx, key) })
}

func newOpen(s *settings) *cobra.Command {
	return newForce(s, "open", breaker.StateOpen, "Hold circuits open: no call runs, in any process")
}

func newClose(s *settings) *cobra.Command {
	return newForce(s, "close", breaker.StateClosed, "Hold circuits closed: all calls run, and nothing opens them")
}

func newForce(s *settings, use string, state breaker.State, short string) *cobra.Command {
	var length time.Duration
	var reason string
	cmd := steer(s, use, short, short+".\nIt lasts until 'breakerctl clear' or 'reset', or for the time of --for.",
		func(ctx context.Context, b *breaker.Breaker, key string) error {
			return b.Force(ctx, key, breaker.Override{State: state, For: length, Reason: reason, By: s.who()})
		})
	cmd.Example = fmt.Sprintf("  breakerctl %s stripe --for 10m --reason \"provider's maintenance\"", use)
	cmd.Flags().DurationVar(&length, "for", 0, "how long (default until cleared)")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for whoever asks")
	return cmd
}
