package pairing

import (
	"fmt"
	"strings"
	"testing"

	"github.com/compactproxy/compactproxy/internal/transcript"
)

// hostile lists are small to send and would cost seconds if anything in a repair
// were quadratic. The work is counted in allocated bytes, not in time.
func TestRepair_CostIsLinear(t *testing.T) {
	for name, make := range map[string]func(n int) string{
		"calls cut off": func(n int) string {
			call := `{"id":"a","type":"function","function":{"name":"f","arguments":"{\"x"}}`
			return `{"role":"assistant","tool_calls":[` + strings.Repeat(call+",", n-1) + call + `]}`
		},
		"orphans behind a user": func(n int) string {
			return `{"role":"user","content":"x"}` + strings.Repeat(`,{"role":"tool","tool_call_id":"z","content":"y"}`, n)
		},
		"orphans first": func(n int) string {
			return `{"role":"tool","content":"y"}` + strings.Repeat(`,{"role":"tool","tool_call_id":"z","content":"y"}`, n)
		},
	} {
		t.Run(name, func(t *testing.T) {
			cost := func(n int) int64 {
				body, err := transcript.Parse([]byte(`{"messages":[` + make(n) + `]}`))
				if err != nil {
					t.Fatal(err)
				}
				return testing.Benchmark(func(b *testing.B) {
					b.ReportAllocs()
					for b.Loop() {
						if v := Check(Repair(body.Messages).Messages); v != nil {
							b.Fatal(v)
						}
					}
				}).AllocedBytesPerOp()
			}
			if small, large := cost(200), cost(1600); large > 14*small {
				t.Errorf("eight times the list cost %d times the memory (%d bytes, then %d)", large/small, small, large)
			}
		})
	}
}

// A legal batch of many calls is matched without looking at each call for each
// result: 40,000 would take some seconds here otherwise.
func TestCheck_ManyCalls(t *testing.T) {
	const n = 40_000
	var calls, results strings.Builder
	for i := range n {
		if i > 0 {
			calls.WriteByte(',')
		}
		fmt.Fprintf(&calls, `{"id":"c%d","type":"function","function":{"name":"f","arguments":"{}"}}`, i)
		fmt.Fprintf(&results, `,{"role":"tool","tool_call_id":"c%d","content":""}`, n-1-i)
	}
	body, err := transcript.Parse([]byte(`{"messages":[{"role":"assistant","tool_calls":[` + calls.String() + `]}` + results.String() + `]}`))
	if err != nil {
		t.Fatal(err)
	}
	if v := Check(body.Messages); v != nil {
		t.Errorf("%d violations, first %v", len(v), v[0])
	}
}
