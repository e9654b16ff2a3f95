package upstream

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// A State is what can be said of the server at a glance.
type State uint8

const (
	// Unknown: nobody has looked yet.
	Unknown State = iota
	// Down: nothing answers at the address, or only a gateway that finds nothing behind it.
	Down
	// Loading: a llama-server that is still reading its model.
	Loading
	// Busy: it took the question and did not answer in time. llama-server does that when all its threads
	// hold requests; it is not gone.
	Busy
	// NeedsKey: it answers, but not without a key, or not with this one.
	NeedsKey
	// Foreign: something answers that is no llama-server and lists no models: a page, most often.
	Foreign
	// Ready: a llama-server, or another server that lists its models.
	Ready
)

var stateNames = [...]string{"unknown", "down", "loading", "busy", "needs_key", "foreign", "ready"}

// String returns the state in the form used in logs.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "state(" + strconv.Itoa(int(s)) + ")"
}

// A Model is one that the server says it serves.
type Model struct {
	Name    string
	Aliases []string
	Window  int    // tokens, per slot; 0 where the server does not say
	Source  Source // of Window: Props or Models
}

// A Status is what one look at the server showed. Its slices and maps are not to be changed.
type Status struct {
	State State

	LlamaServer bool   // it answers as llama-server does
	Build       string // of llama-server
	Slots       int    // of llama-server; 0 where it does not say
	// Loaded is the name of the model that llama-server has in memory, as in Models.
	Loaded string
	Models []Model
	// Template says what the loaded model's chat template can do: "supports_tools" and the like.
	Template map[string]bool

	Err    error     // why the server is not ready
	Reason string    // why it was looked at
	At     time.Time // when
}

// Same reports whether two looks showed the same server in the same state.
func (s Status) Same(other Status) bool {
	return s.State == other.State &&
		s.LlamaServer == other.LlamaServer &&
		s.Build == other.Build &&
		s.Slots == other.Slots &&
		s.Loaded == other.Loaded &&
		slices.EqualFunc(s.Models, other.Models, Model.same) &&
		maps.Equal(s.Template, other.Template)
}

func (m Model) same(other Model) bool {
	return m.Name == other.Name && slices.Equal(m.Aliases, other.Aliases) &&
		m.Window == other.Window && m.Source == other.Source
}

// Find returns the model that the server means by a name. A server with a single model means that one
// by every name: llama-server does not look at the name at all. The empty name means the loaded model.
func (s Status) Find(name string) (Model, bool) {
	if name == "" {
		name = s.Loaded
	}
	for _, m := range s.Models {
		if m.Name == name {
			return m, true
		}
	}
	for _, m := range s.Models {
		if slices.Contains(m.Aliases, name) {
			return m, true
		}
	}
	if len(s.Models) == 1 {
		return s.Models[0], true
	}
	return Model{}, false
}

// A Prober looks at a server. It asks GET /props and GET /v1/models, nothing else: polling /slots would
// keep llama-server from noticing clients that went away.
type Prober struct {
	Client  *http.Client  // nil means http.DefaultClient
	BaseURL string        // with or without /v1
	APIKey  string        // sent as a bearer token, if any
	Timeout time.Duration // for each question; 0 means 10 s
}

const (
	// maxAnswer bounds what is read of an answer. A list of some hundred models takes half a MiB, a
	// chat template some ten KiB.
	maxAnswer      = 4 << 20
	defaultTimeout = 10 * time.Second
)

// Probe takes one look. It says in the status what went wrong, if something did; where the server
// answered in part, the status holds what it said.
func (p *Prober) Probe(ctx context.Context) Status {
	var status Status
	props := p.get(ctx, "/props")
	if props.err != nil || props.loading() {
		status.State, status.Err = props.failed()
		return status
	}
	isLlama := status.readProps(props)
	models := p.get(ctx, "/v1/models")
	if models.loading() {
		status.State, status.Err = models.failed()
		return status
	}
	isListed := status.readModels(models)

	switch {
	case models.denied():
		status.State, status.Err = models.failed()
	case props.denied() && (status.LlamaServer || !isListed):
		// Of other servers that list their models only llama-server's /props can be missed.
		status.State, status.Err = props.failed()
	case isLlama || isListed:
		status.State = Ready
	default:
		status.State, status.Err = models.failed()
	}
	return status
}

// An answer is what a question got: a response, or an error where there was none.
type answer struct {
	path   string
	status int
	media  string
	body   []byte
	err    error
	taken  bool // a connection was there to put it on
}

func (p *Prober) get(ctx context.Context, path string) (a answer) {
	a.path = path
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(p.Timeout, defaultTimeout))
	defer cancel()
	var taken atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { taken.Store(true) },
	})
	defer func() { a.taken = taken.Load() }()
	base := strings.TrimSuffix(strings.TrimRight(p.BaseURL, "/"), "/v1")
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+path, nil)
	if err != nil {
		a.err = err
		return a
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "compactproxy")
	if p.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+p.APIKey)
	}
	resp, err := cmp.Or(p.Client, http.DefaultClient).Do(req)
	if err != nil {
		a.err = err
		return a
	}
	defer resp.Body.Close()
	a.status = resp.StatusCode
	a.media, _, _ = mime.ParseMediaType(resp.Header.Get("Content-Type"))
	a.body, a.err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer)) // what is longer is no JSON then
	return a
}

