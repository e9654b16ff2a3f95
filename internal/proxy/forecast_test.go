package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/compactproxy/compactproxy/internal/compaction"
	"github.com/compactproxy/compactproxy/internal/config"
	"github.com/compactproxy/compactproxy/internal/llamasim"
	"github.com/compactproxy/compactproxy/internal/metrics"
	"github.com/compactproxy/compactproxy/internal/pairing"
	"github.com/compactproxy/compactproxy/internal/transcript"
	"github.com/compactproxy/compactproxy/internal/upstream"
)

// ---- helpers

// forecasting is a rig with the configuration's defaults that knows the window. It
// counts only if counted is among the options.
func forecasting(t testing.TB, server http.Handler, window int, options ...rigOption) *settled {
	t.Helper()
	defaults := withConfig(func(c *config.Config) {
		fresh := config.Default().Compaction
		c.Compaction.Threshold, c.Compaction.Predictive = fresh.Threshold, fresh.Predictive
	})
	return settling(t, server, append([]rigOption{defaults, withWindow(window)}, options...)...)
}

// counted is counting by a proxy that has found out already that the server does.
func counted(o *Options) {
	counting(o)
	if err := o.Counter.(*upstream.Counter).Probe(context.Background()); err != nil {
		panic(err)
	}
}

// counterFunc is a counter that is known to count.
type counterFunc func(ctx context.Context, body []byte, h http.Header) (int, error)

func (f counterFunc) Count(ctx context.Context, body []byte, h http.Header) (int, error) {
	return f(ctx, body, h)
}

func (counterFunc) Exact() bool { return true }

func (counterFunc) Known() bool { return true }

func withCounter(f counterFunc) rigOption { return func(o *Options) { o.Counter = f } }

func atTokens(n int) rigOption {
	return withConfig(func(c *config.Config) { c.Compaction.AtTokens = n })
}

func okSim(window int) *llamasim.Server {
	return llamasim.New(llamasim.Options{Window: window, ImageTokens: 300, Reply: func(llamasim.Request) llamasim.Reply { return llamasim.Reply{Text: "ok"} }})
}

// traffic is what a server was asked since it was last looked at.
type traffic struct {
	chats    []llamasim.Recorded
	refused  int
	counts   int // at input_tokens
	template int // at apply-template
	tokenize int
}

func takeTraffic(sim *llamasim.Server) (out traffic) {
	for _, r := range sim.Requests() {
		switch r.RequestURI {
		case "/v1/chat/completions/input_tokens":
			out.counts++
		case "/apply-template":
			out.template++
		case "/tokenize":
			out.tokenize++
		default:
			out.chats = append(out.chats, r)
			if r.Status == http.StatusBadRequest {
				out.refused++
			}
		}
	}
	sim.ForgetRequests()
	return out
}

func promptOf(t testing.TB, sim *llamasim.Server, body []byte) int {
	t.Helper()
	n, err := sim.PromptTokens(body)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// tokensOf reads the header X-Compactproxy-Tokens.
func tokensOf(t testing.TB, res *http.Response) (forecast, window int) {
	t.Helper()
	if _, err := fmt.Sscanf(res.Header.Get(headerTokens), "%d/%d", &forecast, &window); err != nil {
		t.Fatalf("%s: %q", headerTokens, res.Header.Get(headerTokens))
	}
	return forecast, window
}

// early are the compactions before the request left.
type early struct{ installed, observed, rejected float64 }

func (r *settled) early() (e early) {
	for _, kind := range compaction.Kinds {
		count := func(result string) float64 {
			return testutil.ToFloat64(r.metrics.Compactions.WithLabelValues(metrics.TriggerThreshold, string(kind), result))
		}
		e.installed += count(metrics.ResultInstalled)
		e.observed += count(metrics.ResultObserved)
		e.rejected += count(metrics.ResultRejected)
	}
	return e
}

// samples is how many values a histogram has seen.
func (r *rig) samples(t testing.TB, name string) int {
	t.Helper()
	families, err := r.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "compactproxy_"+name {
			return int(f.GetMetric()[0].GetHistogram().GetSampleCount())
		}
	}
	t.Fatalf("there is no histogram %s", name)
	return 0
}

// ok posts a body that must be answered, and returns the answer and what the server
// got for it.
func (r *settled) ok(t testing.TB, sim *llamasim.Server, body []byte, header ...string) (*http.Response, traffic) {
	t.Helper()
	sim.ForgetRequests()
	res, answer := r.post(t, body, header...)
	if res.StatusCode != http.StatusOK {
		t.Fatalf("status %d: %.300s", res.StatusCode, answer)
	}
	got := takeTraffic(sim)
	if len(got.chats) == 0 {
		t.Fatal("nothing was forwarded")
	}
	return res, got
}

func (g traffic) sent() []byte { return g.chats[len(g.chats)-1].Body }

// ---- before the server refuses

