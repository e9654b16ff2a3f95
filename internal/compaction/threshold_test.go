package compaction

import (
	"strings"
	"testing"
	"testing/quick"
)

func TestReserve(t *testing.T) {
	for _, tt := range []struct{ window, requested, want int }{
		{4096, 0, 1024}, // a quarter
		{8192, 0, 2048},
		{16_384, 0, 4096}, // both the quarter and the floor
		{32_768, 0, 4096}, // both the eighth and the floor
		{65_536, 0, 8192}, // an eighth
		{131_072, 0, 16_384},
		{262_144, 0, 32_768},
		// qwen-code sends 32,000 with every request, whatever the window.
		{4096, 32_000, 1024},
		{16_384, 32_000, 4096},
		{32_768, 32_000, 4096},
		{131_072, 32_000, 16_384},
		{262_144, 32_000, 32_000},
		// A small cap is believed.
		{16_384, 1, 1},
		{16_384, 500, 500},
		{16_384, 4096, 4096},
		{16_384, 4097, 4096},
	} {
		if got := Reserve(tt.window, tt.requested); got != tt.want {
			t.Errorf("window %d, max_tokens %d: got %d, want %d", tt.window, tt.requested, got, tt.want)
		}
	}
}

func TestThreshold(t *testing.T) {
	for _, tt := range []struct {
		name   string
		limits Limits
		want   int
		warns  string // words of the warning, "" for none
	}{
		// auto, exact: 0.85 of the window, and room for the answer.
		{"exact, 4k: the reserve decides", Limits{Window: 4096, Exact: true}, 3072, ""},
		{"exact, 8k", Limits{Window: 8192, Exact: true}, 6144, ""},
		{"exact, 16k", Limits{Window: 16_384, Exact: true}, 12_288, ""},
		{"exact, 32k: the share decides", Limits{Window: 32_768, Exact: true}, 27_852, ""},
		{"exact, 64k", Limits{Window: 65_536, Exact: true}, 55_705, ""},
		{"exact, 128k", Limits{Window: 131_072, Exact: true}, 111_411, ""},
		{"exact, 256k", Limits{Window: 262_144, Exact: true}, 222_822, ""},
		{"exact, a cap of 32,000 does not eat a small window", Limits{Window: 16_384, Requested: 32_000, Exact: true}, 12_288, ""},
		{"exact, a cap of 32,000 in a large one", Limits{Window: 131_072, Requested: 32_000, Exact: true}, 111_411, ""},
		{"exact, a small cap leaves the share", Limits{Window: 4096, Requested: 100, Exact: true}, 3481, ""},

		// auto, forecast alone: 0.66.
		{"forecast, 4k", Limits{Window: 4096}, 2703, ""},
		{"forecast, 16k", Limits{Window: 16_384}, 10_813, ""},
		{"forecast, 32k", Limits{Window: 32_768}, 21_626, ""},
		{"forecast, 256k", Limits{Window: 262_144}, 173_015, ""},
		{"forecast, max_tokens", Limits{Window: 32_768, Requested: 32_000}, 21_626, ""},

		// auto and overhead: half of the rest at least.
		{"exact, an overhead that changes nothing", Limits{Window: 16_384, Overhead: 8000, Exact: true}, 12_288, ""},
		{"exact, an overhead that lifts it", Limits{Window: 16_384, Overhead: 10_000, Exact: true}, 13_192, ""},
		{"forecast, an overhead that lifts it", Limits{Window: 16_384, Overhead: 8000}, 12_192, ""},
		{"the overhead is the window", Limits{Window: 8192, Overhead: 8192, Exact: true}, 8192, ""},

		// The user's own fraction stands as it is.
		{"half", Limits{Window: 32_768, Fraction: 0.5, Exact: true}, 16_384, ""},
		{"half, not exact", Limits{Window: 32_768, Fraction: 0.5}, 16_384, ""},
		{"half, max_tokens changes nothing", Limits{Window: 32_768, Fraction: 0.5, Requested: 32_000}, 16_384, ""},
		{"all of it", Limits{Window: 4096, Fraction: 1, Exact: true}, 4096, ""},
		{"below the overhead", Limits{Window: 16_384, Fraction: 0.25, Overhead: 5000}, 4096, "5000"},
		{"above the overhead", Limits{Window: 16_384, Fraction: 0.25, Overhead: 4000}, 4096, ""},

		// The user's own number.
		{"at_tokens", Limits{Window: 32_768, AtTokens: 12_000, Exact: true}, 12_000, ""},
		{"at_tokens before a fraction", Limits{Window: 32_768, AtTokens: 12_000, Fraction: 0.5}, 12_000, ""},
		{"at_tokens, the last that leaves the reserve", Limits{Window: 32_768, AtTokens: 28_672}, 28_672, ""},
		{"at_tokens above the room is lowered", Limits{Window: 32_768, AtTokens: 28_673}, 28_672, "at_tokens 28673"},
		{"at_tokens above the window is lowered", Limits{Window: 16_384, AtTokens: 100_000, Exact: true}, 12_288, "at_tokens 100000"},
		{"at_tokens and a small cap", Limits{Window: 32_768, AtTokens: 30_000, Requested: 1000}, 30_000, ""},
		{"at_tokens below the overhead", Limits{Window: 32_768, AtTokens: 6000, Overhead: 7000}, 6000, "7000"},
		{"at_tokens without a window", Limits{AtTokens: 12_000}, 12_000, ""},
		{"at_tokens without a window, below the overhead", Limits{AtTokens: 6000, Overhead: 7000}, 6000, "7000"},

		// Nothing to go by: only recovery.
		{"nothing known", Limits{}, 0, ""},
		{"nothing known, exact", Limits{Exact: true, Overhead: 5000, Requested: 100}, 0, ""},
		{"a fraction of an unknown window", Limits{Fraction: 0.5}, 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, warning := tt.limits.Threshold()
			if got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
			if (warning == "") != (tt.warns == "") || !strings.Contains(warning, tt.warns) {
				t.Errorf("warning %q, want one with %q", warning, tt.warns)
			}
		})
	}
}

