// Package pairing tells whether a message list is legal, and repairs it.
//
// # Rules
//
// Every tool message answers a call of the nearest assistant message before
// it, with only tool messages between. Every call is answered before anything
// else follows, and no call twice. Calls and results are matched inside their
// batch: by id, and by position where ids are missing or repeated. Ids are
// never looked up in the whole history, because real clients use an id again
// in a later turn, even for another tool. Results out of call order are legal.
// The arguments of a call are JSON: llama-server answers 500 to every later
// request once a call that max_tokens cut off is in the history.
//
// # What it must not know
//
// Servers, tokens, policies. It is pure, and it judges our own rewrites with
// the same code as the clients' lists.
package pairing

import (
	"bytes"
	"fmt"
	"iter"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/compactproxy/compactproxy/internal/transcript"
)

// Kind names what is wrong.
type Kind string

// The kinds of violation.
const (
	// OrphanResult is a tool message that answers no call of its batch.
	OrphanResult Kind = "orphan_result"
	// DuplicateResult answers a call that has its result already.
	DuplicateResult Kind = "duplicate_result"
	// UnansweredCall has no result although its batch is over.
	UnansweredCall Kind = "unanswered_call"
	// Interleaved is another message between a call and its result.
	Interleaved Kind = "interleaved_message"
	// BadArguments are call arguments that are not JSON.
	BadArguments Kind = "bad_arguments"
)

// Kinds lists every kind, for counters that exist from the start.
var Kinds = []Kind{OrphanResult, DuplicateResult, UnansweredCall, Interleaved, BadArguments}

// Violation is one breach of the rules.
type Violation struct {
	Kind    Kind
	Message int    // index in the list that was checked
	CallID  string // the id concerned, "" if it has none
}

func (v Violation) String() string {
	return fmt.Sprintf("%s at messages[%d] (call id %q)", v.Kind, v.Message, v.CallID)
}

// Check returns every violation in order of the list, nil if it is legal.
func Check(list []transcript.Message) []Violation {
	var found []Violation
	for b := range batches(list) {
		found = append(found, b.check(list)...)
	}
	return found
}

// batch is an assistant message with everything up to the next one. The
// messages before the first assistant message are a batch without calls.
type batch struct {
	start, end int
	calls      []transcript.Call
	result     []int // for each call the index of its result, or none
	answers    []int // for each message from start on the call that it answers, or none or again
}

const (
	none  = -1
	again = -2 // its call has a result already
)

// batches yields the batches of a list. The batch and its slices are reused for
// the next one.
func batches(list []transcript.Message) iter.Seq[*batch] {
	return func(yield func(*batch) bool) {
		var b batch
		for i := 0; i < len(list); i = b.end {
			end := i + 1
			for end < len(list) && list[end].Role != transcript.Assistant {
				end++
			}
			b.match(list, i, end)
			if !yield(&b) {
				return
			}
		}
	}
}

// match assigns results to calls: equal ids first, each in order of
// appearance, then what has no usable id by position.
func (b *batch) match(list []transcript.Message, start, end int) {
	b.start, b.end, b.calls = start, end, nil
	if list[start].Role == transcript.Assistant {
		b.calls = list[start].Calls
	}
	b.result = fill(b.result, len(b.calls))
	b.answers = fill(b.answers, end-start)
	if len(b.calls) == 0 {
		return
	}
	open := map[string][]int{} // calls without a result, by id, in order
	for c := range b.calls {
		open[b.calls[c].ID] = append(open[b.calls[c].ID], c)
	}
	for i := start; i < end; i++ {
		id := list[i].Answers
		if list[i].Role != transcript.Tool || id == "" {
			continue
		}
		switch calls, known := open[id]; {
		case len(calls) > 0:
			b.assign(i, calls[0])
			open[id] = calls[1:]
		case known:
			b.answers[i-start] = again
		}
	}
	// A result without an id may answer any call, one with an id of its own only a
	// call without.
	any, nameless := 0, 0
	next := func(from *int, fits func(c int) bool) int {
		for ; *from < len(b.calls); *from++ {
			if b.result[*from] == none && fits(*from) {
				return *from
			}
		}
		return none
	}
	for i := start; i < end; i++ {
		if list[i].Role != transcript.Tool || b.answers[i-start] != none {
			continue
		}
		call := none
		if list[i].Answers == "" {
			call = next(&any, func(int) bool { return true })
		} else {
			call = next(&nameless, func(c int) bool { return b.calls[c].ID == "" })
		}
		if call != none {
			b.assign(i, call)
		}
	}
}

// fill returns n times none, in the memory of s where that suffices.
func fill(s []int, n int) []int {
	s = append(s[:0], make([]int, n)...)
	for i := range s {
		s[i] = none
	}
	return s
}

func (b *batch) assign(message, call int) {
	b.answers[message-b.start] = call
	b.result[call] = message
}

func (b *batch) check(list []transcript.Message) []Violation {
	var found []Violation
	for _, c := range b.calls {
		if !legalArguments(c) {
			found = append(found, Violation{BadArguments, b.start, c.ID})
		}
	}
	for c, result := range b.result {
		if result < 0 {
			found = append(found, Violation{UnansweredCall, b.start, b.calls[c].ID})
		}
	}
	between := false
	for i := b.start; i < b.end; i++ {
		if list[i].Role != transcript.Tool {
			between = between || i > b.start
			continue
		}
		switch answers := b.answers[i-b.start]; {
		case answers == again:
			found = append(found, Violation{DuplicateResult, i, list[i].Answers})
		case answers == none:
			found = append(found, Violation{OrphanResult, i, list[i].Answers})
		case between:
			found = append(found, Violation{Interleaved, i, list[i].Answers})
		}
	}
	return found
}

