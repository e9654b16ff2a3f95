package llamatest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/compactproxy/compactproxy/internal/tinymodel"
)

// writing keeps the tests of one package from building the same model at the
// same time. Test packages that run in parallel may still do so; that is only a
// waste, since each file appears under its name complete.
var writing sync.Mutex

// cachedModel returns the path of the model's file, which it writes if no test
// on this machine has done so before.
func cachedModel(t testing.TB, o tinymodel.Options) (string, error) {
	t.Helper()
	key, err := o.Key()
	if err != nil {
		return "", err
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		dir = t.TempDir() // no home, so no cache: the model is built each time
	}
	dir = filepath.Join(dir, "compactproxy", "models")
	arch := o.Arch
	if arch == "" {
		arch = tinymodel.Qwen2
	}
	path := filepath.Join(dir, fmt.Sprintf("tiny-%s-%s.gguf", arch, key))

	writing.Lock()
	defer writing.Unlock()
	if _, err := os.Stat(path); err == nil {
		return path, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("cached model: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("model cache: %w", err)
	}
	if err := writeModel(path, o); err != nil {
		return "", fmt.Errorf("write model: %w", err)
	}
	return path, nil
}

// writeModel writes under another name first, so that whoever finds a file at
// path finds all of it.
func writeModel(path string, o tinymodel.Options) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".tiny-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	if err := tinymodel.Write(f, o); err != nil {
		return err
	}
	// The rename must not reach the disk before the contents do: the file is
	// never looked at again, except by its name.
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
