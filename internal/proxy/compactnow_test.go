package proxy

import (
	"bytes"
	"fmt"
	"net/http"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/compactproxy/compactproxy/internal/compaction"
	"github.com/compactproxy/compactproxy/internal/config"
	"github.com/compactproxy/compactproxy/internal/llamasim"
	"github.com/compactproxy/compactproxy/internal/metrics"
)

// asksNow is a proxy before a scribe that knows a session far below the threshold.
func asksNow(t *testing.T, options ...rigOption) (*rig, *scribe, *filings) {
	t.Helper()
	sim, kept := newScribe().knows(shortSession()), &filings{}
	return start(t, sim, scribed(append([]rigOption{storedIn(t, kept)}, options...)...)...), sim, kept
}

// attempts is how many compactions there were with a trigger, however they ended.
func (p *Proxy) attempts(trigger string) (n float64) {
	for _, kind := range compaction.Kinds {
		for _, result := range []string{metrics.ResultInstalled, metrics.ResultRejected, metrics.ResultObserved} {
			n += testutil.ToFloat64(p.metrics.Compactions.WithLabelValues(trigger, string(kind), result))
		}
	}
	return n
}

// wantUntouched checks that a request went out as it came, and was answered.
func wantUntouched(t *testing.T, sim *scribe, res *http.Response, answer, body []byte) {
	t.Helper()
	if res.StatusCode != http.StatusOK {
		t.Errorf("status %d: %s", res.StatusCode, answer)
	}
	if a, w := res.Header.Get(headerAction), res.Header.Get(headerWarning); a != "none" || w != "" {
		t.Errorf("action %q, warning %q", a, w)
	}
	if sent := sim.forwarded(t); !bytes.Equal(sent, body) {
		t.Errorf("sent %.300s", sent)
	}
}

// A client that asks for it gets a summary, whatever the case of the word, far below
// the threshold; it shows as asked for, and the next request replays it.
func TestCompactNow_AlwaysSummarises(t *testing.T) {
	for _, value := range []string{"now", "Now", "NOW", " now "} {
		for name, rest := range map[string]string{"stream": streamBody, "plain": plainBody} {
			t.Run(value+", "+name, func(t *testing.T) {
				r, sim, kept := asksNow(t)
				res, answer := r.post(t, shortSession().body(rest), headerCompact, value)
				if res.StatusCode != http.StatusOK || !hasAction(res, "summary") || res.Header.Get(headerWarning) != "" {
					t.Fatalf("status %d, header %v: %s", res.StatusCode, res.Header, answer)
				}
				wantSummarised(t, sim.forwarded(t))
				if sim.asked() != 1 || r.installed("request", "summary") != 1 || r.attempts("threshold") != 0 || r.attempts("request") != 1 {
					t.Errorf("%d calls for a summary, %v compactions asked for", sim.asked(), r.attempts("request"))
				}
				filed := kept.all()
				if len(filed) != 1 || filed[0].Summary.Trigger != "request" || filed[0].Summary.Kind != "summary" {
					t.Fatalf("filed %+v", filed)
				}
				if s := filed[0].Summary; s.After >= s.Before || s.Window != scribeWindow || s.Limit <= 0 {
					t.Errorf("filed %+v", s)
				}
				for _, sent := range sim.Requests() {
					for _, name := range ownRequestHeaders {
						if v := sent.Header.Values(name); v != nil {
							t.Errorf("%s got %s: %v", sent.RequestURI, name, v)
						}
					}
				}

				first := rawsOf(forwarded(t, sim.forwarded(t)))
				res, answer = r.post(t, shortSession().reads(5, 1, 200).body(rest))
				if res.StatusCode != http.StatusOK || res.Header.Get(headerAction) != "replay" {
					t.Errorf("the next one: status %d, action %q: %s", res.StatusCode, res.Header.Get(headerAction), answer)
				}
				if !extends(rawsOf(forwarded(t, sim.forwarded(t))), first) {
					t.Error("the next one does not extend it")
				}
			})
		}
	}
}

// Only the one word asks for a compaction, and no other value does harm or is
// passed on.
func TestCompactNow_OtherValues(t *testing.T) {
	for _, value := range []string{"", "1", "true", "yes", "later", "now!", "now, now", "no"} {
		t.Run(value, func(t *testing.T) {
			r, sim, _ := asksNow(t)
			body := shortSession().body(plainBody)
			res, answer := r.post(t, body, headerCompact, value)
			wantUntouched(t, sim, res, answer, body)
			if sim.asked() != 0 || r.attempts("request") != 0 {
				t.Errorf("%d calls for a summary", sim.asked())
			}
			if clients, _ := sim.split(); clients[0].Header.Get(headerCompact) != "" {
				t.Error("the header was passed on")
			}
		})
	}
}