// loading reports whether this is llama-server's answer while it reads its model, which it gives to
// every question and before it looks at the key.
func (a answer) loading() bool {
	return a.status == http.StatusServiceUnavailable &&
		strings.Contains(readReport(a.body).text, "loading model")
}

// denied reports whether it wants a key, or another one.
func (a answer) denied() bool {
	return a.status == http.StatusUnauthorized || a.status == http.StatusForbidden
}

// failed says what an answer means that was not the one asked for. The error holds no words of the
// server's.
func (a answer) failed() (State, error) {
	switch {
	case a.taken && errors.Is(a.err, context.DeadlineExceeded):
		return Busy, a.err
	case a.err != nil:
		return Down, a.err
	case a.loading():
		return Loading, errors.New("the server is loading its model")
	case a.denied():
		return NeedsKey, fmt.Errorf("GET %s: %d, the server wants a key", a.path, a.status)
	case a.status >= http.StatusBadGateway && a.status <= http.StatusGatewayTimeout:
		return Down, fmt.Errorf("GET %s: %d, a gateway without a server behind it", a.path, a.status)
	}
	return Foreign, fmt.Errorf("GET %s: %d %s, neither llama-server nor a list of models", a.path, a.status, cmp.Or(a.media, "without a type"))
}

// readProps takes in llama-server's description of itself.
func (s *Status) readProps(a answer) bool {
	top := a.object()
	settings := object(top["default_generation_settings"])
	if settings == nil {
		return false
	}
	s.LlamaServer = true
	s.Build = str(top["build_info"])
	s.Slots = count(top["total_slots"])
	alias, path := str(top["model_alias"]), str(top["model_path"])
	for name, raw := range object(top["chat_template_caps"]) {
		var can bool
		if json.Unmarshal(raw, &can) == nil {
			if s.Template == nil {
				s.Template = map[string]bool{}
			}
			s.Template[name] = can
		}
	}
	if s.Loaded = cmp.Or(alias, path); s.Loaded == "" {
		return true // a router: it has no model of its own
	}
	m := Model{Name: s.Loaded}
	if path != s.Loaded && path != "" {
		m.Aliases = []string{path}
	}
	if m.Window = count(settings["n_ctx"]); m.Window > 0 {
		m.Source = Props
	}
	s.Models = []Model{m}
	return true
}

// windowFields are the names under which servers list a model's window, the surest first.
var windowFields = []string{
	"loaded_context_length", // LM Studio: what is in use, where max_context_length is what could be
	"max_model_len",         // vLLM, SGLang
	"context_length",        // OpenRouter, Together
	"context_window",        // Groq
	"max_context_length",    // Mistral
}

// readModels takes in the list of models and merges the loaded one into it.
func (s *Status) readModels(a answer) bool {
	if a.status != http.StatusOK || a.err != nil {
		return false
	}
	var list []json.RawMessage
	top := a.object()
	if json.Unmarshal(top["data"], &list) != nil {
		return false
	}
	var models []Model
	for _, raw := range list {
		entry := object(raw)
		m := Model{Name: str(entry["id"])}
		if m.Name == "" {
			continue
		}
		var aliases []string
		_ = json.Unmarshal(entry["aliases"], &aliases)
		for _, alias := range aliases {
			if alias != m.Name {
				m.Aliases = append(m.Aliases, alias)
			}
		}
		meta := object(entry["meta"])
		s.LlamaServer = s.LlamaServer || meta["n_ctx"] != nil || str(entry["owned_by"]) == "llamacpp"
		m.Window = count(meta["n_ctx"])
		for _, field := range windowFields {
			if m.Window > 0 {
				break
			}
			m.Window = count(entry[field])
		}
		if m.Window > 0 {
			m.Source = Models
		}
		models = append(models, m)
	}
	s.merge(models)
	return true
}

// merge puts the listed models in the place of the loaded one, which is among them as a rule. What
// /props says of it counts.
func (s *Status) merge(listed []Model) {
	if len(s.Models) == 0 {
		s.Models = listed
		return
	}
	loaded := s.Models[0]
	at := slices.IndexFunc(listed, func(m Model) bool {
		return m.Name == loaded.Name || slices.Contains(m.Aliases, loaded.Name) || slices.Contains(loaded.Aliases, m.Name)
	})
	if at < 0 && len(listed) == 1 {
		at = 0
	}
	if at < 0 {
		s.Models = append(s.Models, listed...)
		return
	}
	m := &listed[at]
	for _, name := range append([]string{loaded.Name}, loaded.Aliases...) {
		if name != m.Name && !slices.Contains(m.Aliases, name) {
			m.Aliases = append(m.Aliases, name)
		}
	}
	if loaded.Window > 0 {
		m.Window, m.Source = loaded.Window, Props
	}
	s.Loaded, s.Models = m.Name, listed
}

// The readers of JSON below never fail: what has another shape than expected is not there.

func (a answer) object() map[string]json.RawMessage {
	if a.status != http.StatusOK || a.err != nil {
		return nil
	}
	return object(a.body)
}

func object(raw []byte) map[string]json.RawMessage {
	var o map[string]json.RawMessage
	if json.Unmarshal(raw, &o) != nil {
		return nil
	}
	return o
}

func str(raw []byte) string {
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}

// count reads a number of tokens or slots, also one that is in quotes.
func count(raw []byte) int {
	return tokens(string(bytes.Trim(raw, `"`)))
}
