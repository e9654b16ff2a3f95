package llamasim

import (
	"fmt"
	"maps"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	"github.com/compactproxy/compactproxy/internal/corpus"
)

// A capture is a request to a real llama-server with its answer.
type capture struct {
	name, args           string
	method, path, body   string
	headers              map[string]string
	status               int
	answered             map[string]string // response headers
	answer               string
	template             string // what /apply-template said of the same body
	templateStatus       int
	hasAnswer, hasRender bool
}

func readCapture(t *testing.T, file string) capture {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	o := members(text)
	request, response, render := members(o["request"]), members(o["response"]), members(o["apply_template"])
	c := capture{
		name:           strings.TrimSuffix(filepath.Base(file), ".json"),
		args:           o.text("server_args"),
		method:         request.text("method"),
		path:           request.text("path"),
		headers:        texts(request["headers"]),
		status:         response.number("status", 0),
		answered:       texts(response["headers"]),
		answer:         response.text("body_text"),
		template:       render.text("body"),
		templateStatus: render.number("status", 0),
		hasAnswer:      request.has("path") && response.has("status"),
		hasRender:      render.has("status"),
	}
	switch body := request["body"]; body.Kind() {
	case '"':
		c.body = request.text("body")
	case '{':
		c.body = string(body)
	}
	return c
}

func texts(v jsontext.Value) map[string]string {
	m := map[string]string{}
	for name, value := range members(v) {
		m[name] = text(value)
	}
	return m
}

// sharedCaptures is the folder of all captures. The package's own testdata holds
// a few.
func sharedCaptures(t *testing.T) string {
	t.Helper()
	return corpus.Path(t, "captures")
}

// notSimulated are captures of what this server leaves out.
var notSimulated = []struct{ pattern, why string }{
	{"^v1_messages", "/v1/messages"},
	{"^(v1_responses|resp_input_tokens)", "/v1/responses"},
	{"^(infill_overflow|n_predict_0|ctxshift_boundary|noshift_boundary|.*_native)", "native completions"},
	{"^logprobs", "logprobs"},
	{"^ctxshift_gen", "--context-shift"},
	{"^unified_pool", "three requests at once: see TestUnifiedPool"},
	{"^slots_busy", "see TestSlotsBusy"},
}

// notSimulated says why a capture is not replayed, if it is not.
func (c capture) notSimulated() string {
	if !c.hasAnswer {
		return "not one request with its answer"
	}
	for _, skip := range notSimulated {
		if regexp.MustCompile(skip.pattern).MatchString(c.name) {
			return skip.why
		}
	}
	return ""
}

func TestCaptures_Shared(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(sharedCaptures(t), "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no captures: %v", err)
	}
	replayed := 0
	for _, file := range files {
		c := readCapture(t, file)
		if why := c.notSimulated(); why != "" {
			t.Logf("%s left out: %s", c.name, why)
			continue
		}
		t.Run(c.name, func(t *testing.T) { replay(t, c) })
		replayed++
	}
	t.Logf("%d of %d captures replayed", replayed, len(files))
	if replayed < 300 {
		t.Errorf("only %d captures replayed", replayed)
	}
}

// A few captures come with the package, from llama-server b11669 with a tiny
// model; paths are shortened, and one prompt and its figures are.
func TestCaptures_Testdata(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "captures", "*.json"))
	if err != nil || len(files) < 20 {
		t.Fatalf("%d captures: %v", len(files), err)
	}
	for _, file := range files {
		c := readCapture(t, file)
		t.Run(c.name, func(t *testing.T) { replay(t, c) })
	}
}

