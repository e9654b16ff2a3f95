package upstream

import (
	"bytes"
	"math"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// A Kind says what sort of refusal an answer is.
type Kind uint8

const (
	// None is every answer and every error that says nothing about sizes and rates.
	None Kind = iota
	// TooLong: the input alone does not fit the window, or cannot be told to fit.
	TooLong
	// OutputTooLong: the input fits, input and requested output together do not. Lowering max_tokens
	// mends it; compacting would be refused again for ever.
	OutputTooLong
	// SharedPool: the pool that a server's parallel slots share ran out. It hits every running request,
	// also small ones; the same request may pass once the others are done.
	SharedPool
	// RateLimited: rates, quotas, credit or load. The same request may pass later, or never.
	RateLimited
	// OverRate: one request asks for more tokens than a whole minute allows. It can never pass as it
	// is, but it is not the window either.
	OverRate
)

var kindNames = [...]string{"none", "too_long", "output_too_long", "shared_pool", "rate_limited", "over_rate"}

// String returns the kind in the form used in logs and metrics.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "kind(" + strconv.Itoa(int(k)) + ")"
}

// Overflow reports whether the refusal is about the window.
func (k Kind) Overflow() bool { return k == TooLong || k == OutputTooLong || k == SharedPool }

// A Refusal is what a server said instead of answering. Its numbers are tokens; 0 means that it did
// not say. Only an overflow has numbers.
//
// OutputTooLong always has all three, with PromptTokens below Window. TooLong has a PromptTokens of at
// least Window where it has both, unless AtLeast is set.
type Refusal struct {
	Kind Kind

	PromptTokens int // of the input alone, tools included
	Window       int // what input and output share, as the server states it
	OutputTokens int // what was requested for the reply

	// AtLeast marks PromptTokens as no measurement: a lower bound, an estimate, or a number that
	// contradicts the refusal. Nothing may be calibrated on it. Window is not affected.
	AtLeast bool

	Type, Code string // as the error names itself, outermost first
	Wording    string // whose words were recognised, for logs; empty where type or code decided
}

const (
	// lookAt bounds the work on one body. Real refusals are below 2 KiB; what is longer quotes the
	// request.
	lookAt = 64 << 10
	// readText bounds the text that is compared with the table, which costs a microsecond a byte at
	// worst.
	readText = 16 << 10
	// nesting bounds JSON inside a string inside JSON. Gateways in a row wrap twice.
	nesting = 2
)

// Classify tells what sort of refusal an answer is. The status is that of the response, or 200 for an
// error that came inside a stream; body is then the payload of its data line (a whole event will do).
// Bodies may be JSON in any of the shapes that servers use, or plain text.
//
// An answer is never an overflow at 401, 402, 403, 429 or above 500, whatever it says, nor where rates,
// load or credit are its subject.
func Classify(status int, body []byte) Refusal {
	rep := readReport(body)
	refusal := Refusal{Type: rep.typ, Code: rep.code}
	if status == 200 {
		status = 400 // unless the error brings its own
	}
	if own, err := strconv.Atoi(rep.code); err == nil && own >= 400 && own < 600 && mayOverflow(status) {
		status = own
	}
	verdict, numbers, words := rep.judge()
	switch {
	case verdict.Overflow() && mayOverflow(status):
		refusal.Kind, refusal.Wording = verdict, words
		refusal.measure(rep, numbers)
	case verdict == RateLimited || verdict == OverRate:
		refusal.Kind, refusal.Wording = verdict, words
	case status == 402 || status == 429 || status == 529:
		refusal.Kind = RateLimited
	}
	return refusal
}

// ClassifyFinish tells the same of a finish reason, or of Anthropic's stop reason: some servers answer
// 200 and say only there that nothing fits any more.
func ClassifyFinish(reason string) Refusal {
	if reason == "model_context_window_exceeded" {
		return Refusal{Kind: TooLong, Code: reason}
	}
	return Refusal{}
}

// mayOverflow reports whether an overflow is believed at this status.
func mayOverflow(status int) bool {
	switch status {
	case 401, 402, 403, 429:
		return false
	}
	return status >= 400 && status <= 500
}

