package upstream_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// sharedRoots are the folders in which development data may lie that is not part of a checkout: the
// one in COMPACTPROXY_SHARED, or one named "shared" beside any folder above this one.
func sharedRoots(t testing.TB) []string {
	t.Helper()
	if dir := os.Getenv("COMPACTPROXY_SHARED"); dir != "" {
		return []string{dir}
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	var roots []string
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		roots = append(roots, filepath.Join(dir, "shared"))
	}
	return roots
}

// sharedFile reads a file of the development data. Without it the test is skipped, and what it checks
// is then checked on testdata alone.
func sharedFile(t testing.TB, name string) []byte {
	t.Helper()
	for _, root := range sharedRoots(t) {
		if data, err := os.ReadFile(filepath.Join(root, "data", name)); err == nil {
			return data
		}
	}
	t.Skipf("NOT TESTED: data/%s not found; set COMPACTPROXY_SHARED to the folder that holds it", name)
	return nil
}

// jsonLines decodes a JSONL file, keeping the order.
func jsonLines[T any](t testing.TB, data []byte) []T {
	t.Helper()
	var rows []T
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		var row T
		dec := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		if err := dec.Decode(&row); err != nil {
			t.Fatalf("line %d: %v", n, err)
		}
		rows = append(rows, row)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return rows
}

func testdata(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

type namedFile struct {
	name string
	data []byte
}

// sharedFiles reads every file of a folder of the development data, as sharedFile does one.
func sharedFiles(t testing.TB, folder, pattern string) []namedFile {
	t.Helper()
	for _, root := range sharedRoots(t) {
		paths, err := filepath.Glob(filepath.Join(root, "data", folder, pattern))
		if err != nil {
			t.Fatal(err)
		}
		var files []namedFile
		for _, path := range paths {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, namedFile{filepath.Base(path), data})
		}
		if len(files) > 0 {
			return files
		}
	}
	t.Skipf("NOT TESTED: data/%s/%s not found; set COMPACTPROXY_SHARED to the folder that holds it", folder, pattern)
	return nil
}
