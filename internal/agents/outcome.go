package agents

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Outcome is what became of a call, read off its result.
type Outcome int

const (
	// Succeeded includes everything that does not clearly say otherwise.
	Succeeded Outcome = iota
	// Failed results are never evicted and supersede nothing; repeated ones may
	// be collapsed.
	Failed
	// Refused results, by a person, a hook or a policy, are evidence of what
	// someone wants. No pass may touch them and no guard may count them.
	Refused
)

func (o Outcome) String() string {
	switch o {
	case Succeeded:
		return "succeeded"
	case Failed:
		return "failed"
	case Refused:
		return "refused"
	}
	return "unknown"
}

// IsError reports whether the result reads like a failure of the call. A
// refusal is not a failure.
func (t Table) IsError(name, text string) bool { return t.Outcome(name, text) == Failed }

// IsRefusal reports whether the result says that someone did not let the call
// happen, or stopped it.
func (t Table) IsRefusal(name, text string) bool { return t.Outcome(name, text) == Refused }

// Outcome reads a result in the words of the client that wrote it. Only the
// client's own envelope counts, at the start of the text or of its last line:
// a file, a page or a command's output may say "Error:" or "Traceback" wherever
// it likes.
//
// How much of a text can be the client's own depends on the tool. A write or an
// edit answers in the client's words from the first character, and so does a
// tool of which nothing is known, as far as anyone can tell. A read answers with
// the file, so only wordings that no file is likely to begin with count, and
// only in a short text. A command answers with its output, so a bare "Error:"
// in front is the program's or the file's, never taken for a failure: where a
// client reports exit codes, their absence means success, and where it does
// not (opencode), a failure goes unnoticed rather than a file lost. The one
// exception is an output of a single line in which a shell or a file tool says
// that there is nothing there, since a look at a missing file must not speak
// for the earlier look at its content.
func (t Table) Outcome(name, text string) Outcome {
	tool, kind := t.kind(name)
	body := strings.TrimLeft(text, " \t\r\n")
	body = strings.TrimLeft(strings.TrimPrefix(body, observationHead), "\r\n")
	last := lastLine(body)

	content := kind == KindRead || kind == KindList // neither the last line nor a long text is the client's
	if (!content || len(body) <= ownMessage) && (isRefusal(body, last) || startsWithAny(body, tool.Refusals) || startsWithAny(last, tool.Refusals)) {
		return Refused
	}
	if startsWithAny(body, tool.Errors) || !content && startsWithAny(last, tool.Errors) {
		return Failed
	}
	if tool.Enveloped {
		if o, ok := enveloped(body); ok {
			return o
		}
	}
	switch {
	case content:
		return outcomeOfContent(body)
	case kind == KindShell || kind == KindIncremental:
		return outcomeOfCommand(body, last)
	default:
		return outcomeOfMessage(body, last, kind == KindWrite || kind == KindEdit)
	}
}

// ownMessage bounds a client's message where content or output could stand in
// its place. The longest captured ones quote the arguments back. It matters most
// for refusals: a refused result is never shortened, so nothing long may be
// taken for one.
const ownMessage = 2000

func outcomeOfContent(body string) Outcome {
	if len(body) > ownMessage {
		return Succeeded
	}
	if callNeverRan(body) || readFailed.MatchString(body) {
		return Failed
	}
	// An object with nothing but an error is how several tools say that there
	// was nothing to read.
	if o, ok := topLevel(body); ok && len(o) == 1 {
		if e, ok := o["error"]; ok && e.Kind() == '"' && len(e) > 2 {
			return Failed
		}
	}
	return Succeeded
}

func outcomeOfCommand(body, last string) Outcome {
	if o, ok := exitReport(body, last); ok {
		return o
	}
	if callNeverRan(body) {
		return Failed
	}
	if strings.TrimSpace(body) == last && shellComplaint.MatchString(last) {
		return Failed
	}
	return Succeeded
}

