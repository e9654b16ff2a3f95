package proxy

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/compactproxy/compactproxy/internal/compaction"
	"github.com/compactproxy/compactproxy/internal/config"
	"github.com/compactproxy/compactproxy/internal/llamasim"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

// forecastBytes is the size of a body as the forecast counts it.
func forecastBytes(t testing.TB, raw []byte) int {
	t.Helper()
	body, err := transcript.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	n := len(body.Tools())
	for i := range body.Messages {
		n += compaction.ForecastBytes(&body.Messages[i])
	}
	return n
}

// The forecast goes on from the last report while model and tools are the same;
// another tool list or model has nothing to go on from.
func TestModel_AnchorIsDropped(t *testing.T) {
	h := readsOf(6, 2000)
	first := h.body(plainBody)
	next := h.reads(6, 1, 2000).body(plainBody)
	tools := bytes.Replace(next, []byte("read a file"), []byte(strings.Repeat("read a file ", 200)), 1)
	other := bytes.Replace(next, []byte(`"model":"m"`), []byte(`"model":"another"`), 1)
	for _, tt := range []struct {
		name string
		next []byte
		want func(prompt, before, after int) int // from the first report and the bytes of both
	}{
		{"the same", next, func(prompt, before, after int) int { return prompt + (after-before)/3 }},
		{"another tool list", tools, func(prompt, before, after int) int { return prompt * after / before }}, // the model's rate
		{"another model", other, func(_, _, after int) int { return after / 3 }},                             // nothing is known of it
	} {
		t.Run(tt.name, func(t *testing.T) {
			sim := okSim(65_536)
			r := forecasting(t, sim, 65_536)
			_, got := r.ok(t, sim, first)
			prompt := got.chats[0].PromptTokens
			res, _ := r.ok(t, sim, tt.next)
			forecast, _ := tokensOf(t, res)
			if want := tt.want(prompt, forecastBytes(t, first), forecastBytes(t, tt.next)); forecast < want-2 || forecast > want+2 {
				t.Errorf("forecast %d, want %d", forecast, want)
			}
		})
	}
}

// A list that lost messages is forecast in proportion: what the reports measured is
// not credited at the clamped rate.
func TestModel_ShorterListInProportion(t *testing.T) {
	sim := okSim(65_536)
	r := forecasting(t, sim, 65_536)
	h := readsOf(12, 2000)
	long := h.and(answered).body(plainBody)
	_, got := r.ok(t, sim, long)
	short := bytes.Replace(long, []byte(strings.Repeat("line of file 10 and so on\\n", 60)), []byte("cut"), 1)
	res, _ := r.ok(t, sim, short)
	forecast, _ := tokensOf(t, res)
	if want := got.chats[0].PromptTokens * forecastBytes(t, short) / forecastBytes(t, long); forecast < want-2 || forecast > want+2 || len(short) == len(long) {
		t.Errorf("forecast %d, want %d", forecast, want)
	}
}

// withImages is a user message with so many images.
func withImages(n int) string {
	parts := []string{`{"type":"text","text":"Look."}`}
	for i := range n {
		parts = append(parts, fmt.Sprintf(`{"type":"image_url","image_url":{"url":"data:image/png;base64,%s"}}`, strings.Repeat(fmt.Sprintf("Q%dJD", i%10), 20_000)))
	}
	return `{"role":"user","content":[` + strings.Join(parts, ",") + `]}`
}

// What an image costs is learned from the first report that holds one; its payload
// is never taken for text.
func TestModel_ImagesLearnTheirCost(t *testing.T) {
	for name, tt := range map[string]struct {
		configured int
		first      int // what the first image is taken for
		then       int
	}{
		"learned":    {0, 1024, 300},
		"configured": {500, 500, 500},
	} {
		t.Run(name, func(t *testing.T) {
			sim := okSim(65_536) // an image costs 300 tokens
			r := forecasting(t, sim, 65_536, withConfig(func(c *config.Config) { c.ImageTokens = tt.configured }))
			h := readsOf(4, 2000)
			_, got := r.ok(t, sim, h.body(plainBody))
			last := got.chats[0].PromptTokens
			h = h.and(answered, withImages(1))
			res, _ := r.ok(t, sim, h.body(plainBody))
			forecast, _ := tokensOf(t, res)
			if diff := forecast - last - tt.first; diff < 0 || diff > 60 {
				t.Errorf("the first image: forecast %d, the last prompt had %d", forecast, last)
			}
			if cost := r.models.get("m").images(1, tt.configured); cost < tt.then-60 || cost > tt.then+60 {
				t.Errorf("an image is taken for %d tokens", cost)
			}
		})
	}
}

