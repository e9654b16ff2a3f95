package proxy

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/go-chi/chi/v5"
	"go.uber.org/zap"

	"github.com/compactproxy/compactproxy/internal/conversation"
	"github.com/compactproxy/compactproxy/internal/store"
)

// Archive is what the API reads; [store.Store] is the real one.
type Archive interface {
	Conversations(limit int) ([]conversation.State, error)
	Conversation(id string) (conversation.State, []store.Compaction, []conversation.Turn, error)
	Compaction(id int64) (store.CompactionDetail, error)
	Recall(store.Query) ([]store.Hit, error)
	Text(hash string) (string, error)
}

// api answers questions about conversations.
type api struct {
	archive Archive
	index   *conversation.Index
	log     *zap.Logger
}

func (a *api) routes(r chi.Router) {
	r.Get("/conversations", a.conversations)
	r.Get("/conversations/{id}", a.conversation)
	r.Delete("/conversations/{id}", a.forget)
	r.Get("/compactions/{id}", a.compaction)
	r.Get("/recall", a.recall)
	r.Get("/texts/{hash}", a.text)
	r.NotFound(func(w http.ResponseWriter, _ *http.Request) { notFound("there is no such endpoint").write(w) })
	r.MethodNotAllowed(func(w http.ResponseWriter, req *http.Request) {
		for _, method := range []string{http.MethodGet, http.MethodDelete} {
			if routes := chi.RouteContext(req.Context()).Routes; routes.Match(chi.NewRouteContext(), method, req.URL.Path) {
				w.Header().Add("Allow", method)
			}
		}
		(&failure{Status: http.StatusMethodNotAllowed, Type: invalidRequest, Code: "method_not_allowed", Message: "this endpoint has no such method"}).write(w)
	})
}

// conversationShown is a conversation. Tokens are the server's.
type conversationShown struct {
	ID       string      `json:"id"`
	Parent   string      `json:"parent,omitempty"` // the one that it went on from
	Session  string      `json:"session,omitempty"`
	Model    string      `json:"model"`
	Started  time.Time   `json:"started"`
	Used     time.Time   `json:"used"`
	Messages int         `json:"messages"`      // behind the leading system messages
	Prompt   int         `json:"prompt_tokens"` // of its last request
	Taint    []string    `json:"taint,omitempty"`
	Totals   totalsShown `json:"totals"`

	Compactions []store.Compaction  `json:"compactions,omitempty"` // newest first
	Turns       []conversation.Turn `json:"turns,omitempty"`       // oldest first
}

// totalsShown are sums over a conversation's answered requests.
type totalsShown struct {
	Requests    int `json:"requests"`
	Compactions int `json:"compactions"`
	Prompt      int `json:"prompt_tokens"`
	Cached      int `json:"cached_tokens"`
	Completion  int `json:"completion_tokens"`
	Misses      int `json:"cache_misses"`
	Rereads     int `json:"rereads"`
}

// compactionShown is one compaction. Before and after are the messages of the
// effective list that it covers: as they were forwarded until then, and since.
type compactionShown struct {
	store.Compaction
	Before []json.RawMessage `json:"before"`
	After  []json.RawMessage `json:"after"`
}

func shown(s conversation.State) conversationShown {
	return conversationShown{
		ID: s.ID, Parent: s.Parent, Session: s.Session, Model: s.Model, Started: s.Started.UTC(), Used: s.Used.UTC(),
		Messages: len(s.Prints), Prompt: s.Prompt, Taint: s.Taint, Totals: totalsShown(s.Totals),
	}
}

func (a *api) conversations(w http.ResponseWriter, r *http.Request) {
	limit, f := number(r, "limit", 100, 1000)
	if f != nil {
		f.write(w)
		return
	}
	a.index.Flush()
	states, err := a.archive.Conversations(limit)
	if a.broken(w, err) {
		return
	}
	list := make([]conversationShown, 0, len(states))
	for _, s := range states {
		list = append(list, shown(s))
	}
	writeJSON(w, map[string]any{"conversations": list})
}