// Where there is next to nothing that a summary could replace, nothing is done, and
// that is no failure. It leaves nothing behind that would hinder a later one.
func TestCompactNow_NothingToCut(t *testing.T) {
	for name, h := range map[string]history{
		"one question":         readsOf(0, 0),
		"a first turn":         readsOf(1, 200),
		"a few turns":          readsOf(3, 400),
		"no system message":    readsOf(1, 200)[1:],
		"only a system prompt": readsOf(0, 0)[:1],
		"no message":           {},
	} {
		t.Run(name, func(t *testing.T) {
			r, sim, kept := asksNow(t)
			body := h.body(plainBody)
			want, _ := post(t, startSimilar(t), body)
			for range 2 {
				res, answer := r.post(t, body, headerCompact, "now")
				if want.StatusCode != http.StatusOK { // a list that the server refuses
					if res.StatusCode != want.StatusCode {
						t.Errorf("status %d, not %d", res.StatusCode, want.StatusCode)
					}
					continue
				}
				wantUntouched(t, sim, res, answer, body)
			}
			if sim.asked() != 0 || len(kept.all()) != 0 {
				t.Errorf("%d calls for a summary, %d checkpoints", sim.asked(), len(kept.all()))
			}
			for _, kind := range compaction.Kinds {
				if n := testutil.ToFloat64(r.metrics.Compactions.WithLabelValues("request", string(kind), metrics.ResultRejected)); n != 0 {
					t.Errorf("%v count as rejected", n)
				}
			}
		})
	}
}

// startSimilar is the address of a server like the scribe's.
func startSimilar(t *testing.T) string {
	t.Helper()
	return start(t, llamasim.New(llamasim.Options{Window: scribeWindow}), withConfig(func(c *config.Config) { c.Compaction.Mode = config.ModeOff })).URL + "/v1/chat/completions"
}

// With summaries off a client that asks gets what can be done without a model.
func TestCompactNow_WithoutSummaries(t *testing.T) {
	for name, without := range map[string]rigOption{
		"disabled":     func(o *Options) { o.Settings.Summary.Enabled = false },
		"no generator": func(o *Options) { o.Generator = nil },
	} {
		t.Run(name, func(t *testing.T) {
			r, sim, kept := asksNow(t, without)
			body := shortSession().body(plainBody)
			res, answer := r.post(t, body, headerCompact, "now")
			if res.StatusCode != http.StatusOK || !hasAction(res, "passes") || hasAction(res, "summary") {
				t.Errorf("status %d, action %q: %s", res.StatusCode, res.Header.Get(headerAction), answer)
			}
			if sim.asked() != 0 || len(kept.all()) != 1 || kept.all()[0].Summary.Trigger != "request" {
				t.Errorf("%d calls for a summary, %d checkpoints", sim.asked(), len(kept.all()))
			}
			if len(sim.forwarded(t)) >= len(body) {
				t.Error("nothing was shortened")
			}
		})
	}
}

// A summary that fails costs the request nothing: it goes out with what the passes
// can do, and the client is told.
func TestCompactNow_AFailedSummary(t *testing.T) {
	for name, reply := range map[string]llamasim.Reply{
		"refused":     {Answer: llamasim.JSONAnswer(500, `{"error":{"message":"boom"}}`)},
		"empty":       {Text: ""},
		"a tool call": {ToolCalls: []llamasim.ToolCall{{ID: "c", Name: "read", Arguments: "{}"}}},
		"cut":         {Text: theSummary, FinishReason: "length"},
		"breaks":      {Text: theSummary, Fault: llamasim.Fault{Kind: llamasim.FaultCut, After: 2}},
		"an error":    {Text: theSummary, Fault: llamasim.Fault{Kind: llamasim.FaultError, After: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			r, sim, _ := asksNow(t)
			sim.reply = func(int) llamasim.Reply { return reply }
			res, answer := r.post(t, shortSession().body(plainBody), headerCompact, "now")
			if res.StatusCode != http.StatusOK || res.Header.Get(headerWarning) == "" || hasAction(res, "summary") {
				t.Errorf("status %d, header %v: %s", res.StatusCode, res.Header, answer)
			}
			if bytes.Contains(sim.forwarded(t), []byte("boom")) || bytes.Contains([]byte(fmt.Sprint(res.Header)), []byte("boom")) {
				t.Error("the server's words came through")
			}
			if sim.asked() == 0 {
				t.Error("no summary was asked for")
			}
			// Asked for by hand, it is tried again.
			asked := sim.asked()
			sim.knows(shortSession())
			sim.reply = nil
			res, _ = r.post(t, shortSession().and(answered, `{"role":"user","content":"go on"}`).body(plainBody), headerCompact, "now")
			if sim.asked() == asked {
				t.Errorf("not tried again: header %v", res.Header)
			}
		})
	}
}

