package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Set by the linker: -ldflags "-X main.version=v1.2.3 -X main.commit=0123abc". Where they are empty, what the
// go command recorded in the binary counts.
var (
	version string
	commit  string
)

// build says which program this is.
type build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`   // "unknown" where the binary was built outside of a repository
	Go       string `json:"go"`       // of the compiler
	Platform string `json:"platform"` // GOOS/GOARCH
}

func thisBuild() build {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return buildFrom(version, commit, info)
}

func buildFrom(version, commit string, info *debug.BuildInfo) build {
	b := build{Version: version, Commit: commit, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if b.Version == "" {
		b.Version = info.Main.Version
	}
	if b.Version == "" || b.Version == "(devel)" {
		b.Version = "devel"
	}
	if b.Commit == "" {
		modified := false
		for _, setting := range info.Settings {
			switch setting.Key {
			case "vcs.revision":
				b.Commit = setting.Value
			case "vcs.modified":
				modified = setting.Value == "true"
			}
		}
		if b.Commit == "" {
			b.Commit = "unknown"
		} else if modified {
			b.Commit += "-modified"
		}
	}
	return b
}

func (b build) String() string {
	return fmt.Sprintf("%s (commit %s, %s, %s)", b.Version, b.Commit, b.Go, b.Platform)
}

func newVersion() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version, the commit, the Go version and the platform",
		Example: `  compactproxy version
  compactproxy version --json`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text := "compactproxy version " + thisBuild().String()
			if asJSON {
				encoded, err := json.Marshal(thisBuild())
				if err != nil {
					return err
				}
				text = string(encoded)
			}
			if _, err := fmt.Fprintln(cmd.OutOrStdout(), text); err != nil {
				return fmt.Errorf("print the version: %w", err)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}
