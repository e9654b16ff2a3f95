package config

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
)

// InMemory is the state.path that keeps nothing on disk.
const InMemory = ":memory:"

// Dir is the folder of the store: state.path, or compactproxy's folder where the
// platform keeps the state of programs ($XDG_STATE_HOME or ~/.local/state,
// ~/Library/Application Support on macOS, %LocalAppData% on Windows). It may be
// [InMemory].
func (s State) Dir() (string, error) {
	if s.Path != "" {
		return s.Path, nil
	}
	return stateDir(runtime.GOOS, os.Getenv, os.UserHomeDir)
}

func stateDir(goos string, env func(string) string, home func() (string, error)) (string, error) {
	const name = "compactproxy"
	switch goos {
	case "windows":
		if dir := env("LocalAppData"); dir != "" {
			return filepath.Join(dir, name), nil
		}
	case "darwin", "ios":
	default:
		// A relative path there is to be ignored, says the XDG specification.
		if dir := env("XDG_STATE_HOME"); filepath.IsAbs(dir) {
			return filepath.Join(dir, name), nil
		}
	}
	dir, err := home()
	if err != nil || dir == "" {
		return "", errors.New("there is no home directory to keep the state in; set state.path, to :memory: for none")
	}
	switch goos {
	case "darwin", "ios":
		return filepath.Join(dir, "Library", "Application Support", name), nil
	case "windows":
		return filepath.Join(dir, "AppData", "Local", name), nil
	}
	return filepath.Join(dir, ".local", "state", name), nil
}
