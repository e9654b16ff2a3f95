package store

import (
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The package knows the types that it stores, the bytes of a message, and the
// libraries that it stores with; no logger, no HTTP, no compaction.
func TestImports(t *testing.T) {
	allowed := []string{
		"github.com/compactproxy/compactproxy/internal/conversation",
		"github.com/compactproxy/compactproxy/internal/transcript",
		"github.com/go-json-experiment/json/jsontext",
		"github.com/gofrs/flock",
		"github.com/klauspost/compress/zstd",
		"modernc.org/sqlite",
		"modernc.org/sqlite/lib",
	}
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, imp := range f.Imports {
			path, _ := strconv.Unquote(imp.Path.Value)
			if strings.Contains(path, ".") && !slices.Contains(allowed, path) || strings.HasPrefix(path, "net/http") {
				t.Errorf("%s imports %s", name, path)
			}
		}
	}
}