// Where no single turn brings more than the reserve, no refusal ever reaches the
// server: room is made before. What is sent is legal, and extends what was sent
// before except where a compaction is reported.
func TestForecast_NoRefusalReachesTheServer(t *testing.T) {
	for window, rest := range map[int]string{8192: plainBody, 16_384: streamBody + `,"stream_options":{"include_usage":true}`, 32_768: plainBody} {
		for name, options := range map[string][]rigOption{"counted": {counted}, "by forecast": nil} {
			t.Run(fmt.Sprint(window, " ", name), func(t *testing.T) {
				t.Parallel()
				sim := okSim(window)
				r := forecasting(t, sim, window, options...)
				h := readsOf(0, 0)
				if n := promptOf(t, sim, h.reads(0, 1, window/3).body(rest)) - promptOf(t, sim, h.body(rest)); n > compaction.Reserve(window, 0)-100 {
					t.Fatalf("a turn brings %d tokens", n)
				}
				compactions := 0
				var last [][]byte
				for turn := range 40 {
					res, got := r.ok(t, sim, h.body(rest))
					list := rawsOf(forwarded(t, got.sent()))
					switch compacted := hasAction(res, "passes"); {
					case compacted:
						compactions++
					case !extends(list, last):
						t.Fatalf("turn %d: what is forwarded does not extend the last list (%s)", turn, res.Header.Get(headerAction))
					}
					if v := pairing.Check(forwarded(t, got.sent())); v != nil {
						t.Fatalf("turn %d: %v", turn, v)
					}
					if got.refused > 0 || len(got.chats) != 1 || hasAction(res, "recovery") {
						t.Fatalf("turn %d: %d refusals, %s", turn, got.refused, res.Header.Get(headerAction))
					}
					last = list
					h = h.reads(turn, 1, window/3) // a tenth of the window
					if turn%7 == 6 {
						h = h.and(answered, fmt.Sprintf(`{"role":"user","content":"Wish %d: go on."}`, turn))
					}
				}
				if compactions < 3 || compactions > 12 {
					t.Errorf("%d compactions in 40 turns", compactions)
				}
				if got := r.recoveries(); got != (recoveries{}) {
					t.Errorf("recoveries: %+v", got)
				}
			})
		}
	}
}

// So with the recorded sessions: a refusal needs a turn that brought more than the
// reserve.
func TestForecast_RecordingsAreNotRefused(t *testing.T) {
	for _, window := range []int{16_384, 32_768} {
		t.Run(fmt.Sprint(window), func(t *testing.T) {
			t.Parallel()
			for _, s := range recordedScripts(t) {
				sim := okSim(window)
				r := forecasting(t, sim, window, counted)
				size, large, refused := 0, 0, 0
				for turn := range min(s.turns, 40) {
					body := s.body(turn)
					if (len(body)-size)/2 > window/8 { // tokens at the densest, and an eighth of the window
						large++
					}
					size = len(body)
					_, got := r.ok(t, sim, body)
					refused += got.refused
				}
				if refused > large {
					t.Errorf("%s: %d refusals, %d turns brought more than the reserve", s.name, refused, large)
				}
			}
		})
	}
}

// It fires at the threshold, not a token below, with the first request of a
// conversation as with a later one.
func TestForecast_FiresAtTheThreshold(t *testing.T) {
	const window = 65_536
	h := readsOf(12, 2000)
	longer := h.reads(12, 1, 2000)
	sim := okSim(window)
	first, second := promptOf(t, sim, h.body(plainBody)), promptOf(t, sim, longer.body(plainBody))
	for _, tt := range []struct {
		name   string
		at     int
		passes [2]bool
	}{
		{"a token below", first + 1, [2]bool{false, true}},
		{"at the first", first, [2]bool{true, false}},
		{"a token over the first", first - 1, [2]bool{true, false}},
		{"a token below the second", second + 1, [2]bool{}},
		{"at the second", second, [2]bool{false, true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := forecasting(t, sim, window, counted, atTokens(tt.at))
			for i, list := range []history{h, longer} {
				res, got := r.ok(t, sim, list.body(plainBody))
				if hasAction(res, "passes") != tt.passes[i] {
					t.Errorf("request %d of %d tokens, threshold %d: %s", i, []int{first, second}[i], tt.at, res.Header.Get(headerAction))
				}
				if !tt.passes[0] && !tt.passes[i] && !bytes.Equal(got.sent(), list.body(plainBody)) {
					t.Errorf("request %d was changed", i)
				}
			}
		})
	}
}

