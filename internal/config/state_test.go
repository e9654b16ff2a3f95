package config

import (
	"errors"
	"testing"
)

func TestStateDir(t *testing.T) {
	tests := []struct {
		name, goos string
		env        map[string]string
		home, want string
	}{
		{"Linux", "linux", nil, "/home/a", "/home/a/.local/state/compactproxy"},
		{"XDG", "linux", map[string]string{"XDG_STATE_HOME": "/data"}, "/home/a", "/data/compactproxy"},
		{"a relative XDG folder is ignored", "linux", map[string]string{"XDG_STATE_HOME": "data"}, "/home/a", "/home/a/.local/state/compactproxy"},
		{"XDG without a home", "freebsd", map[string]string{"XDG_STATE_HOME": "/data"}, "", "/data/compactproxy"},
		{"macOS", "darwin", map[string]string{"XDG_STATE_HOME": "/data"}, "/Users/a", "/Users/a/Library/Application Support/compactproxy"},
		{"nowhere", "linux", nil, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			home := func() (string, error) {
				if tt.home == "" {
					return "", errors.New("no home")
				}
				return tt.home, nil
			}
			got, err := stateDir(tt.goos, func(name string) string { return tt.env[name] }, home)
			if got != tt.want || (err != nil) != (tt.want == "") {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
	for _, path := range []string{"/somewhere", InMemory} {
		if got, err := (State{Path: path}).Dir(); got != path || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
	}
}