// judge decides from labels first, then from the text.
func (r *report) judge() (kind Kind, numbers map[string]string, words string) {
	labelled := false
	for _, label := range r.labels {
		if kind, labelled = labels[strings.ToLower(label)]; labelled {
			break
		}
	}
	if labelled && kind == None {
		return None, nil, ""
	}
	if !labelled && (r.text == "" || mayQuote(r.text)) {
		return None, nil, ""
	}
	for i := range compile().wordings {
		m := &compile().wordings[i]
		if labelled && (m.kind.Overflow() != kind.Overflow() || m.kind == None) {
			continue
		}
		if numbers, ok := m.match(r.text); ok {
			if labelled && m.kind != OverRate {
				return kind, numbers, ""
			}
			return m.kind, numbers, m.backend
		}
	}
	return kind, nil, ""
}

// mayQuote reports whether a text, in lower case, may hold a piece of the request.
func mayQuote(text string) bool {
	for i := range compile().quotes {
		if _, ok := compile().quotes[i].match(text); ok {
			return true
		}
	}
	return false
}

// measure sets the numbers of an overflow and, by them, its final kind.
func (r *Refusal) measure(rep *report, text map[string]string) {
	if r.Kind == SharedPool {
		return
	}
	r.PromptTokens = min(tokens(text["prompt"])+tokens(text["more"]), math.MaxInt32)
	r.Window = tokens(text["window"])
	r.OutputTokens = tokens(text["output"])
	if rep.promptTokens > 0 {
		r.PromptTokens = rep.promptTokens
	}
	if rep.window > 0 {
		r.Window = rep.window
	}
	r.AtLeast = text["bound"] != "" && r.PromptTokens > 0
	if r.PromptTokens == 0 || r.Window == 0 || r.PromptTokens >= r.Window {
		return
	}
	switch {
	case r.OutputTokens == 0:
		// Too long, and yet below the window: one of the numbers is not what it seems.
		r.AtLeast = true
	case text["bound"] == "at least " && r.OutputTokens < r.Window/2:
		// The server stopped counting where input and output together were too many, so the input may
		// be of any size. Only a reply that claims most of the window is the likelier culprit.
	default:
		r.Kind = OutputTooLong
	}
}

// tokens reads a number from a text. What no window can hold is cut, not refused: clients do ask for
// two thousand million tokens.
func tokens(s string) int {
	if s == "" {
		return 0
	}
	n, err := strconv.ParseFloat(strings.ReplaceAll(s, ",", ""), 64)
	if math.IsNaN(n) || n < 0 || (err != nil && !math.IsInf(n, 1)) {
		return 0
	}
	return int(min(n, math.MaxInt32))
}

// A report is what an error body says, whatever its shape.
type report struct {
	typ, code    string   // the outermost ones
	labels       []string // all types, codes and finish reasons
	text         string   // all messages, in lower case, a line each
	promptTokens int
	window       int

	said strings.Builder // becomes text
}

func readReport(body []byte) *report {
	whole := len(body) <= lookAt
	if !whole {
		body = body[:lookAt]
	}
	body = bytes.TrimSpace(payload(body))
	rep := &report{}
	switch {
	case len(body) == 0 || body[0] == '<': // a page, from something that is not the model server
	case bytes.IndexByte([]byte(`{["`), body[0]) < 0:
		rep.say(string(body), 0)
	default:
		rep.read(body, 0)
		if rep.said.Len() == 0 && len(rep.labels) == 0 && whole && !jsontext.Value(body).IsValid(lenient...) {
			rep.say(string(body), 0) // looks like JSON and is not: a Python dictionary, a bracketed tag
		}
	}
	rep.text = rep.said.String()
	rep.text = rep.text[:min(len(rep.text), readText)]
	return rep
}

// payload takes the framing off a server-sent event. Old llama-servers put errors on a line of their
// own kind.
func payload(body []byte) []byte {
	framed := false
	for _, field := range []string{"data:", "event:", "error:", "id:", "retry:"} {
		framed = framed || bytes.HasPrefix(body, []byte(field))
	}
	if !framed {
		return body
	}
	var out []byte
	for line := range bytes.Lines(body) {
		for _, field := range []string{"data:", "error:"} {
			if rest, ok := bytes.CutPrefix(line, []byte(field)); ok {
				out = append(out, rest...)
			}
		}
	}
	return out
}