// What the header says was counted: the very prompt that the server reports.
func TestForecast_HeaderIsTheCount(t *testing.T) {
	const window = 32_768
	for name, at := range map[string]int{"under the threshold": 28_000, "over it": 8000} {
		t.Run(name, func(t *testing.T) {
			sim := okSim(window)
			r := forecasting(t, sim, window, counted, atTokens(at))
			body := readsOf(26, 1500).body(plainBody)
			if n := promptOf(t, sim, body); n < 8000 || n > 28_000 {
				t.Fatalf("%d tokens", n)
			}
			res, got := r.ok(t, sim, body)
			forecast, w := tokensOf(t, res)
			if want := promptOf(t, sim, got.sent()); forecast != want || w != window || got.chats[0].PromptTokens != want {
				t.Errorf("%d/%d, the server says %d", forecast, w, want)
			}
			if over := name == "over it"; hasAction(res, "passes") != over || over && forecast >= at {
				t.Errorf("%s, %d tokens", res.Header.Get(headerAction), forecast)
			}
			if n := r.samples(t, "forecast_error_ratio"); n != 0 {
				t.Errorf("%d counts are called forecasts", n)
			}
		})
	}
}

// Without a count, how far the forecast was off is observed with every answer that
// reports its size.
func TestForecast_ErrorIsObserved(t *testing.T) {
	sim := okSim(32_768)
	r := forecasting(t, sim, 32_768)
	h := readsOf(4, 2000)
	for turn := range 5 {
		res, got := r.ok(t, sim, h.body(plainBody))
		forecast, _ := tokensOf(t, res)
		if n := r.samples(t, "forecast_error_ratio"); n != turn+1 {
			t.Errorf("%d samples after %d answers", n, turn+1)
		}
		if prompt := got.chats[0].PromptTokens; turn > 1 && (forecast < prompt-100 || forecast > prompt+300) {
			t.Errorf("turn %d: forecast %d, it was %d", turn, forecast, prompt)
		}
		h = h.reads(4+turn, 1, 2000)
	}
}

// ---- when the server is asked

// The server is asked where the size could be at the threshold, and for what was
// rewritten; elsewhere arithmetic will do.
func TestForecast_AsksWhereItMatters(t *testing.T) {
	const window = 65_536
	sim := okSim(window)
	r := forecasting(t, sim, window, counted, atTokens(20_000))
	h := readsOf(2, 2000)
	for turn := range 3 {
		res, got := r.ok(t, sim, h.body(plainBody))
		if got.counts+got.template+got.tokenize != 0 {
			t.Errorf("far below: %d counts (%s)", got.counts, res.Header.Get(headerTokens))
		}
		h = h.reads(2+turn, 1, 2000)
	}
	// Now 40,000 bytes more: seven thousand tokens, or forty thousand.
	h = h.reads(10, 20, 2000)
	res, got := r.ok(t, sim, h.body(plainBody))
	if forecast, _ := tokensOf(t, res); got.counts != 1 || got.template != 0 || forecast != got.chats[0].PromptTokens || res.Header.Get(headerAction) != "none" {
		t.Errorf("near it: %d counts, %s of %d, %s", got.counts, res.Header.Get(headerTokens), got.chats[0].PromptTokens, res.Header.Get(headerAction))
	}
	// And far beyond: the list that goes out is counted.
	h = h.reads(30, 30, 2000)
	res, got = r.ok(t, sim, h.body(plainBody))
	if forecast, _ := tokensOf(t, res); !hasAction(res, "passes") || got.counts == 0 || got.counts > 3 || forecast != got.chats[0].PromptTokens {
		t.Errorf("beyond it: %s, %d counts, %s of %d", res.Header.Get(headerAction), got.counts, res.Header.Get(headerTokens), got.chats[0].PromptTokens)
	}
}

// lacking is a server without some of its endpoints; asked counts how often they were
// wanted.
type lacking struct {
	*llamasim.Server
	without []string
	mu      sync.Mutex
	asked   map[string]int
}