func (a *api) conversation(w http.ResponseWriter, r *http.Request) {
	a.index.Flush()
	state, compactions, turns, err := a.archive.Conversation(chi.URLParam(r, "id"))
	if a.broken(w, err) {
		return
	}
	c := shown(state)
	c.Compactions, c.Turns = compactions, turns
	writeJSON(w, c)
}

func (a *api) forget(w http.ResponseWriter, r *http.Request) {
	id := chi.URLParam(r, "id")
	a.index.Flush()
	if _, _, _, err := a.archive.Conversation(id); a.broken(w, err) {
		return
	}
	if a.broken(w, a.index.Forget(id)) {
		return
	}
	a.log.Info("forgot a conversation", zap.String("conversation", id))
	w.WriteHeader(http.StatusNoContent)
}

func (a *api) compaction(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.ParseInt(chi.URLParam(r, "id"), 10, 64)
	if err != nil {
		notFound("compactions have numbers").write(w)
		return
	}
	detail, err := a.archive.Compaction(id)
	if a.broken(w, err) {
		return
	}
	c := compactionShown{Compaction: detail.Compaction, Before: []json.RawMessage{}, After: []json.RawMessage{}}
	if detail.ParentEntries != nil {
		if c.Before, err = messages(detail.ParentEntries); a.broken(w, err) {
			return
		}
	}
	for _, raw := range detail.Originals {
		c.Before = append(c.Before, bytes.ToValidUTF8(raw, []byte("\uFFFD")))
	}
	if c.After, err = messages(detail.Entries); a.broken(w, err) {
		return
	}
	writeJSON(w, c)
}

func messages(encoded []byte) ([]json.RawMessage, error) {
	entries, err := conversation.DecodeEntries(encoded)
	if err != nil {
		return nil, err
	}
	list := make([]json.RawMessage, len(entries))
	for i := range entries {
		list[i] = bytes.ToValidUTF8(entries[i].Raw(), []byte("\uFFFD"))
	}
	return list, nil
}

func (a *api) recall(w http.ResponseWriter, r *http.Request) {
	limit, f := number(r, "limit", 20, 200)
	q := r.URL.Query().Get("q")
	if f == nil && q == "" {
		f = &failure{Status: http.StatusBadRequest, Type: invalidRequest, Code: "invalid_query", Param: "q", Message: "q is what to look for: words, \"a phrase\", or a text's SHA-256"}
	}
	if f != nil {
		f.write(w)
		return
	}
	hits, err := a.archive.Recall(store.Query{Text: q, Conversation: r.URL.Query().Get("conversation"), Limit: limit})
	if a.broken(w, err) {
		return
	}
	writeJSON(w, map[string]any{"hits": append([]store.Hit{}, hits...)})
}

func (a *api) text(w http.ResponseWriter, r *http.Request) {
	text, err := a.archive.Text(chi.URLParam(r, "hash"))
	if a.broken(w, err) {
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte(text))
}

// broken answers for an error, if there is one.
func (a *api) broken(w http.ResponseWriter, err error) bool {
	switch {
	case err == nil:
		return false
	case errors.Is(err, store.ErrNotFound):
		notFound("it is not here: never was, or was pruned or forgotten").write(w)
	default:
		a.log.Warn("the store does not answer", zap.Error(err))
		(&failure{Status: http.StatusInternalServerError, Type: serverError, Code: "store_failed", Message: "the store does not answer; the log says why"}).write(w)
	}
	return true
}

func notFound(message string) *failure {
	return &failure{Status: http.StatusNotFound, Type: invalidRequest, Code: "not_found", Message: message}
}

func number(r *http.Request, name string, fallback, limit int) (int, *failure) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return fallback, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > limit {
		return 0, &failure{Status: http.StatusBadRequest, Type: invalidRequest, Code: "invalid_query", Param: name,
			Message: name + " is a number from 1 to " + strconv.Itoa(limit)}
	}
	return n, nil
}

// writeJSON answers with a value. Text of a conversation that is not UTF-8 is
// shown with replacement characters.
func writeJSON(w http.ResponseWriter, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		(&failure{Status: http.StatusInternalServerError, Type: serverError, Code: "store_failed", Message: "what is stored cannot be shown"}).write(w)
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_, _ = w.Write(append(body, '\n'))
}
