package proxy

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/compactproxy/compactproxy/internal/conversation"
	"github.com/compactproxy/compactproxy/internal/llamasim"
	"github.com/compactproxy/compactproxy/internal/store"
)

// What a compaction did can be seen, what it took out can be found, and both can
// be forgotten.
func TestAPI(t *testing.T) {
	kept, err := store.Open(store.Options{Dir: t.TempDir(), Archive: true, Retention: time.Hour, MaxBytes: 1 << 30, Report: func(event string) { t.Error(event) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := kept.Close(); err != nil {
			t.Error(err)
		}
	})
	sim := llamasim.New(llamasim.Options{Window: 4096})
	r := start(t, sim, counting, withWindow(4096), func(o *Options) {
		o.Index = newIndex(t, conversation.Options{Store: kept, Conversations: 10, Bytes: 1 << 20})
	})
	admin := httptest.NewServer(Admin(AdminOptions{
		Metrics: r.Registry, Ready: func(*http.Request) Readiness { return Readiness{Ready: true} },
		Index: r.index, Archive: kept, Address: "127.0.0.1:0", Log: zap.NewNop(),
	}))
	t.Cleanup(admin.Close)
	ask := func(method, path string, into any) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, admin.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if into != nil {
			if err := json.NewDecoder(res.Body).Decode(into); err != nil {
				t.Fatalf("%s: %v", path, err)
			}
		}
		return res.StatusCode
	}

	h := readsOf(4, 1500)
	var sent []byte
	id, compacted := "", 0
	for turn := range 10 {
		sim.ForgetRequests()
		res, answer := r.post(t, h.body(plainBody), headerSession, "my session")
		if res.StatusCode != 200 {
			t.Fatalf("turn %d: %s", turn, answer)
		}
		bodies := bodiesOf(sim)
		id = res.Header.Get(headerConversation)
		if hasAction(res, "passes") {
			compacted++
			sent = bodies[len(bodies)-1]
		}
		if compacted == 2 {
			break
		}
		h = h.reads(100+turn, 1, 1500)
	}
	if compacted != 2 {
		t.Fatalf("%d compactions", compacted)
	}
	var list struct{ Conversations []conversationShown }
	if ask("GET", "/api/v1/conversations", &list); len(list.Conversations) != 1 || list.Conversations[0].ID != id || list.Conversations[0].Session != "my session" {
		t.Fatalf("conversations %+v", list)
	}
	var one conversationShown
	if ask("GET", "/api/v1/conversations/"+id, &one); len(one.Compactions) != 2 || len(one.Turns) == 0 || one.Totals.Compactions != 2 {
		t.Fatalf("conversation %+v", one)
	}
	var first, second struct {
		Before  []json.RawMessage `json:"before"`
		After   []json.RawMessage `json:"after"`
		Summary conversation.Summary
	}
	ask("GET", "/api/v1/compactions/"+number64(one.Compactions[1].ID), &first)
	ask("GET", "/api/v1/compactions/"+number64(one.Compactions[0].ID), &second)
	forwardedList := rawsOf(forwarded(t, sent))[1:] // behind the system message
	for i, m := range second.After {
		if string(m) != string(forwardedList[i]) {
			t.Errorf("after, message %d: %s was sent as %s", i, m, forwardedList[i])
		}
	}
	for i, m := range first.After {
		if i < len(second.Before) && string(m) != string(second.Before[i]) {
			t.Errorf("the second compaction's before does not begin with the first one's after: message %d", i)
		}
	}
	if s := second.Summary; s.Trigger != "threshold" || s.After <= 0 || s.After >= s.Before || len(s.Reasons) == 0 || len(s.Removed) == 0 || s.Window != 4096 {
		t.Errorf("summary %+v", s)
	}

	// Every result that went is found: by words, by its file's name, by its hash.
	if err := kept.IndexAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	gone := ""
	for _, m := range forwarded(t, h.body(plainBody)) {
		if text := m.Text(); m.Role.String() == "tool" && !strings.Contains(string(sent), text[:min(len(text), 800)]) {
			gone = text
			break
		}
	}
	if gone == "" {
		t.Fatal("nothing went")
	}
	sum := sha256.Sum256([]byte(gone))
	for _, q := range []string{hex.EncodeToString(sum[:]), "sha256:" + hex.EncodeToString(sum[:]), strings.Fields(gone)[0]} {
		var found struct{ Hits []store.Hit }
		code := ask("GET", "/api/v1/recall?q="+url.QueryEscape(q)+"&conversation="+id, &found)
		if code != 200 || len(found.Hits) == 0 || found.Hits[0].Conversation != id || found.Hits[0].Session != "my session" || found.Hits[0].Excerpt == "" {
			t.Errorf("%q: %d %+v", q, code, found)
		}
	}
	for _, q := range []string{`" OR 1 NEAR( * --`, `'; DROP TABLE texts`, "\x00", strings.Repeat("a ", 5000)} {
		if code := ask("GET", "/api/v1/recall?q="+url.QueryEscape(q), nil); code != 200 {
			t.Errorf("%.20q: %d", q, code)
		}
	}
	for path, want := range map[string]int{
		"/api/v1/recall": 400, "/api/v1/recall?q=x&limit=0": 400, "/api/v1/conversations?limit=-1": 400, "/api/v1/conversations?limit=x": 400,
		"/api/v1/conversations/nope": 404, "/api/v1/compactions/nope": 404, "/api/v1/compactions/99999": 404, "/api/v1/texts/nope": 404,
		"/api/v1/conversations/..%2f..%2fetc": 404, "/api/v1/": 404,
	} {
		var refusal struct {
			Error struct{ Code, Message string }
		}
		if got := ask("GET", path, &refusal); got != want || refusal.Error.Code == "" {
			t.Errorf("%s: %d %+v", path, got, refusal)
		}
	}

	if code := ask("DELETE", "/api/v1/conversations/"+id, nil); code != http.StatusNoContent {
		t.Fatalf("forget: %d", code)
	}
	var none struct{ Hits []store.Hit }
	if ask("GET", "/api/v1/recall?q="+hex.EncodeToString(sum[:]), &none); len(none.Hits) != 0 {
		t.Errorf("still found: %+v", none)
	}
	if code := ask("DELETE", "/api/v1/conversations/"+id, nil); code != http.StatusNotFound {
		t.Errorf("forgotten again: %d", code)
	}
	// The agent goes on, as a new conversation.
	res, _ := r.post(t, h.reads(500, 1, 100).body(plainBody))
	if res.StatusCode != 200 || res.Header.Get(headerConversation) == id {
		t.Errorf("then %d %s", res.StatusCode, res.Header.Get(headerConversation))
	}
}

func number64(n int64) string {
	b, _ := json.Marshal(n)
	return string(b)
}
