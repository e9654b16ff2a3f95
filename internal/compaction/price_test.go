package compaction

import (
	"math"
	"testing"
	"testing/quick"
)

func TestPassesAlone(t *testing.T) {
	// In each case the tokens paid for each token of room, passes against summary.
	for _, tt := range []struct {
		name  string
		price Price
		want  bool
	}{
		{"passes 5000/4000 = 1.25, summary (2500+300+20*600)/6000 = 2.47",
			Price{Threshold: 10_000, Passes: 6000, FirstChange: 1000, Summary: 4000, Head: 1500, Length: 500, Uncached: 300}, true},
		{"passes 7000/2000 = 3.5, summary 2.47",
			Price{Threshold: 10_000, Passes: 8000, FirstChange: 1000, Summary: 4000, Head: 1500, Length: 500, Uncached: 300}, false},
		{"the speed was measured: summary (2500+300+4*600)/6000 = 0.87, passes 1.25",
			Price{Threshold: 10_000, Passes: 6000, FirstChange: 1000, Summary: 4000, Head: 1500, Length: 500, Uncached: 300, Speed: 4}, false},
		{"a slow decoder: summary (2500+300+80*600)/6000 = 8.47, passes 3.5",
			Price{Threshold: 10_000, Passes: 8000, FirstChange: 1000, Summary: 4000, Head: 1500, Length: 500, Uncached: 300, Speed: 80}, true},
		{"equal, 2 and 2: the passes",
			Price{Threshold: 10_000, Passes: 8000, FirstChange: 4000, Summary: 5000, Head: 1000, Length: 470, Uncached: 300, Speed: 10}, true},
		{"one token dearer than equal",
			Price{Threshold: 10_000, Passes: 8000, FirstChange: 3999, Summary: 5000, Head: 1000, Length: 470, Uncached: 300, Speed: 10}, false},
		{"the same on a model that cannot roll back: 7000/2000",
			Price{Threshold: 10_000, Passes: 8000, FirstChange: 1000, Summary: 5000, Head: 1000, Length: 470, Uncached: 300, Speed: 10}, false},
		{"the default speed is 20: 2 against (4000+300+20*285)/5000 = 2",
			Price{Threshold: 10_000, Passes: 8000, FirstChange: 4000, Summary: 5000, Head: 1000, Length: 185, Uncached: 300}, true},
		{"the default speed is not 19",
			Price{Threshold: 10_000, Passes: 8000, FirstChange: 3999, Summary: 5000, Head: 1000, Length: 185, Uncached: 300}, false},
		{"the passes leave it at the threshold",
			Price{Threshold: 10_000, Passes: 10_000, FirstChange: 9999, Summary: 4000, Head: 1500, Length: 500}, false},
		{"the passes leave it above the threshold",
			Price{Threshold: 10_000, Passes: 12_000, FirstChange: 11_999, Summary: 4000, Head: 1500, Length: 500}, false},
		{"neither helps", Price{Threshold: 10_000, Passes: 10_000, Summary: 10_000}, false},
		{"a summary leaves it at the threshold", Price{Threshold: 10_000, Passes: 9999, Summary: 10_000}, true},
		{"a summary leaves it above the threshold", Price{Threshold: 10_000, Passes: 9999, Summary: 12_000}, true},
		{"a summary whose tail nearly fills the threshold", Price{Threshold: 10_000, Passes: 9000, FirstChange: 1000, Summary: 9900, Head: 1000, Length: 500}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.price.PassesAlone(); got != tt.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

// most is the largest share of the threshold that the passes may leave and yet be
// chosen, in a conversation of ordinary proportions.
func most(window int, hybrid bool) float64 {
	share := func(x float64) int { return int(x * float64(window)) }
	threshold := share(0.85)
	p := Price{Threshold: threshold, Head: share(0.08), FirstChange: share(0.14), Length: SummaryLength(window), Uncached: 300}
	p.Summary = p.Head + p.Length + share(0.12)
	if hybrid {
		p.FirstChange = p.Head
	}
	for p.Passes = threshold; p.Passes > p.FirstChange; p.Passes -= threshold / 1000 {
		if p.PassesAlone() {
			return float64(p.Passes) / float64(threshold)
		}
	}
	return 0
}

// Larger windows and models that cannot roll back ask more of the passes; at 128k
// on such a model they almost never win.
func TestPassesAlone_WindowsAndHybrids(t *testing.T) {
	last, lastHybrid := 1.0, 1.0
	for _, window := range []int{16_384, 32_768, 65_536, 131_072, 262_144} {
		plain, hybrid := most(window, false), most(window, true)
		if plain >= last || hybrid >= lastHybrid {
			t.Errorf("%d: passes that leave %.2f (%.2f on a hybrid) suffice, in the window before %.2f (%.2f)", window, plain, hybrid, last, lastHybrid)
		}
		if hybrid > plain {
			t.Errorf("%d: passes may leave %.2f on a hybrid, %.2f elsewhere", window, hybrid, plain)
		}
		last, lastHybrid = plain, hybrid
	}
	if got := most(131_072, true); got > 0.5 {
		t.Errorf("128k on a hybrid: passes that leave %.2f of the threshold suffice; real ones leave 0.65", got)
	}
}

// More room is never a reason against the passes, nor is a dearer summary.
func TestPassesAlone_Monotone(t *testing.T) {
	check := func(threshold, passes, summary, first, head, length, uncached uint16, speed uint8, less, slower uint16) bool {
		p := Price{
			Threshold: int(threshold), Passes: int(passes), Summary: int(summary), Head: min(int(head), int(summary)),
			FirstChange: min(int(first), int(passes)), Length: int(length), Uncached: int(uncached), Speed: 1 + float64(speed),
		}
		if !p.PassesAlone() {
			return true
		}
		better, dearer := p, p
		better.Passes = max(p.FirstChange, p.Passes-int(less))
		dearer.Speed += float64(slower)
		return better.PassesAlone() && dearer.PassesAlone()
	}
	if err := quick.Check(check, &quick.Config{MaxCount: 50_000}); err != nil {
		t.Error(err)
	}
}

func TestSummaryLength(t *testing.T) {
	for window, want := range map[int]int{0: 500, 4096: 500, 16_000: 500, 16_384: 512, 24_576: 768, 32_000: 1000, 32_768: 1000, 262_144: 1000} {
		if got := SummaryLength(window); got != want {
			t.Errorf("window %d: got %d, want %d", window, got, want)
		}
	}
}

func TestSpeed(t *testing.T) {
	type report struct {
		prefilled int
		prefillMS float64
		decoded   int
		decodeMS  float64
	}
	// 1,000 tokens a second prefilled, 50 decoded: 20.
	usable := report{1000, 1000, 100, 2000}
	for _, tt := range []struct {
		name    string
		reports []report
		want    float64
	}{
		{"nothing", nil, 0},
		{"one usable report is not enough", []report{usable}, 0},
		{"two are", []report{usable, usable}, 20},
		{"and more", []report{usable, usable, usable, usable}, 20},
		{"the smallest batches that are usable", []report{{256, 256, 16, 320}, {256, 256, 16, 320}}, 20},
		{"too few tokens prefilled", []report{{255, 255, 100, 2000}, {255, 255, 100, 2000}}, 0},
		{"too few tokens decoded", []report{{1000, 1000, 15, 300}, {1000, 1000, 15, 300}}, 0},
		{"an unusable one counts for nothing", []report{usable, {3, 1, 100, 2000}}, 0},
		{"nor does it come between two others", []report{usable, {3, 1, 100, 2000}, usable}, 20},
		{"no times", []report{usable, {1000, 0, 100, 0}}, 0},
		{"no time of one of them", []report{usable, {1000, 1000, 100, 0}}, 0},
		{"negative times", []report{usable, {1000, -1, 100, -1}}, 0},
		{"negative counts", []report{usable, {-1000, 1000, -100, 2000}}, 0},
		{"garbage after two", []report{usable, usable, {0, 0, 0, 0}, {-1, -1, -1, -1}}, 20},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var s Speed
			for _, r := range tt.reports {
				s = s.Observe(r.prefilled, r.prefillMS, r.decoded, r.decodeMS)
			}
			if got := s.Ratio(); math.Abs(got-tt.want) > 1e-9 {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// Reports that differ give a ratio between those that they would give alone, and
// one odd answer does not decide.
func TestSpeed_Between(t *testing.T) {
	slow := func(s Speed) Speed { return s.Observe(1000, 1000, 100, 1000) }    // 10
	fast := func(s Speed) Speed { return s.Observe(1000, 1000, 100, 100_000) } // 1000
	var s Speed
	s = slow(slow(slow(s)))
	if got := fast(s).Ratio(); got <= 10 || got >= 1000 {
		t.Errorf("after one odd answer: %v", got)
	}
	s = fast(fast(fast(fast(fast(fast(s))))))
	if got := s.Ratio(); got < 200 {
		t.Errorf("after a lasting change: %v", got)
	}
	if before := s.Ratio(); slow(s) == s || s.Ratio() != before {
		t.Error("a speed is a value: the one that was observed on stays as it was")
	}
}
