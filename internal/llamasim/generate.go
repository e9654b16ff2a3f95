package llamasim

import "context"

// generation is one answer to be generated, and what is known of it so far.
type generation struct {
	params   generationParams
	prompt   string
	envelope envelope

	// Of chat requests only.
	messages   []Message
	tools      []Tool
	toolChoice string
	tag        string // the generation prompt

	ctx    context.Context // ends when the client leaves or the pool fails
	tokens []uint64
	slot   int
	lease  lease
	entry  *cached
	reply  Reply
	plan   plan
	timings
	settled bool
}

// generate runs a request that was found well-formed: it waits for a slot,
// finds the prompt in the cache, and sends what the script says.
func (s *Server) generate(a *answer, g *generation) error {
	window := int(s.window.Load())
	g.tokens = tokenize(g.prompt)
	if len(g.tokens) == 0 {
		g.tokens = []uint64{markerToken(0)} // something must be processed
	}
	s.records.update(func() { a.rec.Prompt, a.rec.PromptTokens = g.prompt, len(g.tokens) })

	ctx, fail := context.WithCancelCause(a.r.Context())
	defer fail(nil)
	g.ctx = ctx
	var err error
	if g.slot, err = s.slots.acquire(ctx, g.params, g.tag); err != nil {
		return err
	}
	defer s.settle(g)
	if err := g.pause(s.options.BeforeHeaders); err != nil {
		return err
	}
	if len(g.tokens) >= window {
		return tooLong(len(g.tokens), window)
	}
	cached := s.cache.lookup(g.tokens)
	g.reply = s.options.Reply(Request{
		Number:       int(s.numbers.Add(1)),
		Path:         a.r.URL.Path,
		Header:       a.r.Header,
		Body:         a.rec.Body,
		Model:        g.params.model,
		Messages:     g.messages,
		Tools:        g.tools,
		ToolChoice:   g.toolChoice,
		Stream:       g.params.stream,
		MaxTokens:    g.params.maxTokens,
		Prompt:       g.prompt,
		PromptTokens: len(g.tokens),
		CachedTokens: cached,
	})
	if g.reply.Answer != nil {
		s.records.update(func() { a.rec.CachedTokens = cached })
		a.script(g.reply.Answer)
		return nil
	}

	g.lease.fail = func() { fail(errPoolExhausted) }
	s.pool.enter(&g.lease)
	g.entry, cached = s.cache.admit(g.tokens, g.params.cachePrompt)
	g.timings = timings{
		speeds:    speeds{s.options.PromptPerSecond, s.options.PredictedPerSecond},
		cached:    cached,
		processed: len(g.tokens) - cached,
	}
	s.slots.prompt(g.slot, len(g.tokens), cached)
	s.records.update(func() { a.rec.CachedTokens = cached })
	g.plan = makePlan(g.reply, planOptions{
		budget:    g.budget(window),
		thinking:  s.options.Template == TemplateThinking && len(g.messages) > 0,
		parse:     len(g.tools) > 0 && g.toolChoice != "none",
		ignoreEOS: g.params.ignoreEOS,
		stop:      g.params.stop,
		newID:     s.newID,
	})
	if g.params.stream {
		return s.stream(a, g)
	}
	return s.plain(a, g)
}

// settle gives back what a generation held and counts it, once. That comes
// before the last of an answer goes out: a client may well ask again as soon
// as it has that, and must not find its own prompt in use.
func (s *Server) settle(g *generation) {
	if g.settled {
		return
	}
	g.settled = true
	if g.entry != nil {
		s.cache.release(g.entry)
		s.pool.leave(&g.lease)
		s.totals.add(g.timings)
	}
	s.slots.release(g.slot)
}

// budget is how many tokens may be generated. None at all is not possible.
func (g *generation) budget(window int) int {
	budget := window - len(g.tokens)
	if g.params.maxTokens >= 0 {
		budget = min(budget, max(1, g.params.maxTokens))
	}
	return budget
}

// pause runs a hook and reports what happened meanwhile: nil, the failure of
// the pool, or the error of a client that left.
func (g *generation) pause(hook func(context.Context)) error {
	if hook != nil {
		hook(g.ctx)
	}
	return context.Cause(g.ctx)
}

// prefill processes the prompt. report, if not nil, is called at once and
// after every batch.
func (s *Server) prefill(g *generation, report func(processed int, millis float64) error) error {
	const batch = 2048
	if report == nil {
		report = func(int, float64) error { return nil }
	}
	if err := report(g.cached, 0); err != nil {
		return err
	}
	s.pool.take(&g.lease, len(g.tokens))
	if err := g.pause(or(g.reply.BeforeFirstByte, s.options.BeforeFirstByte)); err != nil {
		return err
	}
	for done := g.cached; done < len(g.tokens); {
		done = min(done+batch, len(g.tokens))
		s.cache.grow(g.entry, g.tokens[:done:done])
		if err := report(done, g.promptMillis(done-g.cached)); err != nil {
			return err
		}
	}
	return context.Cause(g.ctx)
}

// decode generates the next token.
func (s *Server) decode(a *answer, g *generation) error {
	g.predicted++
	s.slots.decoded(g.slot)
	s.pool.take(&g.lease, 1)
	s.records.update(func() { a.rec.Predicted = g.predicted })
	return context.Cause(g.ctx)
}

// complete ends a generation that ran to its end.
func (s *Server) complete(g *generation) {
	if s.options.CacheAnswers {
		s.cache.grow(g.entry, appendTokens(g.tokens[:len(g.tokens):len(g.tokens)], g.plan.raw, true))
	}
	s.settle(g)
}

// or is the first hook that is set.
func or(first, second func(context.Context)) func(context.Context) {
	if first != nil {
		return first
	}
	return second
}
