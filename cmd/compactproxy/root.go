package main

import (
	"errors"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/compactproxy/compactproxy/internal/config"
)

// newRoot returns the program's root command with these commands below it. A command that fails returns its
// error from RunE, without printing it: run prints it once and turns it into an exit code.
func newRoot(commands ...*cobra.Command) *cobra.Command {
	root := &cobra.Command{
		Use:   "compactproxy",
		Short: "Make long agent sessions fit the model's window",
		Long: `compactproxy stands between coding agents and llama-server (or any OpenAI-compatible server) and makes
their conversations fit the model's window. Agents need to know only its address: set
OPENAI_BASE_URL=http://127.0.0.1:8090/v1.

Exit codes: 0 done, 1 failed, 2 wrong command line or configuration.`,
		Example: `  compactproxy check                               the configuration as it is without any file
  compactproxy check --config compactproxy.yaml    is this file right, and what does it come to?
  compactproxy help config                         every key of the configuration`,
		Version:       thisBuild().String(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return unknownCommand(cmd, args[0])
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usagef(cmd, "no command given")
		},
	}
	root.SetFlagErrorFunc(flagError)
	root.SetHelpCommand(newHelp())
	root.AddCommand(commands...)
	root.CompletionOptions.HiddenDefaultCmd = true
	root.InitDefaultCompletionCmd()
	for _, cmd := range commands {
		markRunning(cmd)
	}
	return root
}

// execute runs one command line. To words behind a command that only has others below it, or a help topic,
// cobra would answer with help and no error.
func execute(root *cobra.Command, args []string) error {
	cmd, rest, err := root.Find(args)
	if err == nil && !cmd.Runnable() && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
		return unknownCommand(cmd, rest[0])
	}
	root.SetArgs(args)
	return root.Execute()
}

// markRunning makes the errors of a command, and of those below it, known as errors of a running command.
func markRunning(cmd *cobra.Command) {
	if inner := cmd.RunE; inner != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if err := inner(cmd, args); err != nil {
				return runError{err}
			}
			return nil
		}
	}
	for _, below := range cmd.Commands() {
		markRunning(below)
	}
}

// newHelp replaces cobra's help command, which ends with exit code 0 where there is no such topic.
func newHelp() *cobra.Command {
	return &cobra.Command{
		Use:   "help [command or topic]",
		Short: "Explain a command or a topic",
		RunE: func(cmd *cobra.Command, args []string) error {
			topic, rest, err := cmd.Root().Find(args)
			if err != nil {
				return err
			}
			if len(rest) > 0 {
				return unknownCommand(topic, rest[0])
			}
			topic.InitDefaultHelpFlag()
			topic.InitDefaultVersionFlag()
			return topic.Help()
		},
	}
}

func unknownCommand(parent *cobra.Command, name string) error {
	var names []string
	for _, cmd := range parent.Commands() {
		if !cmd.Hidden {
			names = append(names, cmd.Name())
		}
	}
	if near := config.Nearest(name, names); near != "" {
		return usagef(parent, "unknown command %q (did you mean %s?)", name, near)
	}
	return usagef(parent, "unknown command %q", name)
}

// noArguments is the Args of a command that takes flags only.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if ext := filepath.Ext(args[0]); cmd.Flags().Lookup("config") != nil && (ext == ".yaml" || ext == ".yml") {
		return usagef(cmd, "%s takes no arguments (got %q, name the file with --config %s)", cmd.Name(), args[0], args[0])
	}
	return usagef(cmd, "%s takes no arguments (got %q)", cmd.Name(), args[0])
}

// flagError says what is wrong with a flag and what may have been meant.
func flagError(cmd *cobra.Command, err error) error {
	var missing *pflag.ValueRequiredError
	if errors.As(err, &missing) {
		return usagef(cmd, "--%s needs a value", missing.GetSpecifiedName())
	}
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return usagef(cmd, "%w", err)
	}
	name, typed := unknown.GetSpecifiedName(), "--"+unknown.GetSpecifiedName()
	if short := unknown.GetSpecifiedShortnames(); short != "" {
		name, typed = short, "-"+short
	}
	var flags []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { flags = append(flags, f.Name) })
	if near := config.Nearest(name, flags); near != "" {
		return usagef(cmd, "unknown flag %s (did you mean --%s?)", typed, near)
	}
	if cmd.Flags().Lookup("config") != nil {
		byName := map[string]config.Key{}
		var names []string
		for _, key := range config.Keys() {
			if key.Env != "" {
				byName[key.Name] = key
				names = append(names, key.Name)
			}
		}
		if near := config.Nearest(name, names); near != "" {
			return usagef(cmd, "unknown flag %s (set %s in the file or %s in the environment)", typed, near, byName[near].Env)
		}
	}
	return usagef(cmd, "unknown flag %s", typed)
}
