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

// Path returns the path of a file or folder of the corpus, or skips the test.
// The corpus is named by COMPACTPROXY_SHARED, or found as a folder "shared"
// beside the checkout or a folder above it.
func Path(t testing.TB, name string) string {
	t.Helper()
	for _, root := range roots(t) {
		path := filepath.Join(root, "data", name)
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	t.Skipf("SKIPPED: the recorded %s are not beside this checkout (COMPACTPROXY_SHARED names their folder)", name)
	return ""
}

func roots(t testing.TB) []string {
	if root := os.Getenv("COMPACTPROXY_SHARED"); root != "" {
		return []string{root}
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		found = append(found, filepath.Join(dir, "shared"))
	}
	return found
}

// Files returns the corpus's JSON files of that name.
func Files(t testing.TB, name string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(Path(t, name), "*.json"))
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
