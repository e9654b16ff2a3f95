package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/compactproxy/compactproxy/internal/config"
)

// Exit codes of every command.
const (
	exitDone   = 0
	exitFailed = 1 // the command ran and failed
	exitUsage  = 2 // the command line or the configuration is wrong
)

// runError is an error of a command that was running. Whatever else comes out of cobra is about the command
// line.
type runError struct{ error }

func (e runError) Unwrap() error { return e.error }

// usageError is an error about the command line that a command found itself.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// usagef returns a usageError that ends with where to read on.
func usagef(cmd *cobra.Command, format string, args ...any) error {
	return usageError{fmt.Errorf(format+"; see %s --help", append(args, cmd.CommandPath())...)}
}

func exitCode(err error) int {
	if err == nil {
		return exitDone
	}
	var (
		ran      runError
		usage    usageError
		problems config.Problems
	)
	if !errors.As(err, &ran) || errors.As(err, &usage) || errors.As(err, &problems) {
		return exitUsage
	}
	return exitFailed
}
