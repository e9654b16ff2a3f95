package proxy

import (
	"context"
	"errors"
	"net/http"

	"github.com/compactproxy/compactproxy/internal/compaction"
	"github.com/compactproxy/compactproxy/internal/transcript"
	"github.com/compactproxy/compactproxy/internal/upstream"
)

// Generator sends requests of our own; [upstream.Generator] is the real one.
type Generator interface {
	Generate(ctx context.Context, body []byte, h http.Header, minCached float64) (upstream.Generated, error)
	Keeps(ctx context.Context, body, next []byte, h http.Header) bool
}

// minCached is the share of a prompt that must be in the server's cache for a
// summary to be asked for on top of it; below, the price of prose is no higher.
const minCached = 0.8

// writer has the model that a client talks to write for us.
type writer struct {
	generator Generator
	body      *transcript.Body
	header    http.Header // credentials
	model     string      // for prose; "" is the client's
	progress  bool        // the server reports what it has cached before it goes on
}

func (w writer) whole(list []transcript.Message) []transcript.Message {
	leading := w.body.Messages[:w.body.Leading()]
	return append(leading[:len(leading):len(leading)], list...)
}

// Extend implements [compaction.Writer].
func (w writer) Extend(ctx context.Context, list []transcript.Message, maxTokens int) (compaction.Written, error) {
	body, err := w.body.Extend(w.whole(list), maxTokens, w.progress)
	if err != nil {
		return compaction.Written{}, err
	}
	g, err := w.generator.Generate(ctx, body, w.header, minCached)
	if errors.Is(err, upstream.ErrTooDear) {
		err = compaction.ErrNotCached
	}
	return written(g), err
}

// Keeps implements [compaction.Writer].
func (w writer) Keeps(ctx context.Context, list, next []transcript.Message) bool {
	return w.generator.Keeps(ctx, w.body.Rewrite(w.whole(list)), w.body.Rewrite(w.whole(next)), w.header)
}

// Ask implements [compaction.Writer].
func (w writer) Ask(ctx context.Context, system, user string, maxTokens int) (compaction.Written, error) {
	model := w.model
	if model == "" {
		model = w.body.Model
	}
	g, err := w.generator.Generate(ctx, upstream.ProseBody(model, system, user, maxTokens, w.progress), w.header, 0)
	return written(g), err
}

func written(g upstream.Generated) compaction.Written {
	return compaction.Written{
		Text: g.Text, Finish: g.Finish, Calls: g.Calls,
		Prompt: g.Prompt, Cached: g.Cached, Completion: g.Completion,
	}
}
