package cachelens

import (
	"testing"
	"testing/quick"
)

func TestRead(t *testing.T) {
	tests := []struct {
		name string
		turn Turn
		want Reading
	}{
		{"everything reused", Turn{Last: 8000, Prompt: 8200, Cached: 8000}, Reading{8000, 8000, "", false}},
		{"a batch paid again is within the slack", Turn{Last: 8000, Prompt: 8200, Cached: 6976}, Reading{8000, 6976, "", false}},
		{"a quarter of a large prompt is not yet a miss", Turn{Last: 80_000, Prompt: 80_200, Cached: 60_000}, Reading{80_000, 60_000, "", false}},
		{"more than a quarter is", Turn{Last: 80_000, Prompt: 80_200, Cached: 59_999}, Reading{80_000, 59_999, ServerEvicted, true}},
		{"a small prompt lost whole is within the slack", Turn{Last: 1000, Prompt: 1100, Cached: 0}, Reading{1000, 0, "", false}},
		{"a side request threw it out", Turn{Last: 8015, Prompt: 8176, Cached: 10}, Reading{8015, 10, ServerEvicted, true}},
		{"the same prompt again", Turn{Last: 8015, Prompt: 8015, Cached: 8014}, Reading{8014, 8014, "", false}},
		{"a thinking template", Turn{Last: 8086, Prompt: 8200, Cached: 357, NewUser: true, Reasoning: true}, Reading{8086, 357, Template, true}},
		{"a new user message alone is no excuse", Turn{Last: 8086, Prompt: 8200, Cached: 357, NewUser: true}, Reading{8086, 357, ServerEvicted, true}},
		{"compacted", Turn{Last: 12_000, Prompt: 4000, Cached: 349, Compacted: true}, Reading{0, 0, Compaction, false}},
		{"the client changed a message", Turn{Last: 12_000, Prompt: 12_400, Cached: 600, ClientChanged: true}, Reading{0, 0, ClientChanged, false}},
		{"tools before compaction", Turn{Last: 12_000, Prompt: 4000, Cached: 106, ToolsChanged: true, Compacted: true}, Reading{0, 0, ToolsChanged, false}},
		{"system before tools", Turn{Last: 12_000, Prompt: 12_000, Cached: 8, SystemChanged: true, ToolsChanged: true}, Reading{0, 0, SystemChanged, false}},
		{"a changed date that cost little", Turn{Last: 900, Prompt: 1000, Cached: 8, SystemChanged: true}, Reading{0, 0, "", false}},
		{"the first turn", Turn{Prompt: 5000, Cached: 8}, Reading{0, 0, FirstTurn, false}},
		{"a first turn that another conversation has paid for", Turn{Prompt: 5000, Cached: 4900}, Reading{}},
		{"a server that does not say", Turn{Last: 12_000, Prompt: 12_400, Cached: -1}, Reading{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Read(tt.turn); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

// Whatever a server reports, no more is reused than was expected, nothing is
// negative, and only a prompt that extends the last one is a warning's matter.
func TestReadBounds(t *testing.T) {
	property := func(last, prompt uint16, cached int16, system, tools, compacted, changed, user, reasoning bool) bool {
		turn := Turn{int(last), int(prompt), int(cached), system, tools, compacted, changed, user, reasoning}
		r := Read(turn)
		return r.Reused >= 0 && r.Reused <= r.Expected && r.Expected <= int(last) &&
			(!r.Unexplained || !system && !tools && !compacted && !changed && last > 0)
	}
	if err := quick.Check(property, &quick.Config{MaxCount: 20_000}); err != nil {
		t.Error(err)
	}
}
