package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/cmd/breakerctl/internal/sim"
)

func newSimulate(s *settings) *cobra.Command {
	var policies []string
	var compare, svg, key string
	var width int
	cmd := &cobra.Command{
		Use:   "simulate TRACE",
		Short: "Replay a trace of calls against a policy, in virtual time",
		Long: `Replay a trace of calls against a policy, in virtual time: when the circuit would
have opened, and what that would have spared and cost. It asks no Redis.

TRACE is a file, or - for standard input: CSV with a header, or JSON objects,
one a line. Columns, or members, are
  time         RFC 3339, or Unix seconds; required
  outcome      success, failure or ignored
  status       an HTTP status, in place of an outcome: 5xx and 429 are failures
  duration     how long the call took: "120ms", or seconds
  retry_after  what the server asked for, likewise
  key          the circuit; each has its own
and others are left out of account. Calls that a policy lets through go as they
went in the trace, but that CallTimeout ends slower ones.

A rejected call that had failed in the trace is spared, one that had not is
lost. An opening that lost more than it spared is false.`,
		Example: `  breakerctl simulate calls.csv --policy policy.json
  breakerctl simulate calls.jsonl --policy today.json --compare bolder.json --svg both.svg`,
		Args: with(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := s.json(); err != nil {
				return err
			}
			if width < 10 || width > 2000 {
				return usagef("--width is %d: must be within 10 and 2000", width)
			}
			policies = []string{s.policyFile}
			if compare != "" {
				policies = append(policies, compare)
			}
			calls, err := readTrace(cmd.InOrStdin(), args[0], key, cmd.Flags().Changed("key"))
			if err != nil {
				return usagef("trace %s: %w", args[0], err)
			}
			var results []sim.Result
			for _, file := range policies {
				name, p := "default policy", breaker.Policy{}
				if file != "" {
					name = strings.TrimSuffix(filepath.Base(file), ".json")
					if p, err = readPolicy(file); err != nil {
						return err
					}
				}
				results = append(results, sim.Replay(name, p, calls))
			}
			if svg != "" {
				if err := writeFile(svg, sim.NewPicture(calls, results, 160).SVG); err != nil {
					return err
				}
			}
			return s.print(cmd.OutOrStdout(), results, func(w io.Writer) error {
				return printResults(w, results, sim.NewPicture(calls, results, width))
			})
		},
	}
	cmd.Flags().StringVar(&compare, "compare", "", "file with a second Policy, to set beside that of --policy")
	cmd.Flags().StringVar(&svg, "svg", "", "file to draw the timeline to")
	cmd.Flags().StringVar(&key, "key", "", "only the calls of this key")
	cmd.Flags().IntVar(&width, "width", 72, "columns of the timeline")
	return cmd
}

func readTrace(stdin io.Reader, file, key string, onlyKey bool) ([]sim.Call, error) {
	in := stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	calls, err := sim.Read(in)
	if err != nil || !onlyKey {
		return calls, err
	}
	some := calls[:0]
	for _, c := range calls {
		if c.Key == key {
			some = append(some, c)
		}
	}
	if len(some) == 0 {
		return nil, fmt.Errorf("no call has the key %q", key)
	}
	return some, nil
}

func writeFile(name string, write func(io.Writer) error) (err error) {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, f.Close()) }()
	return write(f)
}

// maxEpisodes is how many openings are listed for each policy.
const maxEpisodes = 30

func printResults(w io.Writer, results []sim.Result, picture *sim.Picture) error {
	header := []string{""}
	for _, r := range results {
		header = append(header, r.Name)
	}
	var body [][]string
	row := func(name string, value func(r sim.Result) string) {
		line := []string{name}
		for _, r := range results {
			line = append(line, value(r))
		}
		body = append(body, line)
	}
	number := func(name string, value func(r sim.Result) int) {
		row(name, func(r sim.Result) string { return strconv.Itoa(value(r)) })
	}
	number("calls in the trace", func(r sim.Result) int { return r.Calls })
	number("failures among them", func(r sim.Result) int { return r.Failures })
	number("openings", func(r sim.Result) int { return r.Openings })
	number("false openings", func(r sim.Result) int { return r.FalseOpenings })
	number("calls made", func(r sim.Result) int { return r.Made })
	number("failures made", func(r sim.Result) int { return r.FailuresMade })
	number("calls spared", func(r sim.Result) int { return r.Spared })
	number("calls lost", func(r sim.Result) int { return r.Lost })
	row("time not closed", func(r sim.Result) string { return short(r.NotClosed) })
	if err := rows(w, header, body); err != nil {
		return err
	}
	fmt.Fprintln(w)
	if err := picture.Text(w); err != nil {
		return err
	}
	for _, r := range results {
		if err := printEpisodes(w, r); err != nil {
			return err
		}
	}
	return nil
}

func printEpisodes(w io.Writer, r sim.Result) error {
	if len(r.Episodes) == 0 {
		return nil
	}
	var body [][]string
	for _, e := range r.Episodes[:min(len(r.Episodes), maxEpisodes)] {
		length, verdict := "to the end", ""
		if !e.Closed.IsZero() {
			length = short(e.Closed.Sub(e.Opened))
		}
		if e.False {
			verdict = "false"
		}
		body = append(body, []string{e.Opened.Format(time.RFC3339), clip(readable(e.Key), 40), e.Counts, length,
			strconv.Itoa(e.Spared), strconv.Itoa(e.Lost), strconv.Itoa(e.Probes), verdict})
	}
	fmt.Fprintf(w, "\n%s opened:\n", r.Name)
	if err := rows(w, []string{"AT", "KEY", "WHY", "FOR", "SPARED", "LOST", "VAIN PROBES", ""}, body); err != nil {
		return err
	}
	if more := len(r.Episodes) - maxEpisodes; more > 0 {
		fmt.Fprintf(w, "and %d more times; -o json has all\n", more)
	}
	return nil
}
