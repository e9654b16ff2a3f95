// Command ledger keeps books in plain text files.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"example.com/ledger/internal/importer"
	"example.com/ledger/internal/journal"
	"example.com/ledger/internal/report"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// options are the flags of all commands.
type options struct {
	report  report.Options
	rules   string
	account string
	from    string
	to      string
	verbose bool
}

func run(args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		usage(stderr)
		return 2
	}
	name, args := args[0], args[1:]
	var o options
	flags := flag.NewFlagSet("ledger "+name, flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&o.report.Depth, "depth", 0, "levels of the account tree to show, 0 for all")
	flags.BoolVar(&o.report.Zero, "zero", false, "show accounts with nothing on them")
	flags.StringVar(&o.from, "from", "", "first day")
	flags.StringVar(&o.to, "to", "", "day after the last")
	flags.StringVar(&o.rules, "rules", "", "file with the import rules")
	flags.StringVar(&o.account, "account", "assets:bank:checking", "bank account of an import")
	flags.BoolVar(&o.verbose, "v", false, "say what is done")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if err := o.dates(); err != nil {
		fmt.Fprintln(stderr, "ledger:", err)
		return 2
	}
	command, ok := commands[name]
	if !ok {
		fmt.Fprintf(stderr, "ledger: unknown command %q\n", name)
		usage(stderr)
		return 2
	}
	if flags.NArg() < command.args {
		fmt.Fprintf(stderr, "ledger: %s needs %s\n", name, command.usage)
		return 2
	}
	if err := command.run(stdout, o, flags.Args()); err != nil {
		fmt.Fprintln(stderr, "ledger:", err)
		return 1
	}
	return 0
}

// command is a subcommand with the number of arguments it needs.
type command struct {
	usage string
	args  int
	run   func(w io.Writer, o options, args []string) error
}

var commands = map[string]command{
	"check":    {"FILE", 1, runCheck},
	"accounts": {"FILE", 1, runAccounts},
	"balance":  {"FILE [ACCOUNT]", 1, runBalance},
	"register": {"FILE [ACCOUNT]", 1, runRegister},
	"import":   {"FILE CSV", 2, runImport},
}

func usage(w io.Writer) {
	fmt.Fprintln(w, "usage: ledger COMMAND [FLAGS] FILE ...")
	for _, name := range []string{"check", "accounts", "balance", "register", "import"} {
		fmt.Fprintf(w, "  ledger %s %s\n", name, commands[name].usage)
	}
}

func (o *options) dates() error {
	for _, d := range []struct {
		text string
		to   *journal.Date
	}{{o.from, &o.report.From}, {o.to, &o.report.To}} {
		if d.text == "" {
			continue
		}
		day, err := journal.ParseDate(d.text)
		if err != nil {
			return err
		}
		*d.to = day
	}
	return nil
}

func open(name string) (*journal.Journal, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return journal.Parse(f, name)
}

func runCheck(w io.Writer, _ options, args []string) error {
	j, err := open(args[0])
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%d transactions, %d accounts, no problems\n", len(j.Transactions), len(j.Accounts()))
	return nil
}

func runAccounts(w io.Writer, _ options, args []string) error {
	j, err := open(args[0])
	if err != nil {
		return err
	}
	fmt.Fprintln(w, strings.Join(j.Accounts(), "\n"))
	return nil
}

func runBalance(w io.Writer, o options, args []string) error {
	j, err := open(args[0])
	if err != nil {
		return err
	}
	if len(args) > 1 {
		o.report.Account = args[1]
	}
	return report.Balance(w, j, o.report)
}

func runRegister(w io.Writer, o options, args []string) error {
	j, err := open(args[0])
	if err != nil {
		return err
	}
	if len(args) > 1 {
		o.report.Account = args[1]
	}
	return report.WriteRegister(w, report.Register(j, o.report))
}

func runImport(w io.Writer, o options, args []string) error {
	j, err := open(args[0])
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if j == nil {
		j = &journal.Journal{}
	}
	settings := importer.Options{Account: o.account}
	if o.rules != "" {
		f, err := os.Open(o.rules)
		if err != nil {
			return err
		}
		defer f.Close()
		if settings.Rules, err = importer.ParseRules(f); err != nil {
			return fmt.Errorf("%s: %w", o.rules, err)
		}
	}
	f, err := os.Open(args[1])
	if err != nil {
		return err
	}
	defer f.Close()
	list, err := importer.Import(f, settings)
	if err != nil {
		return fmt.Errorf("%s: %w", args[1], err)
	}
	fresh := importer.New(j, list)
	if o.verbose {
		fmt.Fprintf(w, "; %d rows, %d new\n", len(list), len(fresh))
	}
	return journal.Write(w, fresh)
}
