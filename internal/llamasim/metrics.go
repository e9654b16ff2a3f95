package llamasim

import (
	"fmt"
	"net/http"
	"strconv"
	"sync"
)

// totals are sums over all answers.
type totals struct {
	mu                        sync.Mutex
	prompt, cached, predicted int
	promptSeconds             float64
	predictedSeconds          float64
	longest                   int
}

func (t *totals) add(of timings) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.prompt += of.processed
	t.cached += of.cached
	t.predicted += of.predicted
	t.promptSeconds += of.promptMillis(of.processed) / 1e3
	t.predictedSeconds += of.predictedMillis(of.predicted) / 1e3
	t.longest = max(t.longest, of.cached+of.processed+of.predicted-1)
}

// metrics answers GET /metrics.
func (s *Server) metrics(a *answer) error {
	running, waiting := s.slots.counts()
	t := &s.totals
	t.mu.Lock()
	defer t.mu.Unlock()
	var b []byte
	add := func(kind, name, help string, value float64) {
		b = fmt.Appendf(b, "# HELP llamacpp:%[1]s %[2]s\n# TYPE llamacpp:%[1]s %[3]s\nllamacpp:%[1]s %[4]s\n",
			name, help, kind, strconv.FormatFloat(value, 'g', 6, 64))
	}
	counter := func(name, help string, value float64) { add("counter", name, help, value) }
	gauge := func(name, help string, value float64) { add("gauge", name, help, value) }

	counter("prompt_tokens_total", "Number of prompt tokens processed, excluding cached tokens", float64(t.prompt))
	counter("prompt_tokens_cached_total", "Number of prompt tokens reused from the cache", float64(t.cached))
	counter("prompt_seconds_total", "Total time spent processing prompts", t.promptSeconds)
	counter("tokens_predicted_total", "Number of generation tokens processed", float64(t.predicted))
	counter("tokens_predicted_seconds_total", "Total time spent generating tokens", t.predictedSeconds)
	counter("n_decode_total", "Total number of llama_decode() calls, excluding speculative decoding and multimodal decoding", float64(t.predicted))
	counter("n_tokens_max", "Largest observed sequence length (prompt + generation)", float64(t.longest))
	counter("spec_decode_num_draft_tokens_total", "Speculative: Total draft tokens generated", 0)
	counter("spec_decode_num_accepted_tokens_total", "Speculative: Total draft tokens accepted by the target model", 0)
	counter("spec_decode_num_drafts_total", "Speculative: Total speculative decoding verification steps", 0)
	gauge("prompt_tokens_seconds", "Average prompt throughput in tokens/s", perSecond(t.prompt, t.promptSeconds))
	gauge("predicted_tokens_seconds", "Average generation throughput in tokens/s", perSecond(t.predicted, t.predictedSeconds))
	gauge("requests_processing", "Number of requests processing", float64(running))
	gauge("requests_deferred", "Number of requests deferred", float64(waiting))
	gauge("n_busy_slots_per_decode", "Average number of busy slots per llama_decode() call", 1)

	a.w.Header().Set("Process-Start-Time-Unix", strconv.FormatInt(s.started.Unix(), 10))
	a.send(http.StatusOK, "text/plain; version=0.0.4", b)
	return nil
}

func perSecond(n int, seconds float64) float64 {
	if seconds == 0 {
		return 0
	}
	return float64(n) / seconds
}
