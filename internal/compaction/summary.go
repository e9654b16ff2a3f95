package compaction

import (
	"context"
	"errors"
	"fmt"

	"github.com/compactproxy/compactproxy/internal/transcript"
)

// Writer is the model that writes summaries.
type Writer interface {
	// Extend asks at the end of a list as it would be forwarded, so that the server
	// has nearly all of the prompt cached. Its error is ErrNotCached where the server
	// has not, and the request was given up before that was paid for.
	Extend(ctx context.Context, list []transcript.Message, maxTokens int) (Written, error)
	// Keeps tells whether the prompt of list, as the model's template renders it, is
	// how the prompt of next begins.
	Keeps(ctx context.Context, list, next []transcript.Message) bool
	// Ask asks with a text alone.
	Ask(ctx context.Context, system, user string, maxTokens int) (Written, error)
}

// ErrNotCached says that the server would have to process most of the prompt.
var ErrNotCached = errors.New("summary: the server does not have the prompt cached")

// Style is how a summary is asked for.
type Style string

// The styles.
const (
	StyleAuto   Style = "auto" // extend, and prose where that does not work
	StyleExtend Style = "extend"
	StyleProse  Style = "prose"
)

// SummarySettings are the knobs of section "compaction.summary".
type SummarySettings struct {
	Enabled  bool
	Style    Style
	Validate bool
	Target   int // tokens to ask for, 0 for [SummaryLength]
	Max      int // tokens that may be generated
}

// Asked is a summary that is to be made.
type Asked struct {
	Request
	// Known is how many entries the server has had in a prompt before. A result
	// behind them that stays verbatim need not be processed twice: the call for
	// the summary has a placeholder for it.
	Known int
}

// SummaryReport is how a summary came about.
type SummaryReport struct {
	Style    Style     // that the text was written in
	Calls    []Written // of the model, in order
	Rejected []Rejection
	Warnings []string
}

// The least that is worth a summary.
const (
	minMessages = 4    // that go
	minShare    = 0.10 // of the tokens
	minBudget   = 1024 // tokens that a summary may need
)

// ErrNothingToCut says that a summary would replace too little. It is no failure.
var ErrNothingToCut = errors.New("summary: too little would go")

// Summarise replaces everything before the protected turns by a summary that the
// model writes. Its failure leaves the list as it was.
func (s Settings) Summarise(ctx context.Context, asked Asked, model Writer) (Outcome, SummaryReport, error) {
	w := s.begin(asked.Request)
	at := s.cut(w)
	if at < 0 {
		return Outcome{}, SummaryReport{}, ErrNothingToCut
	}
	a := author{s: s, w: w, at: at, known: asked.Known, model: model}
	text, err := a.write(ctx)
	if err != nil {
		return Outcome{}, a.report, err
	}
	w.remove(PassSummary, func() []Entry {
		return s.rebuild(w.entries, at, asked.Originals, asked.Scale, text)
	})
	w.out.Kind = KindSummary
	out, err := w.outcome()
	if errors.Is(err, ErrNothing) {
		err = a.reject(RejectedLarge)
	}
	return out, a.report, err
}

// cut is the entry at which the kept part begins, -1 if too little would go.
func (s Settings) cut(w *reduction) int {
	at := w.tail
	if at < minMessages || w.entries[at-1].End < 0 || at > w.open {
		return -1
	}
	if float64(weightOf(w.entries[:at])) < minShare*float64(w.before) {
		return -1
	}
	return at
}

// author has one summary written.
type author struct {
	s      Settings
	w      *reduction
	at     int // where the kept part begins
	known  int
	model  Writer
	report SummaryReport
}

func (a *author) reject(r Rejection) error {
	a.report.Rejected = append(a.report.Rejected, r)
	return r
}

// write has the text written in the style that is set, or in the first that
// works.
func (a *author) write(ctx context.Context) (string, error) {
	style := a.s.Summary.Style
	if style != StyleProse {
		text, err := a.compose(ctx, StyleExtend)
		if err == nil || style == StyleExtend || ctx.Err() != nil {
			return text, err
		}
	}
	return a.compose(ctx, StyleProse)
}

// compose has the text written and checked in one style.
func (a *author) compose(ctx context.Context, style Style) (string, error) {
	ask, err := a.prepare(ctx, style)
	if err != nil {
		return "", err
	}
	a.report.Style = style
	request := instruction(a.length(), a.tailBegins(), a.earlier() != "")
	text, err := a.text(ctx, ask, request)
	if err != nil {
		return "", err
	}
	if a.s.Summary.Validate {
		text = a.validated(ctx, ask, request, text)
	}
	return neutral(text), nil
}

// question asks the model one thing about the stretch.
type question func(ctx context.Context, text string) (Written, error)

func (a *author) text(ctx context.Context, ask question, request string) (string, error) {
	written, err := ask(ctx, request)
	a.report.Calls = append(a.report.Calls, written)
	if err != nil {
		if !errors.Is(err, ErrNotCached) {
			_ = a.reject(RejectedFailed)
		}
		return "", err
	}
	text, err := judge(written)
	var r Rejection
	if errors.As(err, &r) {
		return "", a.reject(r)
	}
	return text, nil
}

