package compaction

import "github.com/compactproxy/compactproxy/internal/agents"

// thin cuts the results before entry tail to their beginning and their last
// line. Calls stay: a call is small and says where in the work the agent
// stands, a result is large and can be fetched again.
func (s Settings) thin(entries []Entry, tail int) {
	for _, r := range s.results(entries[:tail]) {
		if r.outcome != agents.Refused && r.edit != Thinned {
			r.replace(entries, headLine(r.text, s.ThinChars, s.ThinChars), Thinned)
		}
	}
}

// capResults cuts results from entry tail on to limit characters, beginning
// and end. It is for recovery alone: what an agent holds in its hands is
// shortened only when the request does not fit otherwise. A smaller cap than
// this makes an agent read the file that it spilled its output to, which is cut
// again, for ever.
func (s Settings) capResults(entries []Entry, tail, limit int) {
	for _, r := range s.results(entries) {
		if r.at >= tail && r.edit == Untouched && r.outcome != agents.Refused {
			r.replace(entries, headTail(r.text, limit/2, limit-limit/2), Capped)
		}
	}
}

// maxCap is the largest cap of a protected result in characters: above a
// normal source file and a normal test run.
const maxCap = 30_000

// resultCap is the cap of a protected result: a quarter of the window.
func resultCap(sc Scale) int {
	return min(maxCap, int(float64(sc.windowOrPrompt())/4/sc.Rate()))
}
