package main

import (
	"bytes"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/compactproxy/compactproxy/internal/config"
)

func TestExitCode(t *testing.T) {
	problems := config.Problems{{Key: "listen", Text: "must not be empty"}}
	cmd := &cobra.Command{Use: "x"}
	for _, tt := range []struct {
		name string
		err  error
		want int
	}{
		{"no error", nil, exitDone},
		{"of cobra", errors.New("accepts 1 arg(s), received 0"), exitUsage},
		{"while running", runError{errors.New("listen: address in use")}, exitFailed},
		{"wrapped while running", fmt.Errorf("serve: %w", runError{errors.New("x")}), exitFailed},
		{"usage found while running", runError{usagef(cmd, "FILE is missing")}, exitUsage},
		{"configuration", runError{problems}, exitUsage},
		{"wrapped configuration", runError{fmt.Errorf("reload: %w", problems)}, exitUsage},
	} {
		if got := exitCode(tt.err); got != tt.want {
			t.Errorf("%s: got %d, want %d", tt.name, got, tt.want)
		}
	}
}

// A command that fails while running ends with exit code 1, its error once and no usage; what cobra refuses ends with 2.
func TestRoot_Failures(t *testing.T) {
	newFailing := func() *cobra.Command {
		parent := &cobra.Command{Use: "group"}
		parent.AddCommand(&cobra.Command{
			Use:  "fail",
			Args: cobra.ExactArgs(1),
			RunE: func(*cobra.Command, []string) error { return errors.New("the server is gone") },
		})
		return parent
	}
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"group", "fail", "x"}, exitFailed, "the server is gone"},
		{[]string{"group", "fail"}, exitUsage, "accepts 1 arg(s), received 0"},
		{[]string{"group", "fial"}, exitUsage, `unknown command "fial" (did you mean fail?); see compactproxy group --help`},
	} {
		var out bytes.Buffer
		root := newRoot(newFailing())
		root.SetOut(&out)
		root.SetErr(&out)
		err := execute(root, tt.args)
		if code := exitCode(err); code != tt.code {
			t.Errorf("%q: exit code %d, want %d", tt.args, code, tt.code)
		}
		if err == nil || err.Error() != tt.want {
			t.Errorf("%q: got %v, want %s", tt.args, err, tt.want)
		}
		if out.Len() > 0 {
			t.Errorf("%q: cobra printed %s", tt.args, out.String())
		}
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestRun_OutputThatCannotBeWritten(t *testing.T) {
	for _, args := range [][]string{{"check"}, {"version"}, {"version", "--json"}} {
		var stderr bytes.Buffer
		if code := run(args, brokenWriter{}, &stderr); code != exitFailed {
			t.Errorf("%q: exit code %d", args, code)
		}
		if got := stderr.String(); !strings.HasSuffix(got, "no space left on device\n") || strings.Count(got, "\n") != 1 {
			t.Errorf("%q: got %s", args, got)
		}
	}
}

// Every flag that sets a key is read from the command line, and shows the default of its key.
func TestSettings(t *testing.T) {
	t.Setenv(config.EnvFile, "")
	cmd := &cobra.Command{Use: "x"}
	settings := addSettings(cmd)
	source, err := settings.source()
	if err != nil || source.Path != "" || source.File != nil || len(source.Flags) != 0 {
		t.Errorf("no flags: got %+v, %v", source, err)
	}
	for _, f := range settingFlags {
		key, _ := config.Lookup(f.key)
		if got := cmd.Flags().Lookup(f.flag).DefValue; got != key.Default {
			t.Errorf("--%s: default %s, of the key %s", f.flag, got, key.Default)
		}
		if err := cmd.Flags().Set(f.flag, "value of "+f.flag); err != nil {
			t.Error(err)
		}
	}
	source, err = settings.source()
	if err != nil || len(source.Flags) != len(settingFlags) {
		t.Fatalf("all flags: got %+v, %v", source, err)
	}
	for i, f := range settingFlags {
		want := config.Flag{Name: "--" + f.flag, Key: f.key, Value: "value of " + f.flag}
		if source.Flags[i] != want {
			t.Errorf("got %+v, want %+v", source.Flags[i], want)
		}
	}
}

func TestBuildFrom(t *testing.T) {
	info := func(version string, settings ...string) *debug.BuildInfo {
		bi := &debug.BuildInfo{Main: debug.Module{Version: version}}
		for i := 0; i < len(settings); i += 2 {
			bi.Settings = append(bi.Settings, debug.BuildSetting{Key: settings[i], Value: settings[i+1]})
		}
		return bi
	}
	for _, tt := range []struct {
		name            string
		version, commit string
		info            *debug.BuildInfo
		want            string
	}{
		{"nothing known", "", "", &debug.BuildInfo{}, "devel unknown"},
		{"go build", "", "", info("(devel)", "vcs.revision", "abc", "vcs.modified", "false"), "devel abc"},
		{"modified", "", "", info("(devel)", "vcs.modified", "true", "vcs.revision", "abc"), "devel abc-modified"},
		{"go install", "", "", info("v1.2.3"), "v1.2.3 unknown"},
		{"release", "v2.0.0", "def", info("(devel)", "vcs.revision", "abc", "vcs.modified", "true"), "v2.0.0 def"},
	} {
		b := buildFrom(tt.version, tt.commit, tt.info)
		if got := b.Version + " " + b.Commit; got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
	}
}