// replay sends the captured request to a simulated server of the same make
// and compares the answers.
func replay(t *testing.T, c capture) {
	server := start(t, New(c.options()))
	c.warm(t, server)
	got := send(t, server, c.method, c.path, c.headers, c.body)
	if got.status != c.status {
		t.Fatalf("status %d, want %d\n%s", got.status, c.status, got.body)
	}
	if diff := cmp.Diff(c.comparable(c.answered), c.comparable(got.headers)); diff != "" {
		t.Errorf("headers (-real +simulated):\n%s", diff)
	}
	if diff := cmp.Diff(shapes(c.answer), shapes(got.body)); diff != "" {
		t.Errorf("body (-real +simulated):\n%s", diff)
	}
	if strings.Contains(c.answer, `"finish_reason":"length"`) {
		compareLength(t, c, got.body)
	}
	if c.hasRender {
		c.compareRendering(t, server)
	}
}

// options are those of the server that gave the capture.
func (c capture) options() Options {
	o := Options{Model: "/srv/llama/tiny.gguf", NoUI: true, Slots: max(1, c.flag("-np")), Reply: func(Request) Reply { return c.reply() }}
	o.Window = c.flag("-c") / o.Slots
	switch {
	case c.flag("--kv-unified-per-slot") > 0:
		o.Window = c.flag("--kv-unified-per-slot")
	case strings.Contains(c.args, "--kv-unified"):
		o.Window = c.flag("-c")
		o.UnifiedPool = o.Window
	}
	if _, keys, ok := strings.Cut(c.args, "--api-key "); ok {
		o.APIKey = keys
	}
	switch {
	case strings.HasPrefix(c.name, "shape_strict"):
		o.Template = TemplateStrict
	case strings.HasPrefix(c.name, "shape_chatml"):
		o.Template = TemplatePlain
	}
	return o
}

func (c capture) flag(name string) int {
	fields := strings.Fields(c.args)
	if i := slices.Index(fields, name); i >= 0 && i+1 < len(fields) {
		n, _ := strconv.Atoi(fields[i+1])
		return n
	}
	return 0
}

// reply says what the real model said, as far as its end goes.
func (c capture) reply() Reply {
	said := assemble(c.answer)
	if strings.HasPrefix(c.answer, `{"choices"`) {
		said = messageOf(c.answer)
	}
	if strings.Contains(c.body, `"stop"`) {
		return Reply{Text: " sh\n sh"} // the real one is cut already
	}
	return Reply{Text: said.content, ToolCalls: said.calls, Endless: said.finish == "length" || said.finish == ""}
}

// warm does what was done before the capture, where that shows.
func (c capture) warm(t *testing.T, server *httptest.Server) {
	t.Helper()
	switch {
	case strings.Contains(c.name, "repeat"):
		send(t, server, c.method, c.path, c.headers, c.body)
	case c.name == "slots_after":
		post(t, server, chatPath, chatBody(`"max_tokens":6,"seed":1,"temperature":0,`, "user", "hi"))
	case c.name == "metrics":
		post(t, server, chatPath, chatBody(`"max_tokens":6,`, "user", "hi"))
	}
}

// comparable leaves out of headers what may differ.
func (c capture) comparable(headers map[string]string) map[string]string {
	headers = maps.Clone(headers)
	for _, name := range []string{"Content-Length", "Process-Start-Time-Unix"} {
		if value, ok := headers[name]; ok && value != "0" {
			headers[name] = "a number"
		}
	}
	return headers
}

// compareLength compares the number of tokens of answers that a limit ended:
// max_tokens, or the window, which is then exactly full.
func compareLength(t *testing.T, c capture, body string) {
	t.Helper()
	if window := c.options().Window; promptIn(c.answer)+predictedIn(c.answer) == window {
		if total := promptIn(body) + predictedIn(body); total != window {
			t.Errorf("%d tokens in total, want %d", total, window)
		}
		return
	}
	if want, got := predictedIn(c.answer), predictedIn(body); want != got {
		t.Errorf("%d tokens predicted, want %d", got, want)
	}
}

func timingsIn(body string) object {
	if strings.HasPrefix(body, "{") {
		return messageOf(body).timings
	}
	return assemble(body).timings
}

