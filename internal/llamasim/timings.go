package llamasim

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
)

// speeds are the rates that timings are computed from, in tokens a second.
type speeds struct{ prompt, predicted float64 }

// promptMillis is how long n tokens of a prompt take, to the microsecond.
func (s speeds) promptMillis(n int) float64 {
	return max(0.001, millis(float64(n)/s.prompt))
}

// predictedMillis is how long it takes to generate n tokens. The clock starts
// with the first of them, which seems to take no time.
func (s speeds) predictedMillis(n int) float64 {
	if n == 0 {
		return 0
	}
	return max(0.001, millis(float64(n-1)/s.predicted))
}

func millis(seconds float64) float64 { return math.Round(seconds*1e6) / 1e3 }

// timings are the figures of one answer, as far as it has come.
type timings struct {
	speeds
	cached, processed, predicted int
}

func (t timings) append(b []byte) []byte {
	prompt := t.promptMillis(t.processed)
	b = fmt.Appendf(b, `{"cache_n":%d,"prompt_n":%d,"prompt_ms":`, t.cached, t.processed)
	b = appendFloat(b, prompt)
	b = append(b, `,"prompt_per_token_ms":`...)
	b = appendFloat(b, prompt/float64(t.processed))
	b = append(b, `,"prompt_per_second":`...)
	b = appendFloat(b, 1e3/prompt*float64(t.processed))

	predicted := t.predictedMillis(t.predicted)
	perToken, perSecond := 0.0, 0.0
	if n := float64(t.predicted - 1); n > 0 {
		perToken, perSecond = predicted/n, 1e3/predicted*n
	}
	b = fmt.Appendf(b, `,"predicted_n":%d,"predicted_ms":`, t.predicted)
	b = appendFloat(b, predicted)
	b = append(b, `,"predicted_per_token_ms":`...)
	b = appendFloat(b, perToken)
	b = append(b, `,"predicted_per_second":`...)
	b = appendFloat(b, perSecond)
	return append(b, '}')
}

// appendUsage appends the usage object.
func (t timings) appendUsage(b []byte) []byte {
	prompt := t.cached + t.processed
	return fmt.Appendf(b, `{"completion_tokens":%d,"prompt_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}`,
		t.predicted, prompt, prompt+t.predicted, t.cached)
}

// appendFloat appends a floating-point number as the real server prints it:
// in full, and never without a decimal point.
func appendFloat(b []byte, f float64) []byte {
	start := len(b)
	b = strconv.AppendFloat(b, f, 'f', -1, 64)
	if !bytes.Contains(b[start:], []byte(".")) {
		b = append(b, ".0"...)
	}
	return b
}
