package llamatest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/compactproxy/compactproxy/internal/tinymodel"
)

func TestCachedModel_ParallelWritersAgree(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_CACHE_HOME", filepath.Join(home, "cache"))
	corpus, err := tinymodel.Corpus()
	if err != nil {
		t.Fatal(err)
	}
	o := tinymodel.Options{Corpus: corpus[:min(len(corpus), 300_000)]}
	var want bytes.Buffer
	if err := tinymodel.Write(&want, o); err != nil {
		t.Fatal(err)
	}

	// What test packages in other processes do: they know nothing of the mutex.
	path, err := cachedModel(t, o)
	if err != nil {
		t.Fatal(err)
	}
	var writers sync.WaitGroup
	for range 3 {
		writers.Go(func() {
			if err := writeModel(path, o); err != nil {
				t.Error(err)
			}
		})
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	writers.Wait()
	if !bytes.Equal(got, want.Bytes()) {
		t.Errorf("read %d bytes while others wrote, want the %d of a complete file", len(got), want.Len())
	}
	files, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(files) != 1 {
		t.Errorf("the cache holds %v (%v), want one file", files, err)
	}
}

func TestWriteModel_LeavesNothingBehindOnError(t *testing.T) {
	dir := t.TempDir()
	if err := writeModel(filepath.Join(dir, "model.gguf"), tinymodel.Options{Corpus: "too short"}); err == nil {
		t.Fatal("no error")
	}
	if files, _ := os.ReadDir(dir); len(files) != 0 {
		t.Errorf("left behind: %v", files)
	}
}

// verdict records how a test was ended.
type verdict struct {
	testing.TB
	skipped, failed string
}

func (v *verdict) Helper()                   {}
func (v *verdict) Name() string              { return "TestOfMine" }
func (v *verdict) Skipf(f string, a ...any)  { v.skipped = fmt.Sprintf(f, a...) }
func (v *verdict) Fatalf(f string, a ...any) { v.failed = fmt.Sprintf(f, a...); panic(v) }
func (v *verdict) of(end func(testing.TB)) (out *verdict) {
	defer func() {
		if r := recover(); r != nil {
			out = r.(*verdict)
		}
	}()
	end(v)
	return v
}

func TestUnavailable(t *testing.T) {
	cause := errors.New("none found")
	end := func(tb testing.TB) { unavailable(tb, cause) }

	t.Setenv("COMPACTPROXY_REQUIRE_LLAMA", "")
	v := new(verdict).of(end)
	for _, part := range []string{"NOT TESTED: TestOfMine", "none found", "scripts/llama-server install", "LLAMA_SERVER"} {
		if !strings.Contains(v.skipped, part) {
			t.Errorf("the reason for skipping lacks %q:\n%s", part, v.skipped)
		}
	}

	t.Setenv("COMPACTPROXY_REQUIRE_LLAMA", "1")
	v = new(verdict).of(end)
	if v.skipped != "" || !strings.Contains(v.failed, "none found") {
		t.Errorf("skipped with %q, failed with %q", v.skipped, v.failed)
	}
}

func TestTail_KeepsTheEnd(t *testing.T) {
	l := new(tail)
	line := strings.Repeat("x", 1023) + "\n"
	for range 3 * tailSize / len(line) {
		fmt.Fprint(l, line)
	}
	fmt.Fprint(l, "almost\nthe end\n")
	if got := l.last(10); got != "the end\n" {
		t.Errorf("last lines %q", got)
	}
	if text := l.String(); len(text) > tailSize || !strings.HasSuffix(text, "x\nalmost\nthe end\n") || !strings.HasPrefix(text, "x") {
		t.Errorf("kept %d bytes, from %.20q", len(text), text)
	}
	if len(l.buf) > 2*tailSize+len(line) {
		t.Errorf("holds %d bytes", len(l.buf))
	}
	if !l.contains("almost") || l.contains("never") {
		t.Error("contains is wrong")
	}
}