// Ref names a call: the index of its assistant message, and of the call in it.
type Ref struct{ Message, Call int }

// Answered returns for each tool message of a list the call that it answers,
// by the rules that [Check] applies. Tool messages without a call are absent.
func Answered(list []transcript.Message) map[int]Ref {
	refs := map[int]Ref{}
	for b := range batches(list) {
		for call, message := range b.result {
			if message != none {
				refs[message] = Ref{b.start, call}
			}
		}
	}
	return refs
}

// legalArguments accepts JSON text. A call without any arguments is left to
// the server, which has its own words for it.
func legalArguments(c transcript.Call) bool {
	if c.Arguments == nil {
		return true
	}
	return c.Valid
}

// Repaired is a legal list made of another one.
type Repaired struct {
	Messages []transcript.Message
	// From maps each message to its index in the old list, or -1 for a message
	// that the repair added.
	From []int
	// End maps each message to the number of messages of the old list that it
	// and everything before it stand for, or -1 where that is no whole number:
	// in the middle of a batch whose messages were moved or added.
	End []int
	// Violations is what was wrong with the old list. If nothing was, Messages is
	// that list itself, and From and End are nil.
	Violations []Violation
}

// Texts that the model reads; they say what happened and never that a proxy
// exists.
const (
	orphanLabel    = "[A tool result without its call; the call is not part of this conversation any more. The result was:]"
	noResultText   = "[No result was recorded for this call.]"
	argumentsField = "unparsed_arguments"
)

// Repair returns a legal list that says the same: an orphan result becomes
// labelled text in a user message, a call without result gets one that says
// so, what stood between results moves behind them, a second result for a call
// goes, and arguments that are not JSON become an object that holds them as
// text. A legal list comes back as it is. The result for a list is a prefix of
// the result for a longer one wherever the first list's batches are complete.
func Repair(list []transcript.Message) Repaired {
	r := Repaired{Violations: Check(list)}
	if r.Violations == nil {
		r.Messages = list
		return r
	}
	for b := range batches(list) {
		if len(b.check(list)) > 0 {
			b.repair(list, &r)
			continue
		}
		for i := b.start; i < b.end; i++ {
			r.add(list[i], i, i+1)
		}
	}
	return r
}

func (r *Repaired) add(m transcript.Message, from, end int) {
	r.Messages = append(r.Messages, m)
	r.From = append(r.From, from)
	r.End = append(r.End, end)
}

func (b *batch) repair(list []transcript.Message, r *Repaired) {
	if list[b.start].Role == transcript.Assistant {
		r.add(withLegalArguments(list[b.start]), b.start, -1)
	}
	for i := b.start; i < b.end; i++ {
		if b.answers[i-b.start] >= 0 {
			r.add(list[i], i, -1)
		}
	}
	for c, result := range b.result {
		if result < 0 {
			r.add(transcript.NewResult(b.calls[c].ID, noResultText), -1, -1)
		}
	}
	// What is left keeps its order. Text of orphans joins a neighbouring user
	// message: two user messages in a row are refused by strict templates. It
	// joins the one before only if that stands in this batch, since what stands
	// before the batch may be a checkpoint's.
	begin := len(r.Messages)
	var pending []string
	flush := func() {
		if pending == nil {
			return
		}
		text := strings.Join(pending, "\n\n")
		pending = nil
		if last := len(r.Messages) - 1; last >= begin && r.Messages[last].Role == transcript.User {
			r.Messages[last] = r.Messages[last].WithAppended(text)
			return
		}
		r.add(transcript.NewUser(text), -1, -1)
	}
	for i := b.start; i < b.end; i++ {
		m := list[i]
		last := len(r.Messages) - 1
		behindUser := last >= begin && r.Messages[last].Role == transcript.User
		switch {
		case m.Role == transcript.Assistant || b.answers[i-b.start] != none:
			// stands above already, or repeats what does
		case m.Role == transcript.Tool:
			pending = append(pending, orphanText(m))
		case m.Role == transcript.User && pending != nil && !behindUser:
			r.add(m.WithPrepended(strings.Join(pending, "\n\n")), i, -1)
			pending = nil
		default:
			flush()
			r.add(m, i, -1)
		}
	}
	flush()
	r.End[len(r.End)-1] = b.end
}

func orphanText(m transcript.Message) string { return orphanLabel + "\n" + m.Text() }

func withLegalArguments(m transcript.Message) transcript.Message {
	legal := map[int][]byte{}
	for i, c := range m.Calls {
		if legalArguments(c) {
			continue
		}
		legal[i] = []byte(`{}`)
		if len(bytes.TrimSpace(c.Arguments)) > 0 {
			q, err := jsontext.AppendQuote([]byte(`{"`+argumentsField+`":`), bytes.ToValidUTF8(c.Arguments, []byte("\uFFFD")))
			if err == nil {
				legal[i] = append(q, '}')
			}
		}
	}
	return m.WithArguments(legal)
}
