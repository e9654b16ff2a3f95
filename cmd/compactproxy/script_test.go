package main

import (
	"flag"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

var updateScripts = flag.Bool("update", false, "write what the program prints now into testdata/script")

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"compactproxy": main})
}

// The program as its users see it: output, messages and exit codes. Scripts find the folder configs of the
// repository as $CONFIGS.
func TestScripts(t *testing.T) {
	configs, err := filepath.Abs("../../configs")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:           "testdata/script",
		UpdateScripts: *updateScripts,
		Setup: func(env *testscript.Env) error {
			env.Setenv("CONFIGS", configs)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits,
		},
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
	})
}

// exits runs the program and checks its exit code, which testscript's exec does not tell: exits CODE ARGS...
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: exits CODE [arguments of compactproxy]")
	}
	code := "0"
	if err := ts.Exec("compactproxy", args[1:]...); err != nil {
		exit, ok := err.(interface{ ExitCode() int })
		if !ok {
			ts.Fatalf("compactproxy: %v", err)
		}
		code = map[int]string{1: "1", 2: "2"}[exit.ExitCode()]
	}
	if code != args[0] {
		ts.Fatalf("exit code %s, want %s", code, args[0])
	}
}
