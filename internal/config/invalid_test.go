package config_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/compactproxy/compactproxy/internal/config"
)

var update = flag.Bool("update", false, "write what Load says now into testdata/invalid")

// wantLine begins each line that Load must say about a file in testdata/invalid. They stand at the end, so that the
// line numbers in them do not move.
const wantLine = "# want: "

// One file per rule, with every message that it must lead to.
func TestLoad_Invalid(t *testing.T) {
	paths, err := filepath.Glob("testdata/invalid/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, path := range paths {
		name := filepath.Base(path)
		t.Run(strings.TrimSuffix(name, ".yaml"), func(t *testing.T) {
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var body, want []string
			for line := range strings.Lines(string(content)) {
				if message, ok := strings.CutPrefix(line, wantLine); ok {
					want = append(want, strings.TrimSuffix(message, "\n"))
				} else {
					body = append(body, line)
				}
			}
			cfg, err := config.Load(config.Source{Path: name, File: content})
			if err == nil {
				t.Fatalf("Load accepts it:\n%s", config.Effective(cfg))
			}
			if strings.Contains(err.Error(), "canary") {
				t.Errorf("a message shows a secret:\n%v", err)
			}
			got := strings.Split(err.Error(), "\n")
			if *update {
				text := strings.Join(body, "")
				for _, line := range got {
					text += wantLine + line + "\n"
				}
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("messages (-want +got):\n%s", diff)
			}
		})
	}
}