// A role is what a member of an error body is good for. All members not named are passed over, above
// all those in which gateways echo the request.
type role uint8

const (
	ignored role = iota
	carrier      // holds the error, or its text
	frame        // may hold the error, but its own strings and types are the model's
	typeLabel
	codeLabel
	finishLabel
	promptCount
	windowCount
)

var roles = map[string]role{
	"error":   carrier,
	"errors":  carrier,
	"message": carrier,
	"msg":     carrier,
	"detail":  carrier, // FastAPI
	"details": carrier,
	"raw":     carrier, // OpenRouter: the provider's own body, in metadata

	"response": frame, // OpenAI Responses: response.failed
	"metadata": frame,
	"choices":  frame,
	"delta":    frame,

	"type":       typeLabel,
	"error_type": typeLabel, // TGI
	"code":       codeLabel,

	"finish_reason": finishLabel,
	"stop_reason":   finishLabel,

	"n_prompt_tokens": promptCount,
	"n_ctx":           windowCount,
}

// lenient accepts what real servers send; see the package jsontext for what it refuses otherwise.
var lenient = []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}

// read takes in JSON values until the first fault, so that a body cut short still counts up to there.
func (r *report) read(body []byte, depth int) {
	dec := jsontext.NewDecoder(bytes.NewBuffer(body), lenient...)
	for r.value(dec, carrier, depth) == nil {
		if depth > 0 {
			return // what follows a quoted body is the gateway's
		}
	}
}

func (r *report) value(dec *jsontext.Decoder, as role, depth int) error {
	switch kind := dec.PeekKind(); {
	case kind == '{' && (as == carrier || as == frame):
		return r.object(dec, as, depth)
	case kind == '[' && (as == carrier || as == frame):
		return r.array(dec, as, depth)
	case kind == '"' || kind == '0':
		token, err := dec.ReadToken()
		if err == nil {
			r.leaf(token.String(), kind, as, depth)
		}
		return err
	default:
		return dec.SkipValue()
	}
}

func (r *report) array(dec *jsontext.Decoder, as role, depth int) error {
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	for dec.PeekKind() != ']' {
		if err := r.value(dec, as, depth); err != nil {
			return err
		}
	}
	_, err := dec.ReadToken()
	return err
}

func (r *report) object(dec *jsontext.Decoder, as role, depth int) error {
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	for dec.PeekKind() != '}' {
		name, err := dec.ReadToken()
		if err != nil {
			return err
		}
		member := roles[name.String()]
		if as == frame && member == typeLabel {
			member = ignored
		}
		if member == ignored {
			err = dec.SkipValue()
		} else {
			err = r.value(dec, member, depth)
		}
		if err != nil {
			return err
		}
	}
	_, err := dec.ReadToken()
	return err
}

func (r *report) leaf(s string, kind jsontext.Kind, as role, depth int) {
	switch as {
	case carrier:
		if kind == '"' {
			r.say(s, depth)
		}
	case typeLabel:
		if s != "error" && s != "response.failed" { // they name the carrier
			r.labels = append(r.labels, s)
			r.typ = firstOf(r.typ, s)
		}
	case codeLabel:
		r.labels = append(r.labels, s)
		r.code = firstOf(r.code, s)
	case finishLabel:
		r.labels = append(r.labels, s)
	case promptCount:
		r.promptTokens = max(r.promptTokens, tokens(s))
	case windowCount:
		r.window = max(r.window, tokens(s))
	}
}

// say takes in a message, and the body that a gateway may have put into it as text.
func (r *report) say(s string, depth int) {
	lower := strings.ToLower(s)
	r.said.WriteString(lower)
	r.said.WriteByte('\n')
	if inner := strings.IndexByte(s, '{'); inner >= 0 && depth < nesting && !mayQuote(lower) {
		r.read([]byte(s[inner:]), depth+1)
	}
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
