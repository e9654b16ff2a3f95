package upstream_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/compactproxy/compactproxy/internal/corpus"
)

// sharedFile reads a file of the recorded corpus. Without it the test is skipped,
// and what it checks is then checked on testdata alone.
func sharedFile(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(corpus.Path(t, name))
	if err != nil {
		t.Fatal(err)
	}
	return data
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

// sharedFiles reads every file of a folder of the recorded corpus.
func sharedFiles(t testing.TB, folder, pattern string) []namedFile {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(corpus.Path(t, folder), pattern))
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
	return files
}
