// Command record makes the recorded sessions of package recording.
//
// It plays a screenplay (testdata/plans) the way an agent would: each turn's
// tool calls are really carried out in a temporary copy of a project
// (testdata/NAME and the files of data.go), and what comes out becomes the
// tool results of the session. Only the model's words are written beforehand.
//
//	go generate ./internal/recording
//	go run ./internal/recording/record -check
//
// A recording does not depend on where or how fast it was made: paths and
// durations are masked, and everything generated comes from a fixed seed. It
// needs a POSIX shell with the usual GNU tools and a go command, nothing from
// the network.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "record:", err)
		os.Exit(1)
	}
}

// run records the sessions named by the arguments, or all of them.
func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("record", flag.ContinueOnError)
	folder := flags.String("out", "internal/recording/sessions", "folder of the session files")
	check := flags.Bool("check", false, "write nothing, fail where a recording would come out differently")
	if err := flags.Parse(args); err != nil {
		return err
	}
	names, err := planNames()
	if err != nil {
		return err
	}
	if _, err := os.Stat(*folder); err != nil {
		return fmt.Errorf("folder of the sessions: %w (run from the root of the repository, or set -out)", err)
	}
	for _, name := range names {
		if flags.NArg() > 0 && !slices.Contains(flags.Args(), name) {
			continue
		}
		data, sum, err := record(ctx, name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		fmt.Fprintf(out, "%-10s %3d turns, %3d messages, %6d bytes, longest result %6d\n", name, sum.turns, sum.messages, len(data), sum.longest)
		path := filepath.Join(*folder, name+".json")
		if !*check {
			if err := os.WriteFile(path, data, 0o644); err != nil {
				return err
			}
			continue
		}
		stored, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !bytes.Equal(stored, data) {
			return fmt.Errorf("%s: the recording differs from %s, first in line %d", name, path, firstDifference(stored, data))
		}
	}
	return nil
}

// firstDifference is the number of the first line that is not the same.
func firstDifference(a, b []byte) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return 1 + bytes.Count(a[:n], []byte("\n"))
}

// summary is what is said about a recording.
type summary struct {
	turns, messages, longest int
}

// record plays one screenplay and returns the session file.
func record(ctx context.Context, name string) ([]byte, summary, error) {
	p, err := loadPlan(name)
	if err != nil {
		return nil, summary{}, err
	}
	b, err := newBench(p.project)
	if err != nil {
		return nil, summary{}, err
	}
	defer b.close()
	b.limit = p.shellLimit

	var sum summary
	w := writer{plan: p}
	if p.system != "" {
		w.system(p.system)
	}
	calls := 0
	for _, s := range p.steps {
		if s.user {
			w.user(s.text)
			continue
		}
		sum.turns++
		ids := make([]string, len(s.calls))
		for i := range s.calls {
			if p.reuseIDs {
				ids[i] = fmt.Sprintf("call_%d", i)
			} else {
				ids[i] = callID(name, calls)
			}
			calls++
		}
		w.assistant(s, ids)
		for i, c := range s.calls {
			result, err := b.call(ctx, c)
			if err != nil {
				return nil, sum, fmt.Errorf("line %d: %s: %w", c.line, c.tool, err)
			}
			if c.fails != failed(result) {
				return nil, sum, fmt.Errorf("line %d: %s: the plan says fails=%t, but the result is:\n%s", c.line, c.tool, c.fails, result)
			}
			sum.longest = max(sum.longest, len(result))
			w.result(ids[i], c.tool, result)
		}
	}
	if w.err != nil {
		return nil, sum, w.err
	}
	sum.messages = len(w.messages)
	return w.file(name), sum, nil
}
