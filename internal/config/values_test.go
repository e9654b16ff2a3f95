package config_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/compactproxy/compactproxy/internal/config"
)

func TestParseByteSize(t *testing.T) {
	for text, want := range map[string]config.ByteSize{
		"0":                    0,
		"0B":                   0,
		"512B":                 512,
		"256MiB":               256 << 20,
		"256mib":               256 << 20,
		"2 GiB":                2 << 30,
		"1.5GiB":               3 << 29,
		"500MB":                500e6,
		"64kB":                 64e3,
		"1TB":                  1e12,
		"3PiB":                 3 << 50,
		"9223372036854775807B": 1<<63 - 1,
	} {
		got, err := config.ParseByteSize(text)
		if err != nil || got != want {
			t.Errorf("%q: got %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", "256", "MiB", "-1MiB", "+1MiB", "1e3B", "0x10B", "1,5GiB", "256M", "256 megabytes", "1.B", ".5B", "0.1B",
		"9223372036854775808B", "8192PiB", "1MiB ", " 1MiB", "1  MiB", "1_000B", "NaN", strings.Repeat("9", 1000) + "B",
	} {
		if got, err := config.ParseByteSize(text); err == nil {
			t.Errorf("%q: got %s, want an error", text, got)
		}
	}
}

func TestByteSize_RoundTrip(t *testing.T) {
	for size, want := range map[config.ByteSize]string{
		0: "0B", 1: "1B", 1000: "1KB", 1024: "1KiB", 1e6: "1MB", 1 << 20: "1MiB", 3 << 29: "1536MiB",
		1<<30 + 1: "1073741825B", 1<<63 - 1: "9223372036854775807B",
	} {
		if got := size.String(); got != want {
			t.Errorf("%d: got %s, want %s", size, got, want)
		}
		var back config.ByteSize
		if err := back.UnmarshalText([]byte(size.String())); err != nil || back != size {
			t.Errorf("%s: got back %d, %v", size, back, err)
		}
	}
	if got := config.ByteSize(-1 << 63).String(); got != "-9223372036854775808B" {
		t.Errorf("smallest: got %s", got)
	}
	if err := new(config.ByteSize).UnmarshalText([]byte("12")); err == nil || err.Error() != `"12" needs a unit` {
		t.Errorf("got %v", err)
	}
}

func TestParseRatio(t *testing.T) {
	for text, want := range map[string]config.Ratio{
		"auto": {}, "0": config.Exactly(0), "0.66": config.Exactly(0.66), "1": config.Exactly(1), ".5": config.Exactly(0.5),
		"1e-3": config.Exactly(0.001), "-2": config.Exactly(-2),
	} {
		got, err := config.ParseRatio(text)
		if err != nil || got != want {
			t.Errorf("%q: got %v, %v", text, got, err)
		}
		if back, err := config.ParseRatio(got.String()); err != nil || back != got {
			t.Errorf("%q: got back %v, %v", text, back, err)
		}
	}
	for _, text := range []string{"", "Auto", "66%", "inf", "NaN", "0x1p-2", "1_0", "1e999", "0,5"} {
		if got, err := config.ParseRatio(text); err == nil {
			t.Errorf("%q: got %v, want an error", text, got)
		}
	}
}

func TestSecret_IsNeverShown(t *testing.T) {
	cfg := config.Default()
	cfg.AdminToken = "canary"
	cfg.APIKeys = []config.Secret{"canary-1", "canary-2"}
	cfg.Upstream.APIKey = "canary"
	cfg.Upstream.URL = "http://canary:canary@host/v1?key=canary"

	encoded, err := json.Marshal(cfg.APIKeys)
	if err != nil {
		t.Fatal(err)
	}
	inYAML, err := yaml.Marshal(map[string]any{"config": cfg, "keys": cfg.APIKeys})
	if err != nil {
		t.Fatal(err)
	}
	for how, text := range map[string]string{
		"%v":        fmt.Sprintf("%v %+v", cfg.AdminToken, cfg.APIKeys),
		"%s":        fmt.Sprintf("%s %q", cfg.AdminToken, cfg.APIKeys),
		"%#v":       fmt.Sprintf("%#v %#v", cfg.AdminToken, cfg.APIKeys),
		"JSON":      string(encoded),
		"YAML":      string(inYAML),
		"Effective": string(config.Effective(cfg)),
		"Validate":  cfg.Validate().Error(),
	} {
		if strings.Contains(text, "canary") {
			t.Errorf("%s shows it: %s", how, text)
		}
		if how != "Validate" && !strings.Contains(text, "********") {
			t.Errorf("%s shows no mask: %s", how, text)
		}
	}
	if got := cfg.AdminToken.Reveal(); got != "canary" {
		t.Errorf("Reveal: got %q", got)
	}
	if got := config.Secret("").String(); got != "" {
		t.Errorf("empty: got %q", got)
	}
}
