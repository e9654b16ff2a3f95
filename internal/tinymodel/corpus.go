package tinymodel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"runtime"
	"strings"
)

// corpusFiles are patterns below GOROOT, with the number of bytes to take from
// each. Together they give about as much English as code, which is what a
// coding agent's conversation is made of. More text makes the training slower
// without making the tokens noticeably better.
var corpusFiles = []struct {
	pattern string
	bytes   int
}{
	{"src/cmd/go/alldocs.go", 200_000},
	{"doc/go_spec.html", 100_000},
	{"*.md", 20_000},
	{"src/net/http/*.go", 500_000},
	{"src/encoding/json/*.go", 300_000},
	{"src/os/*.go", 200_000},
	{"src/text/template/*.go", 100_000},
	{"src/testing/*.go", 100_000},
}

// Corpus returns the default training text, read from the Go installation that
// built the program or, where the program does not know it, the one that the go
// command reports.
func Corpus() (string, error) {
	root, err := goroot()
	if err != nil {
		return "", fmt.Errorf("tinymodel: find training text: %w", err)
	}
	text, err := readCorpus(os.DirFS(root))
	if err != nil {
		return "", fmt.Errorf("tinymodel: training text below %s: %w", root, err)
	}
	return text, nil
}

func goroot() (string, error) {
	// runtime.GOROOT would do for most programs, but it is deprecated because it
	// names the building machine's folder, and it is empty with -trimpath.
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if root := strings.TrimSpace(string(out)); err == nil && root != "" {
		return root, nil
	}
	//lint:ignore SA1019 only where there is no go command
	if root := runtime.GOROOT(); root != "" {
		return root, nil
	}
	if err == nil {
		err = errors.New("go env GOROOT is empty")
	}
	return "", err
}

func readCorpus(root fs.FS) (string, error) {
	var text strings.Builder
	for _, c := range corpusFiles {
		names, err := fs.Glob(root, c.pattern) // sorted, so the text is reproducible
		if err != nil {
			return "", err
		}
		left := c.bytes
		for _, name := range names {
			if left <= 0 {
				break
			}
			// Tables of hashes, keys and encoded data would fill the vocabulary
			// with fragments that no conversation contains.
			if base := path.Base(name); strings.HasPrefix(base, "z") || strings.Contains(base, "bundle") {
				continue
			}
			data, err := fs.ReadFile(root, name)
			if err != nil {
				return "", err
			}
			data = data[:min(len(data), left, 60_000)]
			left -= len(data)
			text.Write(data)
			text.WriteByte('\n')
		}
	}
	return text.String(), nil
}