// validated has the text checked for omissions and rewritten once where it has
// some. A check that cannot be used never vetoes.
func (a *author) validated(ctx context.Context, ask question, request, text string) string {
	written, err := ask(ctx, omissionsQuestion(text))
	a.report.Calls = append(a.report.Calls, written)
	findings, usable := omissions(written)
	switch {
	case err != nil || !usable:
		a.report.Warnings = append(a.report.Warnings, "the summary could not be checked")
		return text
	case findings == "":
		return text
	}
	better, err := a.text(ctx, ask, rewriteInstruction(request, text, findings))
	if err != nil {
		a.report.Warnings = append(a.report.Warnings, "the summary has known omissions")
		return text
	}
	return better
}

func (a *author) length() int {
	if a.s.Summary.Target > 0 {
		return a.s.Summary.Target
	}
	return SummaryLength(a.w.req.Scale.windowOrPrompt())
}

// earlier is the summary that stands in the list, "" if none does.
func (a *author) earlier() string {
	for i := range a.w.entries[:a.at] {
		if t := a.w.entries[i].Summary; t != "" {
			return t
		}
	}
	return ""
}

// tailBegins says in words where the kept part begins.
func (a *author) tailBegins() string {
	if a.at >= len(a.w.entries) {
		return ""
	}
	m := &a.w.entries[a.at].Message
	if len(m.Calls) > 0 {
		return fmt.Sprintf("the agent's call of %s with %s", m.Calls[0].Name, ellipsis(string(m.Calls[0].Arguments), 80))
	}
	return fmt.Sprintf("the message that begins %q", firstLine(m.Text(), 60))
}

// errNoRoom says that history and summary do not fit the window together.
var errNoRoom = errors.New("summary: no room for it in the window")

// prepare makes the way to ask in one style.
func (a *author) prepare(ctx context.Context, style Style) (question, error) {
	if style == StyleProse {
		return a.asProse(ctx)
	}
	list := a.placeholders()
	budget := a.budget(Weight(list) + 2*len(instruction(a.length(), "", true)))
	if budget < minBudget {
		return nil, errNoRoom
	}
	asUser := false
	if n := len(list); n > 0 && list[n-1].Role == transcript.Tool {
		asUser = a.model.Keeps(ctx, list, append(list[:n:n], transcript.NewUser("?")))
	}
	return func(ctx context.Context, text string) (Written, error) {
		return a.model.Extend(ctx, asked(list, text, asUser), budget)
	}, nil
}

// budget is what the model may generate beside that much weight, in tokens.
func (a *author) budget(weight int) int {
	sc := a.w.req.Scale
	if sc.Window <= 0 {
		return a.s.Summary.Max
	}
	const margin = 64 // template and rounding
	return min(a.s.Summary.Max, sc.Window-sc.Tokens(weight)-margin)
}

// notShown stands for a result that stays in the conversation anyway.
const notShown = "[The result of this call is not shown here. It stays in the conversation, word for word.]"

// placeholders is the list as the server knows it, with a placeholder for each
// result that it does not know yet.
func (a *author) placeholders() []transcript.Message {
	list := Messages(a.w.entries)
	for i := max(a.at, a.known); i < len(list); i++ {
		if list[i].Role == transcript.Tool && list[i].TextBytes() > len(notShown) {
			list[i] = list[i].WithText(notShown)
		}
	}
	return list
}

// asked puts a question at the end of the list, where it leaves the prompt before
// it as it is: after a tool result a user message of its own only if the template
// allows that, since some render a whole tool loop anew once the user has
// spoken, and some refuse it.
func asked(list []transcript.Message, text string, asUser bool) []transcript.Message {
	n := len(list)
	if n > 0 && (list[n-1].Role == transcript.User || list[n-1].Role == transcript.Tool && !asUser) {
		return append(list[:n-1:n-1], list[n-1].WithAppended(text))
	}
	return append(list[:n:n], transcript.NewUser(text))
}

// asProse renders the stretch as text. One that is larger than the window is read
// in chunks, each with what was written of those before it; the last one is what
// the question is about.
func (a *author) asProse(ctx context.Context) (question, error) {
	sc := a.w.req.Scale
	length := a.length()
	budget := a.budget(0)
	if sc.Window > 0 {
		budget = min(budget, max(sc.Window/4, minBudget))
	}
	if budget < length {
		return nil, errNoRoom
	}
	limit := 1 << 20
	if sc.Window > 0 {
		const own = 1200 // tokens of the question and of what was written before
		limit = int(float64(sc.Window-budget-own-length) / max(sc.Rate(), DefaultRate) * 0.9)
		if limit < 2*proseResult {
			return nil, errNoRoom
		}
	}
	parts := chunks(prose(a.w.entries[:a.at]), limit)
	before := ""
	for i, part := range parts[:max(len(parts)-1, 0)] {
		text, err := a.text(ctx, a.about(part, before, budget), instruction(length, "", before != ""))
		if err != nil {
			return nil, fmt.Errorf("part %d of %d: %w", i+1, len(parts), err)
		}
		before = text
	}
	if len(parts) == 0 {
		return nil, ErrNothingToCut
	}
	return a.about(parts[len(parts)-1], before, budget), nil
}

// about asks about a transcript.
func (a *author) about(part, before string, budget int) question {
	return func(ctx context.Context, text string) (Written, error) {
		user := "The transcript:\n\n" + part
		if before != "" {
			user = "A summary of what came before the transcript:\n\n" + before + "\n\n" + user
		}
		return a.model.Ask(ctx, proseSystem, user+"\n\nThe transcript ends here.\n\n"+text, budget)
	}
}