// The automatic threshold leaves room for the answer unless the overhead lifts it,
// leaves half of the room behind the overhead to the conversation, never reaches
// the window, and rises with it. It never warns: nobody chose it.
func TestThresholdAuto(t *testing.T) {
	check := func(w, more uint32, overhead, requested uint16, exact bool) bool {
		window := 512 + int(w%(1<<19))
		l := Limits{Window: window, Requested: int(requested), Overhead: int(overhead) % window, Exact: exact}
		got, warning := l.Threshold()
		lifted := l.Overhead + (window-l.Overhead)/2
		larger := l
		larger.Window += int(more % (1 << 19))
		above, _ := larger.Threshold()
		return warning == "" && got >= lifted && got < window &&
			(got <= window-Reserve(window, l.Requested) || got == lifted) &&
			above >= got
	}
	if err := quick.Check(check, &quick.Config{MaxCount: 50_000}); err != nil {
		t.Error(err)
	}
}

// A server that counts is trusted with more of its window, never with less.
func TestThresholdExactIsLater(t *testing.T) {
	check := func(w uint32, overhead, requested uint16) bool {
		l := Limits{Window: 512 + int(w%(1<<19)), Requested: int(requested), Overhead: int(overhead) / 64}
		forecast, _ := l.Threshold()
		l.Exact = true
		exact, _ := l.Threshold()
		return exact >= forecast
	}
	if err := quick.Check(check, &quick.Config{MaxCount: 20_000}); err != nil {
		t.Error(err)
	}
}

// However the reports lie: the forecast is within the plausible range, neither
// falls as bytes are added, and it never comes below what was reported for a list
// that only grew.
func TestForecastProperties(t *testing.T) {
	check := func(r1, r2 struct{ Tokens, Bytes uint16 }, reports uint8, size, more uint32) bool {
		var a Anchor
		if reports%3 > 1 {
			a = a.Observe(Report{int(r1.Tokens), int(r1.Bytes)})
		}
		if reports%3 > 0 {
			a = a.Observe(Report{int(r2.Tokens), int(r2.Bytes)})
		}
		bytes := int(size % (1 << 18))
		n, above := a.Forecast(bytes), a.Forecast(bytes+int(more%(1<<18)))
		low, high := a.Plausible(bytes)
		if n < low || n > high || above < n || n < 0 {
			return false
		}
		return !a.Known() || bytes < a.Last.Bytes || n >= a.Last.Tokens
	}
	if err := quick.Check(check, &quick.Config{MaxCount: 100_000}); err != nil {
		t.Error(err)
	}
}
