package proxy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"testing"

	"github.com/compactproxy/compactproxy/internal/corpus"
	"github.com/compactproxy/compactproxy/internal/llamasim"
	"github.com/compactproxy/compactproxy/internal/llamatest"
	"github.com/compactproxy/compactproxy/internal/pairing"
	"github.com/compactproxy/compactproxy/internal/recording"
	"github.com/compactproxy/compactproxy/internal/tinymodel"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

// TestSessions plays every recorded session turn by turn, growing as an agent
// would send it, at three windows: no turn ends in a refusal, no list that is
// sent is illegally paired, each forwarded list extends the last one except
// where a compaction is reported, no rewrite is larger than what it replaced,
// and compactions are at most a quarter of the turns.
func TestSessions(t *testing.T) {
	for _, window := range []int{16384, 32768, 65536} {
		t.Run(fmt.Sprint(window), func(t *testing.T) {
			t.Parallel()
			playAll(t, corpusScripts(t), window)
		})
	}
}

// TestRecordings does the same with the sessions of this repository.
func TestRecordings(t *testing.T) {
	for _, window := range []int{8192, 16384, 32768} {
		t.Run(fmt.Sprint(window), func(t *testing.T) {
			t.Parallel()
			playAll(t, recordedScripts(t), window)
		})
	}
}

// script is a session as the requests of an agent.
type script struct {
	name  string
	turns int
	body  func(turn int) []byte
}

func corpusScripts(t *testing.T) []script {
	var all []script
	for _, s := range corpus.Sessions(t) {
		var ends []int // each assistant message was the answer to what stands before it
		for i, m := range s.Messages {
			if i > 0 && bytes.Contains(m, []byte(`"role":"assistant"`)) {
				ends = append(ends, i)
			}
		}
		if len(ends) == 0 {
			continue
		}
		all = append(all, script{s.Name, len(ends), func(turn int) []byte { return sessionBody(s, ends[turn]) }})
	}
	return all
}

func recordedScripts(t *testing.T) []script {
	var all []script
	for _, name := range recording.Sessions() {
		s, err := recording.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, script{name, s.Turns(), func(turn int) []byte {
			return s.Request(turn, recording.Options{Stream: true, MaxTokens: 4})
		}})
	}
	return all
}

// TestSessions_RealServer plays the five longest recorded sessions before a
// real llama-server, and this repository's own.
func TestSessions_RealServer(t *testing.T) {
	const window = 16384
	// Sliding-window attention prefills ten times as fast on a test machine as
	// full attention, and refuses, counts and answers alike.
	server := llamatest.Options{Context: window, Model: tinymodel.Options{Arch: tinymodel.Gemma3}}.Start(t)
	t.Run("recordings", func(t *testing.T) {
		for _, s := range recordedScripts(t) {
			report(t, s, play(t, s, window, startReal(t, server.URL)))
		}
	})
	t.Run("longest", func(t *testing.T) {
		scripts := corpusScripts(t)
		slices.SortFunc(scripts, func(a, b script) int { return len(b.body(b.turns-1)) - len(a.body(a.turns-1)) })
		for _, s := range scripts[:5] {
			report(t, s, play(t, s, window, startReal(t, server.URL)))
		}
	})
}

func report(t *testing.T, s script, p played) {
	t.Helper()
	t.Logf("%s: %d turns, %d compactions, %d prompt tokens processed, %.2f of the floor", s.name, p.turns, p.compactions, p.processed, float64(p.processed)/float64(max(p.floor, 1)))
	if p.compactions*4 > p.turns && p.compactions > p.large+1 {
		t.Errorf("%s: %d compactions in %d turns, %d of which brought a quarter of the window and more", s.name, p.compactions, p.turns, p.large)
	}
}

// backend is a server that shows what it was sent.
type backend interface {
	http.Handler
	// count is the exact size of a body's prompt in tokens, or why the server
	// refuses it whatever its length.
	count(t *testing.T, body []byte) (int, error)
	// taken returns the chat bodies that came since it was last asked.
	taken() [][]byte
}

type simulated struct{ *llamasim.Server }

func startSim(window int) backend {
	return simulated{llamasim.New(llamasim.Options{Window: window, ImageTokens: 300, Reply: func(llamasim.Request) llamasim.Reply { return llamasim.Reply{Text: "ok"} }})}
}

func (s simulated) count(_ *testing.T, body []byte) (int, error) { return s.PromptTokens(body) }

func (s simulated) taken() [][]byte {
	var bodies [][]byte
	for _, r := range s.Requests() {
		if slices.Contains(chatRoutes, r.RequestURI) {
			bodies = append(bodies, r.Body)
		}
	}
	s.ForgetRequests()
	return bodies
}

// realServer forwards to a llama-server and keeps the bodies.
type realServer struct {
	*httputil.ReverseProxy
	url    string
	bodies [][]byte // written and read in turns: one request at a time
}

func startReal(t *testing.T, address string) backend {
	t.Helper()
	root, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	b := &realServer{url: address}
	b.ReverseProxy = &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(pr *httputil.ProxyRequest) {
		pr.SetURL(root)
		pr.Out.Close = true // as the proxy does
		body, err := io.ReadAll(pr.In.Body)
		if err != nil {
			t.Errorf("read the forwarded body: %v", err)
		}
		pr.Out.Body = io.NopCloser(bytes.NewReader(body))
		if slices.Contains(chatRoutes, pr.In.URL.Path) {
			b.bodies = append(b.bodies, body)
		}
	}}
	return b
}