func predictedIn(body string) int { return timingsIn(body).number("predicted_n", -1) }

func promptIn(body string) int {
	t := timingsIn(body)
	return t.number("cache_n", -1) + t.number("prompt_n", -1)
}

var (
	toolNote     = regexp.MustCompile(`(?s)# Tools\n.*?<\|im_end\|>`)
	toolLine     = regexp.MustCompile(`(?m)^\{"type".*$`)
	tokenFigures = regexp.MustCompile(`\(\d+ tokens\)`)
)

// compareRendering compares what /apply-template says, the wording of the
// instructions for tools aside.
func (c capture) compareRendering(t *testing.T, server *httptest.Server) {
	t.Helper()
	if strings.HasPrefix(c.name, "shape_chatml_nojinja") {
		return // renders some roles in its own way
	}
	got := post(t, server, "/apply-template", c.body)
	if got.status != c.templateStatus {
		t.Fatalf("apply-template: status %d, want %d\n%s", got.status, c.templateStatus, got.body)
	}
	if got.status != 200 {
		if diff := cmp.Diff(c.template, got.body); diff != "" {
			t.Errorf("apply-template (-real +simulated):\n%s", diff)
		}
		return
	}
	prompt := func(body string) string {
		return toolNote.ReplaceAllStringFunc(members([]byte(body)).text("prompt"), func(note string) string {
			return strings.Join(toolLine.FindAllString(note, -1), "\n") + "<|im_end|>"
		})
	}
	if diff := cmp.Diff(prompt(c.template), prompt(got.body)); diff != "" {
		t.Errorf("apply-template (-real +simulated):\n%s", diff)
	}
}

// shapes are the shapes of a body's parts: the JSON of a plain answer, the
// events of a stream, the lines of anything else.
func shapes(body string) []string {
	var list []string
	add := func(s string) {
		if len(list) == 0 || list[len(list)-1] != s {
			list = append(list, s) // any number of a kind
		}
	}
	switch {
	case strings.HasPrefix(body, "{") || strings.HasPrefix(body, "["):
		add(shape("", jsontext.Value(body)))
	case strings.HasPrefix(body, "data: "):
		for _, event := range strings.Split(body, "\n\n") {
			payload, ok := strings.CutPrefix(event, "data: ")
			if ok && payload != "[DONE]" {
				add(shape("", jsontext.Value(payload)))
			} else {
				add(event)
			}
		}
	default:
		for line := range strings.SplitSeq(body, "\n") {
			if name, _, ok := strings.Cut(line, " "); ok && !strings.HasPrefix(line, "#") {
				line = name + " a number"
			}
			add(line)
		}
	}
	return list
}

// exact are the members whose text is compared, not only its type.
var exact = []string{"message", "type", "object", "role", "finish_reason", "status", "owned_by", "bos_token", "eos_token", "ftype"}

// shape is a JSON value with its keys in order and most scalars replaced by
// their types. Repeated elements of an array are shown once.
func shape(name string, v jsontext.Value) string {
	var b strings.Builder
	switch v.Kind() {
	case '{':
		b.WriteByte('{')
		walk(v, '{', func(name string, member jsontext.Value) {
			fmt.Fprintf(&b, "%s:%s ", name, shape(name, member))
		})
		b.WriteByte('}')
	case '[':
		b.WriteByte('[')
		last := ""
		for _, element := range elements(v) {
			if s := shape("", element); s != last {
				b.WriteString(s + " ")
				last = s
			}
		}
		b.WriteByte(']')
	case '0':
		if strings.Contains(string(v), ".") {
			return "float"
		}
		return "integer"
	case '"':
		if slices.Contains(exact, name) {
			return strconv.Quote(tokenFigures.ReplaceAllString(text(v), "(N tokens)"))
		}
		return "string"
	default:
		return string(v)
	}
	return b.String()
}
