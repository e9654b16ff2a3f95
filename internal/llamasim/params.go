package llamasim

import "slices"

// generationParams are the request fields that shape an answer, whatever the
// endpoint.
type generationParams struct {
	stream          bool
	includeUsage    bool
	returnProgress  bool
	timingsPerToken bool
	cachePrompt     bool
	ignoreEOS       bool
	maxTokens       int // -1 is no limit
	choices         int
	stop            []string
	model           string
	// As asked for, for the slots page.
	seed, temperature string
}

// The fields whose type is checked. Others are ignored, as are nulls.
var (
	numberFields = []string{
		"temperature", "top_k", "top_p", "min_p", "top_n_sigma", "typical_p", "xtc_probability", "xtc_threshold",
		"max_tokens", "max_completion_tokens", "n_predict", "n", "n_keep", "n_discard", "n_probs", "min_keep", "seed",
		"repeat_last_n", "repeat_penalty", "frequency_penalty", "presence_penalty",
	}
	flagFields = []string{"stream", "cache_prompt", "return_progress", "timings_per_token"}
)

func parseParams(o object) (generationParams, error) {
	for _, name := range numberFields {
		switch o[name].Kind() {
		case '"', '[', '{':
			return generationParams{}, wrongType(name, "number", o)
		}
	}
	for _, name := range flagFields {
		switch o[name].Kind() {
		case '"', '[', '{', '0':
			return generationParams{}, wrongType(name, "boolean", o)
		}
	}
	p := generationParams{
		stream:          o.flag("stream", false),
		includeUsage:    members(o["stream_options"]).flag("include_usage", false),
		returnProgress:  o.flag("return_progress", false),
		timingsPerToken: o.flag("timings_per_token", false),
		cachePrompt:     o.flag("cache_prompt", true),
		ignoreEOS:       o.flag("ignore_eos", false),
		maxTokens:       -1,
		choices:         max(1, o.number("n", 1)),
		model:           o.text("model"),
		seed:            "4294967295",
		temperature:     "0.800000011920929",
	}
	// The first that is given counts.
	for _, name := range []string{"n_predict", "max_completion_tokens", "max_tokens"} {
		if o[name].Kind() == '0' {
			p.maxTokens = o.number(name, -1)
			break
		}
	}
	if o["seed"].Kind() == '0' {
		p.seed = string(o["seed"])
	}
	if o["temperature"].Kind() == '0' {
		p.temperature = string(appendFloat(nil, o.float("temperature")))
	}
	if stop := o["stop"]; stop.Kind() == '"' {
		p.stop = []string{text(stop)}
	} else {
		for _, s := range elements(stop) {
			p.stop = append(p.stop, text(s))
		}
	}
	p.stop = slices.DeleteFunc(p.stop, func(s string) bool { return s == "" })
	return p, nil
}

func wrongType(name, want string, o object) error {
	return invalidRequest("Field '%s': [json.exception.type_error.302] type must be %s, but is %s", name, want, kindName(o[name]))
}
