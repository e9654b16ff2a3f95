package compaction

import "github.com/compactproxy/compactproxy/internal/agents"

// Settings are the knobs of section "compaction" of the configuration.
type Settings struct {
	Tools      agents.Table
	KeepRecent int     // turns that stay protected
	TailMin    float64 // share of the window that the protected turns may grow to
	TailMax    float64 // share of the window above which they shrink
	ThinChars  int     // characters that a thinned result keeps

	// Settle is the share of the threshold down to which the passes alone are
	// enough; negative chooses by price against a summary.
	Settle float64

	Summary SummarySettings

	CarriedState bool // the agent's plan survives when its newest call is dropped
}

// DefaultSettings are the configuration's defaults with the built-in tools.
func DefaultSettings() Settings {
	return Settings{Tools: agents.Builtin(), KeepRecent: 3, TailMin: 0.10, TailMax: 0.15, ThinChars: 240, Settle: 0.8, CarriedState: true,
		Summary: SummarySettings{Style: StyleAuto, Validate: true, Max: 8192},
	}
}
