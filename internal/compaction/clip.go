package compaction

import (
	"bytes"
	"sort"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/compactproxy/compactproxy/internal/agents"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

// clipCalls shortens long strings in the arguments of calls, and reasoning, in
// all turns but the newest: what a model wrote itself and long since acted on.
// The newest call of a tool that keeps state stays whole, because that is the
// only place where the plan stands.
func (s Settings) clipCalls(entries []Entry, newest int) {
	plan := s.newestStateCall(Messages(entries))
	for i := range entries[:newest] {
		m := entries[i].Message
		if m.Role != transcript.Assistant {
			continue
		}
		spare := -1
		if i == plan.message {
			spare = plan.call
		}
		m = clipArguments(m, 2*s.ThinChars, spare)
		if r := m.Reasoning(); r != "" {
			if short := headTail(r, s.ThinChars, 0); len(short) < len(r) {
				m = m.WithReasoning(short)
			}
		}
		if len(m.Raw()) < len(entries[i].Raw()) {
			entries[i] = entries[i].with(m, Clipped)
		}
	}
}

type callRef struct{ message, call int }

// newestStateCall finds the newest call that holds the agent's plan, message -1
// if there is none.
func (s Settings) newestStateCall(list []transcript.Message) callRef {
	for i := len(list) - 1; i >= 0; i-- {
		for c := len(list[i].Calls) - 1; c >= 0; c-- {
			if _, ok := s.Tools.StateTool(list[i].Calls[c].Name); ok {
				return callRef{i, c}
			}
		}
	}
	return callRef{-1, -1}
}

// clipStrings shortens the string values of a JSON text that are longer than
// limit characters. Keys and everything else keep their bytes. Text that is not
// JSON comes back as it is.
func clipStrings(text []byte, limit int) []byte {
	if len(text) <= limit || !jsontext.Value(text).IsValid(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)) {
		return text
	}
	d := jsontext.NewDecoder(bytes.NewBuffer(text), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	var out []byte
	done := 0
	for {
		kind := d.PeekKind()
		if kind == 0 {
			break
		}
		if kind != '"' {
			if _, err := d.ReadToken(); err != nil {
				return text
			}
			continue
		}
		in, n := d.StackIndex(d.StackDepth())
		isKey := in == '{' && n%2 == 0
		lit, err := d.ReadValue()
		if err != nil {
			return text
		}
		if isKey || len(lit) <= limit {
			continue
		}
		value, _ := jsontext.AppendUnquote(nil, lit)
		short := headTail(string(value), limit/2, limit-limit/2)
		if len(short) >= len(value) {
			continue
		}
		end := int(d.InputOffset())
		out = append(out, text[done:end-len(lit)]...)
		out, _ = jsontext.AppendQuote(out, short)
		done = end
	}
	if done == 0 {
		return text
	}
	return append(out, text[done:]...)
}

// clipFloor is what clipping leaves of a text at least, in characters, before
// turns are dropped: below it, dropping an old turn whole costs the agent less.
const clipFloor = 1_000

// clipLargest cuts the largest texts, arguments and reasoning to a common
// length, the largest one that brings the list to the target weight, and never
// below floor characters. The newest instruction of the user is only cut if the
// others do not suffice.
func (s Settings) clipLargest(entries []Entry, target, floor int) {
	for _, spare := range []int{newestInstruction(entries), -1} {
		if weightOf(entries) > target {
			s.clipTo(entries, target, floor, spare)
		}
	}
}

func (s Settings) clipTo(entries []Entry, target, floor, spare int) {
	plan := s.newestStateCall(Messages(entries))
	outcomes := map[int]agents.Outcome{}
	for _, r := range s.results(entries) {
		outcomes[r.at] = r.outcome
	}
	clipped := func(limit int) []Entry {
		out := append([]Entry(nil), entries...)
		for i := range out {
			if i != spare && out[i].ContentBytes() > limit {
				keep := -1
				if i == plan.message {
					keep = plan.call
				}
				out[i] = out[i].clipped(limit, keep)
				out[i].Outcome = outcomes[i]
			}
		}
		return out
	}
	// The weight falls as the limit falls: search the largest limit that does.
	limits := make([]int, 0, 128)
	for limit := floor; limit < 1<<26; limit += limit/8 + 1 {
		limits = append(limits, limit)
	}
	first := sort.Search(len(limits), func(i int) bool { return weightOf(clipped(limits[i])) > target })
	copy(entries, clipped(limits[max(first-1, 0)]))
}

// clipped cuts everything in the entry that is longer than limit characters:
// text, but not the facts that a rebuilt task carries; strings in arguments,
// but not of the call spare, which holds the plan; reasoning.
func (e Entry) clipped(limit, spare int) Entry {
	m, task, edit := e.Message, e.Task, Clipped
	if task != nil {
		facts := strings.TrimPrefix(strings.TrimPrefix(e.Text(), task.Text()), "\n\n")
		short := cutText(*task, limit)
		m, task, edit = short.WithAppended(facts), &short, Rebuilt
	} else {
		m = cutText(m, limit)
	}
	m = clipArguments(m, limit, spare)
	if r := m.Reasoning(); r != "" {
		if short := headTail(r, limit/2, limit-limit/2); len(short) < len(r) {
			m = m.WithReasoning(short)
		}
	}
	if len(m.Raw()) >= len(e.Raw()) {
		return e
	}
	e.Task = task
	return e.with(m, edit)
}

// clipArguments cuts long strings in the arguments of every call but spare.
func clipArguments(m transcript.Message, limit, spare int) transcript.Message {
	short := map[int][]byte{}
	for c, call := range m.Calls {
		if c == spare {
			continue
		}
		if s := clipStrings(call.Arguments, limit); len(s) < len(call.Arguments) {
			short[c] = s
		}
	}
	if len(short) == 0 {
		return m
	}
	return m.WithArguments(short)
}

func cutText(m transcript.Message, limit int) transcript.Message {
	if m.TextBytes() <= limit {
		return m
	}
	text := m.Text()
	if short := headTail(text, limit/2, limit-limit/2); len(short) < len(text) {
		return m.WithText(short)
	}
	return m
}

// newestInstruction is the entry of the newest message in which the user says
// something, -1 if there is none.
func newestInstruction(entries []Entry) int {
	for i := len(entries) - 1; i >= 0; i-- {
		if instructs(&entries[i].Message) {
			return i
		}
	}
	return -1
}