func (b *realServer) count(t *testing.T, body []byte) (int, error) {
	t.Helper()
	res, answer := post(t, b.url+"/v1/chat/completions/input_tokens", body)
	if res.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("status %d: %.200s", res.StatusCode, answer)
	}
	var counted struct {
		Tokens int `json:"input_tokens"`
	}
	if err := json.Unmarshal(answer, &counted); err != nil {
		t.Fatal(err)
	}
	return counted.Tokens, nil
}

func (b *realServer) taken() [][]byte {
	bodies := b.bodies
	b.bodies = nil
	return bodies
}

func playAll(t *testing.T, scripts []script, window int) {
	t.Helper()
	var turns, compactions, hopeless int
	for _, s := range scripts {
		p := play(t, s, window, startSim(window))
		turns, compactions, hopeless = turns+p.turns, compactions+p.compactions, hopeless+p.hopeless
		if p.compactions*4 > p.turns && p.compactions > p.large+1 {
			t.Errorf("%s: %d compactions in %d turns, %d of which brought a quarter of the window and more", s.name, p.compactions, p.turns, p.large)
		}
	}
	if compactions*4 > turns {
		t.Errorf("%d compactions in %d turns", compactions, turns)
	}
	t.Logf("window %d: %d turns, %d compactions, %d refused because system and tools alone are too long", window, turns, compactions, hopeless)
}

type played struct {
	turns, compactions int
	hopeless           int // refused because the overhead alone fills the window
	large              int // turns that added a quarter of the window and more
	processed          int // prompt tokens that did not come from the server's cache
	floor              int // tokens of the agent's whole history
}

// play sends the session's requests in order, through a proxy of its own or the
// one that is given.
func play(t *testing.T, s script, window int, server backend, own ...*rig) played {
	t.Helper()
	var r *rig
	if len(own) > 0 {
		r = own[0]
	} else {
		r = start(t, server, counting, withWindow(window))
	}
	var p played
	var last [][]byte
	size := 0
	for turn := range s.turns {
		body := s.body(turn)
		p.turns++
		if (len(body)-size)*2/5 >= window/4 { // at two and a half bytes a token, the tiny model's on JSON
			p.large++
		}
		size = len(body)
		server.taken()
		res, answer1 := r.post(t, body)
		sent := server.taken()
		final := sent[len(sent)-1]
		if res.StatusCode != http.StatusOK {
			if _, refused := server.count(t, body); refused != nil {
				p.turns-- // the template refuses the list itself, whatever its length
				continue
			}
			if overheadExceeds(t, server, body, window) {
				p.hopeless++
				continue
			}
			t.Errorf("%s at %d: turn %d: status %d: %.300s", s.name, window, turn, res.StatusCode, answer1)
			continue
		}
		compacted := hasAction(res, "recovery") || hasAction(res, "passes") || hasAction(res, "summary")
		if compacted {
			p.compactions++
			was := body
			if hasAction(res, "recovery") && !hasAction(res, "summary") {
				was = sent[0] // what was refused
			}
			before, _ := server.count(t, was)
			after, err := server.count(t, final)
			if err != nil || after >= before || len(final) >= len(was) {
				t.Errorf("%s: turn %d: the rewrite is not smaller: %d tokens after %d (%v)", s.name, turn, after, before, err)
			}
		}
		var a answer
		for line := range bytes.Lines(answer1) {
			if payload, ok := dataPayload(line); ok && matters(payload) {
				a.read(payload)
			}
		}
		p.processed += a.Prompt - a.Cached
		list := forwarded(t, final)
		if v := pairing.Check(list); v != nil {
			t.Errorf("%s: turn %d: sent an illegal list: %v", s.name, turn, v)
		}
		raws := rawsOf(list)
		if !compacted && !extends(raws, last) {
			t.Errorf("%s at %d: turn %d: the forwarded list does not extend the last one (%s)", s.name, window, turn, res.Header.Get(headerAction))
		}
		last = raws
	}
	if n, err := server.count(t, s.body(s.turns-1)); err == nil {
		p.floor = n
	}
	return p
}

func sessionBody(s corpus.Session, end int) []byte {
	var b bytes.Buffer
	b.WriteString(`{"model":"m","messages":[`)
	for i, m := range s.Messages[:end] {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(m)
	}
	b.WriteString(`]`)
	if len(s.Tools) > 0 && !bytes.Equal(s.Tools, []byte("null")) {
		b.WriteString(`,"tools":`)
		b.Write(s.Tools)
	}
	b.WriteString(`,"stream":true,"max_tokens":4}`)
	return b.Bytes()
}

// overheadExceeds tells whether system messages and tools alone fill the
// window.
func overheadExceeds(t *testing.T, server backend, raw []byte, window int) bool {
	t.Helper()
	body, err := transcript.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	n, err := server.count(t, body.Rewrite(body.Messages[:body.Leading()]))
	return err != nil || n >= window
}

func forwarded(t *testing.T, body []byte) []transcript.Message {
	t.Helper()
	b, err := transcript.Parse(body)
	if err != nil {
		t.Fatalf("sent what is no chat body: %v", err)
	}
	return b.Messages
}

func rawsOf(list []transcript.Message) [][]byte {
	out := make([][]byte, len(list))
	for i := range list {
		out[i] = list[i].Raw()
	}
	return out
}

func extends(list, prefix [][]byte) bool {
	if len(list) < len(prefix) {
		return false
	}
	for i := range prefix {
		if !bytes.Equal(list[i], prefix[i]) {
			return false
		}
	}
	return true
}