func outcomeOfMessage(body, last string, ownWords bool) Outcome {
	if o, ok := exitReport(body, last); ok {
		return o
	}
	if callNeverRan(body) || startsWithAny(body, messageErrors) || ownWords && (startsWithAny(body, editErrors) || editFailed.MatchString(body) || readFailed.MatchString(body)) {
		return Failed
	}
	if o, ok := topLevel(body); ok && reportsFailure(o) {
		return Failed
	}
	return Succeeded
}

// callNeverRan recognises what clients say when a call does not get as far as
// its tool: an unknown name, or arguments that do not fit.
func callNeverRan(body string) bool {
	return startsWithAny(body, callErrors) || callRejected.MatchString(body)
}

// exitReport reads the exit code of a command in every form that says one. It
// decides: a command that reports zero has succeeded, whatever it printed.
func exitReport(body, last string) (Outcome, bool) {
	if m := returnCode.FindStringSubmatch(body); m != nil { // mini-swe-agent
		return codeOutcome(m[1]), true
	}
	if m := exitCodeHead.FindStringSubmatch(body); m != nil && !strings.HasPrefix(m[2], "Wall time:") { // claude
		return codeOutcome(m[1]), true
	}
	if o, ok := codexReport(body); ok {
		return o, true
	}
	if o, ok := qwenReport(body); ok {
		return o, true
	}
	if strings.HasPrefix(body, `{"`) || strings.HasPrefix(body, `{ "`) {
		if o, ok := topLevel(body); ok {
			for _, key := range exitCodeKeys {
				if code, ok := o[key]; ok && code.Kind() == '0' { // hermes
					return codeOutcome(string(code)), true
				}
			}
		}
	}
	// goose and pi put their verdict on a line of its own, behind the output.
	if standsApart(body, last) {
		if m := exitCodeTail.FindStringSubmatch(last); m != nil {
			return codeOutcome(m[1]), true
		}
		if strings.HasPrefix(last, "Command timed out") || slices.Contains(abortTails, last) {
			return Failed, true
		}
	}
	if last == "</bash_metadata>" || last == "</shell_metadata>" { // opencode
		i := max(strings.LastIndex(body, "<bash_metadata>"), strings.LastIndex(body, "<shell_metadata>"))
		if i >= 0 && terminated.MatchString(body[i:]) {
			return Failed, true
		}
	}
	if tail := body[max(0, len(body)-trailer):]; strings.Contains(tail, " with exit code ") {
		if m := openHandsTail.FindStringSubmatch(tail); m != nil {
			return codeOutcome(m[1]), true
		}
	}
	return Succeeded, false
}

// codeOutcome takes a negative code for a command that is still running: that
// is how OpenHands says it.
func codeOutcome(code string) Outcome {
	if n, err := strconv.Atoi(code); err != nil || n <= 0 {
		return Succeeded
	}
	return Failed
}

// codexReport reads the header that codex puts before a command's output.
func codexReport(body string) (Outcome, bool) {
	header, ok := codexHeader(body)
	if !ok {
		return Succeeded, false
	}
	if m := codexExit.FindStringSubmatch(header); m != nil {
		return codeOutcome(m[1]), true
	}
	// Without a code the process is still running.
	return Succeeded, true
}

// codexHeader returns the lines before a command's output. Both the current
// form (chunk id first) and the older one (exit code first) give a wall time.
func codexHeader(body string) (string, bool) {
	if !startsWithAny(body, codexHeads) {
		return "", false
	}
	const longest = 400
	head := body[:min(len(body), longest)]
	i := strings.Index(head, "\nOutput:")
	if i < 0 || !strings.Contains("\n"+head[:i], "\nWall time:") {
		return "", false
	}
	return head[:i+1], true
}

// trailer is how far from its end a result is searched for the lines that a
// client adds to an output: three of OpenHands, four of qwen-code, with paths.
const trailer = 800

