package metrics

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// TestNew: every collector is there from the start, counters at 0, and the names
// pass Prometheus's own lint.
func TestNew(t *testing.T) {
	reg := prometheus.NewRegistry()
	New(reg, "v1", "abc", Labels{
		Passes: []string{"thin"}, Kinds: []string{"passes"}, ViolationKinds: []string{"orphan_result"}, MissReasons: []string{"compaction"},
		Styles: []string{"extend"}, Rejections: []string{"empty"},
	})
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, f := range families {
		name, own := strings.CutPrefix(f.GetName(), "compactproxy_")
		if !own {
			continue
		}
		found[name] = true
		for _, m := range f.GetMetric() {
			if c := m.GetCounter(); c != nil && c.GetValue() != 0 {
				t.Errorf("%s starts at %v", name, c.GetValue())
			}
		}
	}
	for _, name := range []string{
		"requests_total", "request_duration_seconds", "time_to_first_byte_seconds", "overhead_seconds", "inflight_requests",
		"prompt_tokens_total", "completion_tokens_total", "compactions_total", "pass_removed_bytes_total",
		"compaction_tokens_total", "overflow_retries_total", "pairing_violations_total", "upstream_context_tokens",
		"conversations", "state_bytes", "build_info", "prefix_expected_tokens_total", "prefix_reused_tokens_total",
		"cache_misses_total", "forecast_error_ratio", "rereads_total", "state_degraded", "summaries_total", "summary_duration_seconds",
		"summary_prompt_tokens_total", "summary_rejections_total",
	} {
		if !found[name] {
			t.Errorf("compactproxy_%s is missing", name)
		}
	}
	problems, err := testutil.GatherAndLint(reg)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "compactproxy_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}
