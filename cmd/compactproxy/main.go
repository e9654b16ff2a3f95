// Command compactproxy is an OpenAI-compatible reverse proxy between coding agents and
// llama-server that makes long conversations fit the model's window.
//
// This package parses the command line and wires the packages below internal together. It must not know how
// anything is done: what it decides itself are names of commands and flags, and exit codes.
package main

import (
	"fmt"
	"io"
	"os"
	"strings"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run executes one command line and returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	root := newRoot(
		newServe(),
		newDemo(),
		newCheck(),
		newRecall(),
		newForget(),
		newVersion(),
		newConfigTopic(),
	)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := execute(root, args)
	if err != nil {
		for line := range strings.Lines(err.Error()) {
			fmt.Fprintf(stderr, "compactproxy: %s\n", strings.TrimRight(line, "\n"))
		}
	}
	return exitCode(err)
}
