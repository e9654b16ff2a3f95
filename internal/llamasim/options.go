package llamasim

import (
	"context"
	"time"
)

// Options configures a Server. The zero value is a usable server.
type Options struct {
	// Model is the name the server answers with, whatever a request asks for.
	// Default "llamasim".
	Model string
	// Window is the context size of one slot in tokens. A prompt must be
	// smaller than it. Default 16384, or UnifiedPool where that is set.
	Window int
	// Slots is how many requests run at once; others wait for their turn and
	// get nothing until then, not even headers. Default 4.
	Slots int
	// UnifiedPool, if positive, is a number of tokens shared by all running
	// requests. When prompts and answers together outgrow it, every running
	// request fails, also the small ones.
	UnifiedPool int
	// APIKey, if set, is asked of everything but /health and the page at /.
	// Several keys are separated by commas.
	APIKey string
	// Loading makes the server start as one that is still reading its model.
	Loading bool
	// NoUI makes GET / a 404, as with --no-ui.
	NoUI bool
	// Template says how messages become a prompt. Default TemplateQwen.
	Template Template
	// ImageTokens is what an image costs. Zero means a model without vision:
	// image parts are refused.
	ImageTokens int

	// CachedPrompts is how many prompts the cache remembers, slots and RAM
	// cache together. Default 8; 1 is a single slot with --cache-ram 0.
	CachedPrompts int
	// CacheAnswers also remembers what was generated after a prompt, as the
	// real server does: a client that echoes an answer word for word then has
	// more cached than its last prompt. Off, a prompt that extends another has
	// exactly the other one cached, or a token less where the seam merged.
	CacheAnswers bool

	// PromptPerSecond and PredictedPerSecond are the speeds, in tokens a
	// second, that the reported timings claim. Defaults 1000 and 50.
	PromptPerSecond, PredictedPerSecond float64

	// Reply decides what the model says. It is called once per generation,
	// with the slot held and the prompt known to fit. Nil means a short fixed
	// text.
	Reply func(Request) Reply

	// BeforeHeaders runs before a generating request gets anything at all, as
	// while it waits for a slot.
	BeforeHeaders func(context.Context)
	// BeforeFirstByte runs where the prompt is processed: a stream has its
	// headers already and, if it asked for progress, the first report.
	BeforeFirstByte func(context.Context)
	// BetweenEvents runs before every event of a stream but the first.
	BetweenEvents func(context.Context)
	// Finished, if set, is called with the record of each request once its
	// handler is done, also when the client left early.
	Finished func(Recorded)

	// KeepRequests bounds Requests to the last so many. Zero keeps all,
	// a negative number none.
	KeepRequests int

	// Now is the clock for "created". Default time.Now.
	Now func() time.Time
	// Seed makes the random ids repeatable. Zero means they differ from one
	// Server to the next.
	Seed uint64
}

func (o Options) withDefaults() Options {
	setDefault(&o.Model, "llamasim")
	setDefault(&o.Window, o.UnifiedPool)
	setDefault(&o.Window, 16384)
	setDefault(&o.Slots, 4)
	setDefault(&o.CachedPrompts, 8)
	setDefault(&o.PromptPerSecond, 1000)
	setDefault(&o.PredictedPerSecond, 50)
	if o.Reply == nil {
		o.Reply = defaultReply
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
