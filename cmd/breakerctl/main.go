// Command breakerctl shows and steers the circuits that a fleet shares through
// Redis, and replays traces of calls against policies. It needs nothing but
// the Redis that the fleet uses.
//
// Exit codes: 0 done; 1 something else went wrong; 2 the command line, a
// policy or a trace is wrong, and nothing was done; 3 Redis could not be
// asked, or not for all that was wanted.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/breakerkit/breaker"
)

// The exit codes.
const (
	exitDone  = 0
	exitOther = 1
	exitUsage = 2
	exitStore = 3
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], terminal{os.Stdin, os.Stdout, os.Stderr, os.Getenv})
	stop()
	os.Exit(code)
}

// A terminal is what the program is run from.
type terminal struct {
	in       io.Reader
	out, err io.Writer
	env      func(string) string
}

// run runs one command line and returns its exit code.
func run(ctx context.Context, args []string, t terminal) int {
	root := newRoot(t)
	root.SetArgs(args)
	root.SetIn(t.in)
	root.SetOut(t.out)
	root.SetErr(t.err)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	fmt.Fprintln(t.err, "breakerctl:", err)
	var usage usageError
	switch {
	case errors.As(err, &usage), errors.Is(err, breaker.ErrConfig):
		return exitUsage
	case errors.Is(err, breaker.ErrStore):
		return exitStore
	default:
		return exitOther
	}
}

// A usageError is a mistake of whoever typed the command.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// with makes an error of a command's arguments a usageError.
func with(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usageError{err}
		}
		return nil
	}
}

func newRoot(t terminal) *cobra.Command {
	s := &settings{env: t.env}
	root := &cobra.Command{
		Use:   "breakerctl",
		Short: "Show and steer circuits shared through Redis, and try policies on traces",
		Long: `breakerctl shows and steers the circuits that a fleet shares through Redis, and
replays traces of calls against policies.

Where Redis is, it is told by --redis or BREAKER_REDIS_URL:
  redis://host:6379/0                                       one server
  rediss://host:6379/0                                      by TLS
  redis://host:26379?master_name=mymaster&addr=host2:26379  Sentinel
  redis+cluster://host:6379?addr=host2:6379                 Cluster (rediss+cluster by TLS)
A password comes from BREAKER_REDIS_PASSWORD (of the Sentinels:
BREAKER_SENTINEL_PASSWORD), from --password-file, or from BREAKER_REDIS_URL,
never from the command line, which every user of the machine can read.

Exit codes: 0 done; 1 something else went wrong; 2 the command line, a policy or
a trace is wrong, and nothing was done; 3 Redis could not be asked.`,
		SilenceUsage: true, SilenceErrors: true,
		Args: with(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	s.addFlags(root.PersistentFlags())
	root.AddCommand(newList(s), newShow(s), newHistory(s), newReset(s), newOpen(s), newClose(s), newClear(s),
		newWatch(s, t), newServe(s), newSimulate(s))
	return root
}
