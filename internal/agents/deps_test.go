package agents

import (
	"bytes"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The package is a pure leaf: nothing of this module, no I/O, and of the
// outside world only a JSON tokenizer and a shell parser.
func TestImports(t *testing.T) {
	allowed := []string{
		"bytes", "crypto/sha256", "encoding/hex", "errors", "fmt", "io", "maps", "regexp", "slices", "strconv", "strings", "sync",
		"github.com/go-json-experiment/json/jsontext",
		"mvdan.cc/sh/v3/syntax",
	}
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		src, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, src, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, imp := range f.Imports {
			if path, _ := strconv.Unquote(imp.Path.Value); !slices.Contains(allowed, path) {
				t.Errorf("%s imports %s", name, path)
			}
		}
		// The package knows tools, not the wire.
		for _, field := range []string{`"tool_calls"`, `"tool_call_id"`, `"messages"`, `"role"`, `"arguments"`} {
			if bytes.Contains(src, []byte(field)) {
				t.Errorf("%s names the wire field %s", name, field)
			}
		}
	}
}
