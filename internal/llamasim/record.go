package llamasim

import (
	"net/http"
	"slices"
	"sync"
)

// Recorded is a request as it arrived, and what became of it. Header and Body
// are shared with the server and must not be changed.
type Recorded struct {
	Method     string
	RequestURI string
	Host       string
	Header     http.Header
	Body       []byte

	// Prompt, PromptTokens and CachedTokens are set for requests that were
	// rendered, also when the prompt was then refused or only counted.
	Prompt       string
	PromptTokens int
	CachedTokens int

	// Status is 0 until an answer began.
	Status int
	// Predicted is how many tokens were generated.
	Predicted int
	// Canceled is set when the client left before the answer was complete.
	Canceled bool
}

// records are the last requests.
type records struct {
	mu   sync.Mutex
	keep int // 0 is all
	list []*Recorded
}

func (r *records) add(rec *Recorded) {
	if r.keep < 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, rec)
	if n := len(r.list) - r.keep; r.keep > 0 && n > 0 {
		r.list = slices.Delete(r.list, 0, n)
	}
}

// update changes a record that may be read at the same time.
func (r *records) update(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

func (r *records) copyOf(rec *Recorded) Recorded {
	r.mu.Lock()
	defer r.mu.Unlock()
	return *rec
}

func (r *records) all() []Recorded {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]Recorded, len(r.list))
	for i, rec := range r.list {
		list[i] = *rec
	}
	return list
}

func (r *records) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = nil
}
