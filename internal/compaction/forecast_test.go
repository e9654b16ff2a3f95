package compaction

import "testing"

// The seed's oracles.
func TestForecast(t *testing.T) {
	tests := []struct {
		name    string
		reports []Report
		bytes   int
		tokens  int
		known   bool
	}{
		{"one report: a third of a token for each byte more", []Report{{2000, 1000}}, 1300, 2100, true},
		{"two reports: the rate between them", []Report{{1000, 1000}, {1450, 1900}}, 2900, 1950, true},
		{"a measured rate below a third is not believed", []Report{{1000, 1000}, {1010, 9000}}, 12000, 2010, true},
		{"two reports too near to each other", []Report{{49000, 149960}, {50000, 150000}}, 162000, 54000, true},
		{"a rate above one is not believed", []Report{{1000, 1000}, {3000, 2000}}, 2100, 3100, true},
		{"exactly 512 bytes apart is far enough", []Report{{1000, 1000}, {1512, 1512}}, 1812, 1812, true},
		{"511 bytes apart is not", []Report{{1000, 1000}, {1511, 1511}}, 1811, 1611, true},
		{"fewer tokens than before give no rate", []Report{{2000, 1000}, {1900, 2000}}, 2300, 2000, true},
		{"the same tokens as before give no rate", []Report{{2000, 1000}, {2000, 2000}}, 2300, 2100, true},
		{"fewer bytes than before give no rate", []Report{{1000, 9000}, {1500, 1000}}, 1300, 1600, true},
		{"only the last two reports count", []Report{{10, 10}, {1000, 1000}, {1450, 1900}}, 2900, 1950, true},
		{"nothing added", []Report{{2000, 1000}}, 1000, 2000, true},
		{"half of the bytes are half of the tokens", []Report{{1000, 1000}, {3000, 6000}}, 3000, 1500, true},
		{"no report yet", nil, 900, 300, false},
		{"no report, no bytes", nil, 0, 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var a Anchor
			for _, r := range tt.reports {
				a = a.Observe(r)
			}
			tokens, known := a.Forecast(tt.bytes), a.Known()
			if tokens != tt.tokens || known != tt.known {
				t.Errorf("got %d, %v, want %d, %v", tokens, known, tt.tokens, tt.known)
			}
			if low, high := a.Plausible(tt.bytes); tokens < low || tokens > high {
				t.Errorf("the forecast %d is not within the plausible %d to %d", tokens, low, high)
			}
		})
	}
}

// An anchor is a value: the one that was observed on stays as it was.
func TestObserveLeavesItsReceiver(t *testing.T) {
	var a Anchor
	b := a.Observe(Report{10, 10})
	_ = b.Observe(Report{20, 20})
	if (a != Anchor{}) || b.Last != (Report{10, 10}) {
		t.Errorf("got %+v and %+v", a, b)
	}
}