// Images of one model say nothing of another's.
func TestModel_ImagesOfEachModel(t *testing.T) {
	var all models
	all.get("a").learn(answer{Known: true, Prompt: 1300}, 3000, 1, 1000)
	if a, b := all.get("a").images(2, 0), all.get("b").images(2, 0); a != 600 || b != 2*unknownImage {
		t.Errorf("two images: %d tokens, and %d of the other model", a, b)
	}
	if got := all.get("a").images(2, 7); got != 14 {
		t.Errorf("configured: %d", got)
	}
}

// Names of models are the clients' choice: they do not fill the memory.
func TestModel_NamesAreBounded(t *testing.T) {
	var all models
	for i := range 10 * maxModels {
		all.get(fmt.Sprint("model ", i))
	}
	if n := len(all.byName); n > maxModels {
		t.Errorf("%d models", n)
	}
	long := strings.Repeat("x", 1<<20)
	all.get(long)
	if _, ok := all.byName[long]; ok {
		t.Error("a name of 1 MiB is kept")
	}
	if first := all.get("m"); first != all.get("m") {
		t.Error("what was learned of a model is lost")
	}
}

// The rate of a model's prompts serves conversations that have no report yet.
func TestModel_Estimate(t *testing.T) {
	m := &model{}
	if got := m.estimate(3000); got != 1000 {
		t.Errorf("nothing known: %d", got)
	}
	m.learn(answer{Known: true, Prompt: 250}, 1000, 0, 0)
	if got := m.estimate(3000); got != 750 {
		t.Errorf("at a quarter: %d", got)
	}
	m.learn(answer{Known: true, Prompt: 2000}, 1000, 3, 0)
	if got := m.estimate(3000); got != 750 {
		t.Errorf("with images the rate is not one of text: %d", got)
	}
	m.learn(answer{Known: true, Prompt: 2000}, 0, 0, 0)
	if got := m.estimate(3000); got != 750 {
		t.Errorf("no bytes: %d", got)
	}
}

// A model that answers under another name than before may have another window; the
// first answer, and one without a name, is no change.
func TestModel_Answers(t *testing.T) {
	m := &model{}
	for i, step := range []struct {
		name    string
		changed bool
	}{{"", false}, {"a", false}, {"a", false}, {"", false}, {"a", false}, {"b", true}, {"b", false}, {"a", true}} {
		if got := m.answers(step.name); got != step.changed {
			t.Errorf("step %d, %q: %v", i, step.name, got)
		}
	}
}

// A model that cannot return to a shorter prompt tells by what it kept after a
// compaction: nearly all that stood before the change, or only the beginning.
func TestModel_OnlyForward(t *testing.T) {
	for _, tt := range []struct {
		name                string
		stays, head, cached int
		before, want        bool
	}{
		{"it kept what stays", 12_000, 2000, 11_990, true, false},
		{"it went back to the beginning", 12_000, 2000, 1990, false, true},
		{"it kept nothing", 12_000, 2000, 0, false, true},
		{"between the two nothing can be told", 12_000, 2000, 6000, false, false},
		{"between the two what is known stays", 12_000, 2000, 6000, true, true},
		{"both are the same place", 2500, 2000, 0, false, false},
		{"more than all", 12_000, 2000, 13_000, true, false},
	} {
		m := &model{forward: tt.before}
		m.rolledBack(tt.stays, tt.head, tt.cached)
		if got := m.onlyForward(); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}

// The ratio of the speeds that the server reports is known after two usable answers:
// those of a few tokens say nothing.
func TestModel_Speed(t *testing.T) {
	for words, want := range map[int][]float64{1: {0, 0, 0}, 100: {0, 20, 20}} {
		// 1,000 tokens a second prefilled, 50 decoded.
		sim := llamasim.New(llamasim.Options{Window: 65_536, Reply: func(llamasim.Request) llamasim.Reply {
			return llamasim.Reply{Text: strings.Repeat("word ", words)}
		}})
		r := forecasting(t, sim, 65_536)
		for i, ratio := range want {
			h := readsOf(6, 2000)
			h[1] = fmt.Sprintf(`{"role":"user","content":"Task %d"}`, i)
			r.ok(t, sim, h.body(plainBody))
			if got := r.models.get("m").ratio(); got < ratio*0.95 || got > ratio*1.05 {
				t.Errorf("%d words, answer %d: %v, want %v", words, i, got, ratio)
			}
		}
	}
}
