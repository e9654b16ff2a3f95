// Package corpus finds the recorded sessions, captures and refusals that tests
// run on where they are laid beside the checkout. A checkout alone has its own
// smaller recordings; the tests that need the larger set are skipped there,
// loudly. It is for tests only.
package corpus

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// Dir returns the corpus folder of that name, or skips the test. The corpus is
// named by COMPACTPROXY_SHARED, or found as a folder "shared" beside the
// checkout.
func Dir(t testing.TB, name string) string {
	t.Helper()
	root := os.Getenv("COMPACTPROXY_SHARED")
	if root == "" {
		root = filepath.Join(checkout(t), "..", "shared")
	}
	dir := filepath.Join(root, "data", name)
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("SKIPPED: the recorded %s are not beside this checkout (COMPACTPROXY_SHARED names their folder)", name)
	}
	return dir
}

// Files returns the corpus's JSON files of that name.
func Files(t testing.TB, name string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(Dir(t, name), "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no files in corpus %s: %v", name, err)
	}
	return files
}

// Session is a recorded agent session: its whole message list, and its tools.
type Session struct {
	Name     string
	Messages []json.RawMessage
	Tools    json.RawMessage
}

// Sessions returns every recorded session.
func Sessions(t testing.TB) []Session {
	t.Helper()
	var all []Session
	for _, file := range Files(t, "sessions") {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		s := Session{Name: filepath.Base(file)}
		if err := json.Unmarshal(raw, &s); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all = append(all, s)
	}
	return all
}

// checkout is the folder that holds go.mod.
func checkout(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatal("no go.mod above the test")
		}
		dir = parent
	}
}