// qwenReport reads the block that qwen-code makes of a command. The output in
// the middle of it may hold such lines too, so the last ones count, and only
// near the end.
func qwenReport(body string) (Outcome, bool) {
	if !startsWithAny(body, qwenHeads) {
		return Succeeded, false
	}
	tail := body[max(0, len(body)-trailer):]
	all := qwenTail.FindAllStringSubmatch(tail, -1)
	if len(all) == 0 {
		return Succeeded, false
	}
	m := all[len(all)-1]
	if m[1] == "(none)" && m[2] != "(none)" { // killed by a signal
		return Failed, true
	}
	return codeOutcome(m[1]), true
}

// enveloped reads cline's results: an object or a list of objects, each with
// its own verdict. One failure among several makes the whole result one that
// must not be lost.
func enveloped(body string) (Outcome, bool) {
	data := []byte(body)
	if len(data) == 0 || data[0] != '{' && data[0] != '[' {
		return Succeeded, false
	}
	dec := jsontext.NewDecoder(bytes.NewReader(data), jsontext.AllowDuplicateNames(true))
	if data[0] == '[' {
		if _, err := dec.ReadToken(); err != nil {
			return Succeeded, false
		}
	}
	seen := false
	for dec.PeekKind() == '{' {
		raw, err := dec.ReadValue()
		if err != nil {
			break
		}
		o, ok := topLevel(string(raw))
		if !ok {
			break
		}
		if reportsFailure(o) {
			return Failed, true
		}
		seen = seen || o["success"] != nil
	}
	return Succeeded, seen
}

// reportsFailure reads the fields by which a tool that answers in JSON says
// that it failed.
func reportsFailure(o map[string]jsontext.Value) bool {
	is := func(key, literal string) bool { return string(o[key]) == literal }
	switch {
	case is("success", "false"), is("ok", "false"), is("isError", "true"), is("is_error", "true"), is("status", `"error"`):
		return true
	case is("success", "true"), is("ok", "true"), is("status", `"success"`):
		return false
	}
	e, ok := o["error"]
	if !ok {
		return false
	}
	switch string(e) {
	case "null", "false", `""`, "{}", "[]", "0":
		return false
	}
	return true
}

// topLevel returns the members of a text that is one JSON object.
func topLevel(text string) (map[string]jsontext.Value, bool) {
	if !strings.HasPrefix(text, "{") {
		return nil, false
	}
	dec := jsontext.NewDecoder(strings.NewReader(text), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if _, err := dec.ReadToken(); err != nil {
		return nil, false
	}
	out := make(map[string]jsontext.Value)
	for dec.PeekKind() == '"' {
		name, err := dec.ReadToken()
		if err != nil {
			return nil, false
		}
		key := name.String()
		raw, err := dec.ReadValue()
		if err != nil {
			return nil, false
		}
		out[key] = bytes.Clone(raw)
	}
	if _, err := dec.ReadToken(); err != nil {
		return nil, false
	}
	return out, true
}

func isRefusal(body, last string) bool {
	// Some clients wrap the words of the refusal in those of an error.
	inner := body
	if m := errorWrapper.FindString(body); m != "" {
		inner = body[len(m):]
	}
	for _, s := range []string{body, inner} {
		if startsWithAny(s, refusals) || refused.MatchString(s) {
			return true
		}
	}
	if len(body) > ownMessage {
		return false
	}
	if first, _, _ := strings.Cut(body, "\n"); strings.Contains(first, needsApproval) {
		return true
	}
	// pi says so behind what was printed so far.
	return slices.Contains(abortTails, last) && standsApart(body, last)
}

// standsApart reports whether the last line is the whole text or has a blank
// line before it, as where a client adds its verdict to an output.
func standsApart(body, last string) bool {
	body = strings.TrimRight(body, " \t\r\n")
	return body == last || strings.HasSuffix(body, "\n\n"+last)
}

func startsWithAny(s string, prefixes []string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}

// lastLine returns the last line that is not blank.
func lastLine(s string) string {
	s = strings.TrimRight(s, " \t\r\n")
	if i := strings.LastIndexByte(s, '\n'); i >= 0 {
		s = s[i+1:]
	}
	return strings.TrimRight(s, "\r")
}

// observationHead is what SWE-agent puts before everything.
const observationHead = "OBSERVATION:"