// An agent's request on its own account is never compacted, not even when asked.
func TestCompactNow_SideRequests(t *testing.T) {
	r, sim, kept := asksNow(t)
	for name, h := range map[string]history{"short": shortSession(), "long": longSession()} {
		t.Run(name, func(t *testing.T) {
			body := append(history{`{"role":"system","content":"You are a title generator."}`}, h[1:]...).body(unknown)
			res, answer := r.post(t, body, headerCompact, "now")
			wantUntouched(t, sim, res, answer, body)
		})
	}
	if sim.asked() != 0 || len(kept.all()) != 0 {
		t.Errorf("%d calls for a summary, %d checkpoints", sim.asked(), len(kept.all()))
	}
}

// In mode observe the summary is only said to be due; in mode off nothing happens.
func TestCompactNow_OtherModes(t *testing.T) {
	for mode, want := range map[string]string{"observe": "would-summary", "off": ""} {
		t.Run(mode, func(t *testing.T) {
			r, sim, kept := asksNow(t)
			body := shortSession().body(plainBody)
			res, answer := r.post(t, body, headerCompact, "now", headerMode, mode)
			if res.StatusCode != http.StatusOK || res.Header.Get(headerAction) != want {
				t.Errorf("status %d, action %q: %s", res.StatusCode, res.Header.Get(headerAction), answer)
			}
			if !bytes.Equal(sim.forwarded(t), body) || sim.asked() != 0 || len(kept.all()) != 0 {
				t.Errorf("%d calls for a summary, %d checkpoints; sent %.200s", sim.asked(), len(kept.all()), sim.forwarded(t))
			}
			if clients, _ := sim.split(); clients[0].Header.Get(headerCompact) != "" || clients[0].Header.Get(headerMode) != "" {
				t.Error("our headers were passed on")
			}
		})
	}
}

// Where the window is not known, and so no threshold, a client can ask all the same.
func TestCompactNow_NoWindow(t *testing.T) {
	r, sim, _ := asksNow(t, withWindow(0))
	res, answer := r.post(t, shortSession().body(plainBody), headerCompact, "now")
	if res.StatusCode != http.StatusOK || !hasAction(res, "summary") {
		t.Errorf("status %d, header %v: %s", res.StatusCode, res.Header, answer)
	}
	wantSummarised(t, sim.forwarded(t))
}

// Asking over the threshold is one compaction, not two.
func TestCompactNow_OverTheThreshold(t *testing.T) {
	r, sim, kept := asksNow(t)
	sim.knows(readsOf(11, 2500))
	res, answer := r.post(t, longSession().body(plainBody), headerCompact, "now")
	if res.StatusCode != http.StatusOK || res.Header.Get(headerAction) != "summary" {
		t.Errorf("status %d, header %v: %s", res.StatusCode, res.Header, answer)
	}
	if sim.asked() != 1 || len(kept.all()) != 1 || r.attempts("request") != 1 || r.attempts("threshold") != 0 {
		t.Errorf("%d calls for a summary, %d checkpoints", sim.asked(), len(kept.all()))
	}
}

// A body that is no chat request goes out as it came.
func TestCompactNow_NoChat(t *testing.T) {
	r, sim, _ := asksNow(t)
	for _, body := range []string{`{}`, `{"messages":7}`, `not JSON`, ``} {
		res, _ := r.post(t, []byte(body), headerCompact, "now")
		if res.StatusCode == http.StatusOK {
			t.Errorf("%q: status %d", body, res.StatusCode)
		}
		if sent := sim.forwarded(t); string(sent) != body {
			t.Errorf("sent %q for %q", sent, body)
		}
	}
	if sim.asked() != 0 {
		t.Error("a summary was asked for")
	}
}
