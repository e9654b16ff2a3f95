package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/compactproxy/compactproxy/internal/config"
)

// Any bytes are a valid configuration or a list of problems, one a line. A valid one is valid by Validate too, and reads back
// from its effective form unless that masks a secret.
func FuzzLoad(f *testing.F) {
	paths, err := filepath.Glob("testdata/invalid/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range append(paths, shipped) {
		content, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(content)
	}
	f.Add([]byte(everyKey))
	f.Add([]byte("pin: false\nkeepalive: 0\nstate: {path: \"a\\nb\"}\nupstream: {url: https://h/a%2fb/v1/}\n"))
	f.Add([]byte("models: [{name: m}, {name: \"1\"}]\ncompaction: {tools: [{name: '~', errors: [a, &b b, *b]}]}\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		cfg, err := config.Load(config.Source{Path: "f.yaml", File: content})
		if err != nil {
			problems, ok := err.(config.Problems)
			if !ok || len(problems) == 0 {
				t.Fatalf("%T: %v", err, err)
			}
			for _, p := range problems {
				if p.Key == "" || p.Text == "" || strings.ContainsAny(p.Error(), "\n\r") {
					t.Errorf("%+v", p)
				}
			}
			return
		}
		if err := cfg.Validate(); err != nil {
			t.Fatal(err)
		}
		effective := config.Effective(cfg)
		if cfg.AdminToken != "" || cfg.Upstream.APIKey != "" || len(cfg.APIKeys) > 0 {
			return
		}
		back, err := config.Load(config.Source{File: effective})
		if err != nil {
			t.Fatalf("%v\n%s", err, effective)
		}
		if diff := cmp.Diff(cfg, back); diff != "" {
			t.Errorf("(-got +back):\n%s\n%s", diff, effective)
		}
	})
}
