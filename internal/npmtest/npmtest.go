// Package npmtest installs real clients from npm for tests, at the versions
// that a folder's package-lock.json pins. It is for tests only.
package npmtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// Install runs "npm ci" for the package.json and package-lock.json in dir and
// returns the folder that holds node_modules. It is done once per lock file and
// machine, in the user's cache. Where npm is missing or cannot fetch, the test is
// skipped, loudly; with COMPACTPROXY_REQUIRE_NODE=1 it fails.
func Install(t testing.TB, dir string) string {
	t.Helper()
	lock, err := os.ReadFile(filepath.Join(dir, "package-lock.json"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("npm"); err != nil {
		missing(t, "npm is not installed (Node.js 20 or later brings it)")
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(lock)
	root := filepath.Join(cache, "compactproxy", "npm", filepath.Base(dir)+"-"+hex.EncodeToString(sum[:6]))
	if _, err := os.Stat(filepath.Join(root, "node_modules")); err == nil {
		return root
	}
	if err := os.MkdirAll(filepath.Dir(root), 0o755); err != nil {
		t.Fatal(err)
	}
	// Under another name first: another test may install the same at once.
	work, err := os.MkdirTemp(filepath.Dir(root), "install-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(work)
	for _, name := range []string{"package.json", "package-lock.json"} {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(work, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "npm", "ci", "--no-audit", "--no-fund")
	cmd.Dir = work
	if out, err := cmd.CombinedOutput(); err != nil {
		missing(t, "npm ci in "+dir+": "+err.Error()+"\n"+string(out))
	}
	if err := os.Rename(work, root); err != nil {
		if _, done := os.Stat(filepath.Join(root, "node_modules")); done != nil {
			t.Fatal(err)
		}
	}
	return root
}

func missing(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("COMPACTPROXY_REQUIRE_NODE") == "1" {
		t.Fatalf("a real client cannot be installed: %s", why)
	}
	t.Skipf("SKIPPED, a real client cannot be installed: %s", why)
}
