package proxy

import (
	"sync"

	"github.com/compactproxy/compactproxy/internal/compaction"
)

// models remembers what was learned of each model, by the name that requests
// give it. Clients choose those names, so their number is bounded.
type models struct {
	mu     sync.Mutex
	byName map[string]*model
}

const maxModels = 256

func (m *models) get(name string) *model {
	m.mu.Lock()
	defer m.mu.Unlock()
	if known, ok := m.byName[name]; ok {
		return known
	}
	if m.byName == nil || len(m.byName) >= maxModels {
		m.byName = map[string]*model{}
	}
	created := &model{}
	if len(name) <= 256 {
		m.byName[name] = created
	}
	return created
}

// model is what the server's reports teach of one model.
type model struct {
	mu       sync.Mutex
	answered string // the model that answered for the name last
	speed    compaction.Speed
	rate     float64 // tokens per byte of whole prompts, 0 before the first report
	image    int     // tokens an image, 0 if not known
	forward  bool    // it cannot return to a shorter prompt
	warned   string  // the last warning about its threshold
}

// unknownImage is the cost of an image in tokens until one was counted: between
// Gemma's 256 and the several thousand of models that take images in full size.
const unknownImage = 1024

// estimate is a prompt of which no report is known, in tokens of text.
func (m *model) estimate(bytes int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	rate := m.rate
	if rate == 0 {
		rate = compaction.DefaultRate
	}
	return int(rate * float64(bytes))
}

func (m *model) images(n, configured int) int {
	if configured > 0 {
		return n * configured
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.image > 0 {
		return n * m.image
	}
	return n * unknownImage
}

func (m *model) ratio() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.speed.Ratio()
}

// learn takes in a report: the prompt in tokens, the bytes of its text and its
// images, and what its text alone was forecast to be, 0 if that was a guess.
func (m *model) learn(a answer, bytes, images, text int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.speed = m.speed.Observe(a.Processed, a.PrefillMS, a.Completion, a.DecodeMS)
	switch {
	case images == 0 && bytes > 0:
		m.rate = float64(a.Prompt) / float64(bytes)
	case images > 0 && text > 0 && a.Prompt > text:
		m.image = min((a.Prompt-text)/images, 1<<14)
	}
}

// rolledBack takes in what the server kept of a prompt whose beginning alone was
// kept, of stays tokens, head of them before the first turn. A model with a
// sliding window or a recurrent state goes back to a checkpoint of its own, at
// worst to the beginning, and tells itself by that.
func (m *model) rolledBack(stays, head, cached int) {
	const far = 2048 // tokens: more than a batch, and than what templates render anew
	if stays-head < far {
		return // nothing to tell them apart by
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case cached >= stays-stays/8:
		m.forward = false
	case cached <= head+head/8+256:
		m.forward = true
	}
}

func (m *model) onlyForward() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.forward
}

// answers notes who answered, and reports whether it was another model the last
// time: another one may have another window.
func (m *model) answers(name string) (changed bool) {
	if name == "" {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	last := m.answered
	m.answered = name
	return last != "" && last != name
}

// warn reports whether a warning is news.
func (m *model) warn(text string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	news := text != "" && text != m.warned
	m.warned = text
	return news
}