func (l *lacking) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if slices.Contains(l.without, req.URL.Path) {
		l.mu.Lock()
		if l.asked == nil {
			l.asked = map[string]int{}
		}
		l.asked[req.URL.Path]++
		l.mu.Unlock()
		_, _ = io.Copy(io.Discard, req.Body)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"error":{"code":404,"message":"File Not Found","type":"not_found_error"}}`)
		return
	}
	l.Server.ServeHTTP(w, req)
}

// A server without the counting endpoint is asked for it once; a llama-server from
// before that counts in two steps, and any other is forecast.
func TestForecast_ServerThatCannotCount(t *testing.T) {
	const window = 16_384
	for _, tt := range []struct {
		name    string
		without []string
		exact   bool
	}{
		{"an older llama-server", []string{"/v1/chat/completions/input_tokens"}, true},
		{"another server", []string{"/v1/chat/completions/input_tokens", "/apply-template", "/tokenize"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sim := okSim(window)
			server := &lacking{Server: sim, without: tt.without}
			r := forecasting(t, server, window, counting)
			h := readsOf(0, 0)
			compactions := 0
			for turn := range 30 {
				res, got := r.ok(t, sim, h.body(plainBody))
				if got.refused > 0 {
					t.Errorf("turn %d: refused", turn)
				}
				if hasAction(res, "passes") {
					compactions++
					if forecast, _ := tokensOf(t, res); (forecast == got.chats[0].PromptTokens) != tt.exact {
						t.Errorf("turn %d: forecast %d, it was %d", turn, forecast, got.chats[0].PromptTokens)
					}
				}
				h = h.reads(turn, 1, 4000)
			}
			if compactions < 2 {
				t.Errorf("%d compactions", compactions)
			}
			for path, n := range server.asked {
				if n > 1 {
					t.Errorf("%s was asked %d times", path, n)
				}
			}
			if n := server.asked["/v1/chat/completions/input_tokens"]; n != 1 {
				t.Errorf("the first way was asked %d times", n)
			}
		})
	}
}

// exact_count: never asks nothing at all, and yet makes room in time.
func TestForecast_NeverCounts(t *testing.T) {
	const window = 16_384
	sim := okSim(window)
	r := forecasting(t, sim, window) // as cmd wires it: no counter
	h := readsOf(0, 0)
	compactions := 0
	for turn := range 30 {
		res, got := r.ok(t, sim, h.body(plainBody))
		if got.counts+got.template+got.tokenize+got.refused != 0 {
			t.Fatalf("turn %d: asked %d+%d+%d times, refused %d times", turn, got.counts, got.template, got.tokenize, got.refused)
		}
		if hasAction(res, "passes") {
			compactions++
			if n := got.chats[0].PromptTokens; n >= window*2/3 {
				t.Errorf("turn %d: %d tokens were sent", turn, n)
			}
		}
		h = h.reads(turn, 1, 4000)
	}
	if compactions < 2 {
		t.Errorf("%d compactions", compactions)
	}
}

// A counter that fails or hangs costs no answer: the forecast stands.
func TestForecast_CounterThatFails(t *testing.T) {
	const window = 16_384
	hang := func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		<-req.Context().Done()
	}
	for name, fails := range map[string]http.HandlerFunc{
		"500":     says(500, `{"error":{"code":500,"message":"no","type":"server_error"}}`),
		"503":     says(503, `{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}`),
		"401":     says(401, `{"error":{"message":"no"}}`),
		"HTML":    says(200, "<html>"),
		"zero":    says(200, `{"input_tokens":0}`),
		"a cut":   says(200, `{"input_tokens":`),
		"refuses": says(400, `{"error":{"code":400,"message":"request (99999 tokens) exceeds the available context size (16384 tokens)","type":"exceed_context_size_error","n_prompt_tokens":99999,"n_ctx":16384}}`),
		"hangs":   hang,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sim := okSim(window)
			r := forecasting(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				if slices.Contains(chatRoutes, req.URL.Path) {
					sim.ServeHTTP(w, req)
					return
				}
				fails(w, req)
			}), window, func(o *Options) {
				counting(o)
				o.Counter.(*upstream.Counter).Timeout = 20 * time.Millisecond
			})
			for _, n := range []int{2, 5, 9, 20} {
				res, got := r.ok(t, sim, readsOf(n, 4000).body(readTool+`,"stream":true`))
				if got.refused > 0 {
					t.Errorf("%d reads: refused", n)
				}
				if n < 9 && res.Header.Get(headerAction) != "none" {
					t.Errorf("%d reads: %s", n, res.Header.Get(headerAction))
				}
			}
			if got := r.early(); got.installed == 0 || got.rejected != 0 {
				t.Errorf("compactions: %+v", got)
			}
		})
	}
}

// A client that leaves while the server counts is waited for no longer, and its
// request never leaves.
func TestForecast_ClientLeavesDuringTheCount(t *testing.T) {
	for name, rest := range map[string]string{"plain": plainBody, "stream": streamBody} {
		t.Run(name, func(t *testing.T) {
			sim := okSim(16_384)
			asked := make(chan struct{})
			ended := make(chan error, 1)
			r := forecasting(t, sim, 16_384, withCounter(func(ctx context.Context, _ []byte, _ http.Header) (int, error) {
				close(asked)
				<-ctx.Done()
				ended <- ctx.Err()
				return 0, ctx.Err()
			}))
			ctx, leave := context.WithCancel(t.Context())
			go func() {
				<-asked
				leave()
			}()
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.URL+"/v1/chat/completions", bytes.NewReader(readsOf(10, 4000).body(rest)))
			if err != nil {
				t.Fatal(err)
			}
			if res, err := http.DefaultClient.Do(req); err == nil {
				_, err = io.Copy(io.Discard, res.Body)
				res.Body.Close()
				if err == nil {
					t.Fatal("an answer, although the client left")
				}
			}
			if err := <-ended; err != context.Canceled {
				t.Errorf("the count ended with %v", err)
			}
			<-r.done
			if got := takeTraffic(sim); len(got.chats) != 0 {
				t.Errorf("%d requests were forwarded for nobody", len(got.chats))
			}
			if got := r.index.Stats().Checkpoints; got != 0 {
				t.Errorf("%d checkpoints", got)
			}
		})
	}
}

// The client's credentials go along with a count, the configured key where it has
// none, and nothing else of its header.
func TestForecast_CountsWithTheClientsCredentials(t *testing.T) {
	for _, tt := range []struct {
		name   string
		key    string
		header []string
		want   presented
	}{
		{"a bearer token", "theirs", []string{"Authorization", "Bearer theirs"}, presented{Authorization: []string{"Bearer theirs"}}},
		{"X-Api-Key", "theirs", []string{"X-Api-Key", "theirs"}, presented{APIKey: []string{"theirs"}}},
		{"the configured one", "ours", nil, presented{Authorization: []string{"Bearer ours"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sim := llamasim.New(llamasim.Options{Window: 16_384, APIKey: "theirs,ours"})
			r := forecasting(t, sim, 16_384, counting, withKeys("ours"))
			header := append([]string{"Cookie", "secret", "X-Other", "secret", "Accept-Language", "secret"}, tt.header...)
			// Over the threshold, so that a rewritten list is counted as well.
			sim.ForgetRequests()
			if res, answer := r.post(t, readsOf(14, 4000).body(plainBody), header...); res.StatusCode != http.StatusOK || !hasAction(res, "passes") {
				t.Fatalf("status %d, %s: %.200s", res.StatusCode, res.Header.Get(headerAction), answer)
			}
			counts := 0
			for _, rec := range sim.Requests() {
				if rec.RequestURI == "/v1/chat/completions" {
					continue
				}
				counts++
				if rec.Status != http.StatusOK {
					t.Errorf("%s: %d", rec.RequestURI, rec.Status)
				}
				if diff := cmp.Diff(tt.want, presented{rec.Header.Values("Authorization"), rec.Header.Values("X-Api-Key")}); diff != "" {
					t.Error(diff)
				}
				for name, values := range rec.Header {
					if slices.Contains(values, "secret") {
						t.Errorf("%s was sent along", name)
					}
				}
			}
			if counts < 2 {
				t.Errorf("%d counts", counts)
			}
		})
	}
}

// Nothing that anybody wrote is in a log entry of any level or in a metric, whatever
// comes of counting and compacting.
func TestForecast_Canary(t *testing.T) {
	history := func(model string, system int) []byte {
		list := []string{`{"role":"system","content":"` + strings.Repeat(canary+" ", system) + `"}`, `{"role":"user","content":"` + canary + `"}`}
		for i := range 14 {
			list = append(list,
				fmt.Sprintf(`{"role":"assistant","content":"%s","reasoning_content":"%s","tool_calls":[{"id":"%s%d","type":"function","function":{"name":"read","arguments":"{\"path\":\"/%s/%d\"}"}}]}`, canary, canary, canary, i, canary, i%9),
				fmt.Sprintf(`{"role":"tool","tool_call_id":"%s%d","content":"%s"}`, canary, i, strings.Repeat(canary+" ", 300)))
		}
		return []byte(`{"model":"` + model + `","messages":[` + strings.Join(list, ",") + `],"tools":[{"type":"function","function":{"name":"read","description":"` + canary + `","parameters":{"type":"object"}}}]}`)
	}
	quoting := func(status int) http.HandlerFunc {
		return says(status, `{"error":{"code":"`+canary+`","type":"`+canary+`","message":"`+canary+`"}}`)
	}
	for _, tt := range []struct {
		name    string
		model   string
		count   http.HandlerFunc // nil counts
		system  int
		options []rigOption
		want    early
	}{
		{"compacted", "m-" + canary, nil, 1, nil, early{installed: 1}},
		{"observed", "m-" + canary, nil, 1, []rigOption{inMode(config.ModeObserve)}, early{observed: 1}},
		{"in vain", "m", nil, 6000, []rigOption{atTokens(5000)}, early{rejected: 1}},
		{"not counted, quoted", "m-" + canary, quoting(400), 1, nil, early{installed: 1}},
		{"not counted, quoted 404", "m-" + canary, quoting(404), 1, nil, early{installed: 1}},
		{"not counted, no JSON", "m-" + canary, says(200, canary), 1, nil, early{installed: 1}},
		{"a threshold that is lowered", "m", nil, 1, []rigOption{atTokens(1_000_000)}, early{installed: 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			window := 16_384
			if tt.system > 1000 {
				window = 65_536
			}
			sim := llamasim.New(llamasim.Options{Window: window, Reply: func(llamasim.Request) llamasim.Reply { return llamasim.Reply{Text: canary} }})
			r := forecasting(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				if tt.count == nil || slices.Contains(chatRoutes, req.URL.Path) {
					sim.ServeHTTP(w, req)
					return
				}
				tt.count(w, req)
			}), window, append([]rigOption{counting}, tt.options...)...)
			r.post(t, history(tt.model, tt.system), "Authorization", "Bearer "+canary)
			if got := r.early(); got != tt.want {
				t.Errorf("compactions: %+v, want %+v", got, tt.want)
			}
			r.hunt(t)
		})
	}
}

// ---- modes

// Observe decides and says so, and changes nothing: the client's bytes go out, also
// with the next request, and nothing is filed.
func TestForecast_Observe(t *testing.T) {
	const window = 16_384
	for how, header := range map[string][]string{"configured": nil, "by header": {headerMode, "observe"}} {
		t.Run(how, func(t *testing.T) {
			sim := okSim(65_536)
			kept := &turnStore{}
			options := []rigOption{counted, kept.option(t)}
			if header == nil {
				options = append(options, inMode(config.ModeObserve))
			}
			r := forecasting(t, sim, window, options...)
			h := readsOf(14, 4000)
			for turn := range 3 {
				body := h.reads(14, turn, 4000).body(plainBody)
				res, got := r.ok(t, sim, body, header...)
				if !bytes.Equal(got.sent(), body) || len(got.chats) != 1 {
					t.Errorf("turn %d: %d requests, changed", turn, len(got.chats))
				}
				if got := res.Header.Get(headerAction); got != "would-passes" {
					t.Errorf("turn %d: action %q", turn, got)
				}
			}
			r.index.Flush()
			if got := r.index.Stats().Checkpoints; got != 0 || kept.commits != 0 {
				t.Errorf("%d checkpoints, %d commits", got, kept.commits)
			}
			if got := r.early(); got != (early{observed: 3}) {
				t.Errorf("compactions: %+v", got)
			}
			if got := r.recoveries(); got != (recoveries{}) {
				t.Errorf("recoveries: %+v", got)
			}
		})
	}
}

// What is observed of a conversation that was compacted is the list that would be
// sent: replayed, and short enough. The client's own goes out.
func TestForecast_ObserveBehindACheckpoint(t *testing.T) {
	sim := okSim(65_536)
	r := forecasting(t, sim, 65_536, counted, atTokens(8000))
	h := readsOf(20, 2000)
	if res, _ := r.ok(t, sim, h.body(plainBody)); !hasAction(res, "passes") {
		t.Fatalf("action %s", res.Header.Get(headerAction))
	}
	body := h.reads(20, 2, 2500).body(plainBody)
	res, got := r.ok(t, sim, body, headerMode, "observe")
	forecast, _ := tokensOf(t, res)
	if res.Header.Get(headerAction) != "would-replay" || !bytes.Equal(got.sent(), body) || got.counts != 1 || forecast >= 8000 {
		t.Errorf("action %q, %d counts, %d tokens", res.Header.Get(headerAction), got.counts, forecast)
	}
}

// Off does nothing: no count, no rewrite, no header, no state.
func TestForecast_Off(t *testing.T) {
	for how, header := range map[string][]string{"configured": nil, "by header": {headerMode, "off"}} {
		t.Run(how, func(t *testing.T) {
			sim := okSim(65_536)
			options := []rigOption{counted}
			if header == nil {
				options = append(options, inMode(config.ModeOff))
			}
			r := forecasting(t, sim, 16_384, options...)
			body := readsOf(20, 4000).body(plainBody)
			res, got := r.ok(t, sim, body, header...)
			if !bytes.Equal(got.sent(), body) || got.counts+got.template+got.tokenize != 0 || len(got.chats) != 1 {
				t.Errorf("%d requests, %d counts", len(got.chats), got.counts)
			}
			for name := range res.Header {
				if strings.HasPrefix(name, "X-Compactproxy") {
					t.Errorf("%s: %s", name, res.Header.Get(name))
				}
			}
			if got := r.index.Stats(); got.Conversations != 0 || got.Checkpoints != 0 {
				t.Errorf("%+v", got)
			}
		})
	}
}

// predictive: false goes by reports alone: a request that jumps over the threshold
// leaves, and the one behind its report is compacted.
func TestForecast_ReportsOnly(t *testing.T) {
	const window, at = 65_536, 10_000
	for name, options := range map[string][]rigOption{"counted": {counted}, "by forecast": nil} {
		t.Run(name, func(t *testing.T) {
			sim := okSim(window)
			off := withConfig(func(c *config.Config) { c.Compaction.Predictive = false })
			r := forecasting(t, sim, window, append(options, atTokens(at), off)...)
			h := readsOf(2, 2000)
			steps := []struct {
				list   history
				passes bool
			}{
				{h, false},
				{h.reads(2, 20, 2000), false}, // 13,000 tokens, reported then
				{h.reads(2, 21, 2000), true},
				{h.reads(2, 22, 2000), false}, // rewritten and reported
			}
			for i, step := range steps {
				res, got := r.ok(t, sim, step.list.body(plainBody))
				if hasAction(res, "passes") != step.passes {
					t.Errorf("request %d: %s (%d tokens sent)", i, res.Header.Get(headerAction), got.chats[0].PromptTokens)
				}
				if i == 1 && got.chats[0].PromptTokens < at {
					t.Fatalf("request 1 has %d tokens", got.chats[0].PromptTokens)
				}
				if !step.passes && got.counts != 0 {
					t.Errorf("request %d: %d counts", i, got.counts)
				}
			}
		})
	}
}

// Without a window there is nothing to be near to: only a refusal tells, and from
// then on there is a forecast.
func TestForecast_UnknownWindow(t *testing.T) {
	sim := okSim(16_384)
	r := forecasting(t, sim, 0, counted)
	h := readsOf(12, 3000)
	res, got := r.ok(t, sim, h.body(plainBody))
	if res.Header.Get(headerAction) != "none" || got.counts != 0 {
		t.Errorf("%s, %d counts", res.Header.Get(headerAction), got.counts)
	}
	h = h.reads(12, 12, 3000)
	res, got = r.ok(t, sim, h.body(plainBody))
	if res.Header.Get(headerAction) != "recovery" || got.refused != 1 {
		t.Errorf("%s, %d refusals", res.Header.Get(headerAction), got.refused)
	}
	refused, passes := 0, 0
	for turn := range 12 {
		h = h.reads(24+turn, 1, 4000)
		res, got = r.ok(t, sim, h.body(plainBody))
		refused += got.refused
		if hasAction(res, "passes") {
			passes++
		}
	}
	if refused != 0 || passes == 0 {
		t.Errorf("the window is known by now: %d refusals, %d compactions", refused, passes)
	}
}

// An agent's own requests replay what fits, are never compacted or counted, and leave
// the conversation where it was.
func TestForecast_SideRequests(t *testing.T) {
	const window = 65_536
	ask := func(text string) string { return fmt.Sprintf(`{"role":"user","content":%s}`, jsonText(text)) }
	for _, tt := range []struct {
		name   string
		system string // "" is the conversation's
		last   string
		rest   string
		alone  bool // it quotes nothing
	}{
		{"goose title", "Generate a short title (four words or less) for this conversation.\n", "---BEGIN USER MESSAGES---\nx", "", true},
		{"opencode title", "You are a title generator. You output ONLY a thread title.", "fix it", "", true},
		{"codex compaction", "", "You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary.", "", false},
		{"qwen-code compaction", "", "<system-reminder>\nthe date\n</system-reminder>First, reason in your <analysis> block. Then, produce the <state_snapshot> XML.", plainBody, false},
		{"continue compaction", "", "Please provide a concise summary of our conversation so far, capturing the key context", plainBody, false},
		{"claude compaction", "", "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.\n", plainBody, false},
		{"qwen-code suggestion", "", "[SUGGESTION MODE: Suggest what the user might type next.]", plainBody, false},
		{"qwen-code memory", "You are now acting as the managed memory extraction subagent for", "Managed memory has TWO directories. Choose", readTool, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sim := okSim(window)
			r := forecasting(t, sim, window, counted, atTokens(8000))
			h := readsOf(20, 2000)
			res, got := r.ok(t, sim, h.body(plainBody))
			conversation := res.Header.Get(headerConversation)
			if !hasAction(res, "passes") {
				t.Fatalf("action %s", res.Header.Get(headerAction))
			}
			compacted := rawsOf(forwarded(t, got.sent()))
			before := r.early()

			// The agent's own request, with 20,000 tokens of text that it could be
			// rid of: over the threshold by far.
			side := h.and(answered).reads(60, 20, 3000).and(answered, ask(tt.last))
			if tt.alone {
				side = history{h[0], ask(tt.last)}
			}
			if tt.system != "" {
				side = append(history{fmt.Sprintf(`{"role":"system","content":%s}`, jsonText(tt.system))}, side[1:]...)
			}
			res, got = r.ok(t, sim, side.body(tt.rest))
			if got.counts+got.template+got.tokenize != 0 || r.early() != before || hasAction(res, "passes") {
				t.Errorf("%s, %d counts, compactions %+v", res.Header.Get(headerAction), got.counts, r.early())
			}
			list, want := rawsOf(forwarded(t, got.sent())), rawsOf(forwarded(t, side.body("")))
			if !tt.alone { // behind the checkpoint everything is as it came
				added := len(side) - len(h)
				if n := len(compacted) + added; !hasAction(res, "replay") || len(list) != n || !extends(list[1:], compacted[1:]) {
					t.Errorf("action %s, %d messages, want %d: the checkpoint was not replayed", res.Header.Get(headerAction), len(list), n)
				}
				list, want = list[len(list)-added:], want[len(want)-added:]
			}
			if !slices.EqualFunc(list, want, bytes.Equal) {
				t.Error("something else than the replayed part was changed")
			}

			// The conversation goes on as if nothing had been.
			next := h.reads(20, 1, 2000)
			res, got = r.ok(t, sim, next.body(plainBody))
			if res.Header.Get(headerConversation) != conversation || !hasAction(res, "replay") || hasAction(res, "passes") {
				t.Errorf("conversation %s, was %s; action %s", res.Header.Get(headerConversation), conversation, res.Header.Get(headerAction))
			}
			if !extends(rawsOf(forwarded(t, got.sent())), compacted) {
				t.Error("what is forwarded does not extend what was")
			}
			forecast, _ := tokensOf(t, res)
			if n := got.chats[0].PromptTokens; forecast < n*9/10 || forecast > n*11/10 {
				t.Errorf("forecast %d, it was %d: the anchor is another request's", forecast, n)
			}
		})
	}
}

// A side request that the server refuses is refused: the agent knows what to drop.
func TestForecast_SideRequestIsRefused(t *testing.T) {
	sim := okSim(8192)
	r := forecasting(t, sim, 8192, counted)
	side := readsOf(20, 3000).and(answered, `{"role":"user","content":"You are performing a CONTEXT CHECKPOINT COMPACTION. Create a summary."}`)
	res, answer := r.post(t, side.body(""))
	got := takeTraffic(sim)
	if res.StatusCode != http.StatusBadRequest || len(got.chats) != 1 || !bytes.Equal(got.sent(), side.body("")) {
		t.Errorf("status %d after %d requests: %.200s", res.StatusCode, len(got.chats), answer)
	}
	if n := r.index.Stats().Checkpoints; n != 0 {
		t.Errorf("%d checkpoints", n)
	}
}

// A compacted conversation is compacted from what it was compacted to: what the
// first checkpoint covers keeps its bytes until the next compaction, and each
// covers no less than the one before.
func TestForecast_OneCheckpointAfterTheOther(t *testing.T) {
	const window = 16_384
	sim := okSim(window)
	kept := &turnStore{}
	r := forecasting(t, sim, window, counted, kept.option(t))
	h := readsOf(0, 0)
	for turn := range 60 {
		r.ok(t, sim, h.body(plainBody))
		h = h.reads(turn, 1, 3000)
	}
	if len(kept.filed) < 4 {
		t.Fatalf("%d checkpoints", len(kept.filed))
	}
	for i, f := range kept.filed {
		if i > 0 && f.N < kept.filed[i-1].N {
			t.Errorf("checkpoint %d covers %d messages, the one before %d", i, f.N, kept.filed[i-1].N)
		}
		s := f.Summary
		if !s.Exact || s.Window != window || s.Limit != 12_288 || s.Before < s.Limit || s.After >= s.Limit || s.Trigger != metrics.TriggerThreshold || len(s.Reasons) == 0 {
			t.Errorf("checkpoint %d: %+v", i, s)
		}
	}
}

// sizesOf are the lengths of the lists in bodies, for messages.
func sizesOf(t testing.TB, bodies ...[]byte) string {
	t.Helper()
	var out []string
	for _, b := range bodies {
		body, err := transcript.Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, strconv.Itoa(len(body.Messages)))
	}
	return strings.Join(out, " ")
}

// Two identical requests at a time share one compaction: one checkpoint, and the same
// bytes for both.
func TestForecast_IdenticalRequestsShareACompaction(t *testing.T) {
	const window = 16_384
	for name, rest := range map[string]string{"plain": plainBody, "stream": streamBody} {
		t.Run(name, func(t *testing.T) {
			sim := okSim(window)
			var both sync.WaitGroup
			both.Add(2)
			var mu sync.Mutex
			first := 0
			kept := &turnStore{}
			r := forecasting(t, sim, window, kept.option(t), withCounter(func(_ context.Context, body []byte, _ http.Header) (int, error) {
				mu.Lock()
				first++
				wait := first <= 2 // each request's own, before either is compacted
				mu.Unlock()
				if wait {
					both.Done()
					both.Wait()
				}
				return sim.PromptTokens(body)
			}))
			body := readsOf(14, 4000).body(rest)
			var done sync.WaitGroup
			for range 2 {
				done.Go(func() {
					res, answer := r.rig.post(t, body)
					if res.StatusCode != http.StatusOK || !hasAction(res, "passes") {
						t.Errorf("status %d, %s: %.200s", res.StatusCode, res.Header.Get(headerAction), answer)
					}
				})
			}
			done.Wait()
			<-r.done
			<-r.done
			got := takeTraffic(sim)
			if len(got.chats) != 2 || !bytes.Equal(got.chats[0].Body, got.chats[1].Body) {
				t.Errorf("%d requests, not two alike (%s messages)", len(got.chats), sizesOf(t, got.chats[0].Body, got.sent()))
			}
			if got := r.early(); got != (early{installed: 1}) || len(kept.filed) != 1 {
				t.Errorf("compactions: %+v, %d checkpoints", got, len(kept.filed))
			}
		})
	}
}

// usage is an answer that reports a prompt of so many tokens, and nothing of a cache.
func usage(prompt int) http.HandlerFunc {
	b, err := json.Marshal(map[string]any{
		"choices": []any{map[string]any{"index": 0, "finish_reason": "stop", "message": map[string]any{"role": "assistant", "content": "ok"}}},
		"usage":   map[string]any{"prompt_tokens": prompt, "completion_tokens": 1},
	})
	if err != nil {
		panic(err)
	}
	return says(http.StatusOK, string(b))
}
