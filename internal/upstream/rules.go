package upstream

import (
	"regexp"
	"strings"
	"sync"
)

// This file is all that is known of how servers word their refusals. Everything in it is compared in
// lower case. Each entry names the server it was seen on; several copy each other's words.

// labels are the values of "type" and "code" that decide by themselves. Most servers say no more than
// "invalid_request_error", which is why this list is short and the next one long.
var labels = map[string]Kind{
	"exceed_context_size_error":        TooLong, // llama-server, since September 2025
	"context_length_exceeded":          TooLong, // OpenAI, Azure, Groq, TabbyAPI, llama-cpp-python
	"contextwindowexceedederror":       TooLong, // LiteLLM
	"model_context_window_exceeded":    TooLong, // Anthropic, z.ai
	"model_max_prompt_tokens_exceeded": TooLong, // GitHub Copilot
	"tokens_limit_reached":             TooLong, // GitHub Models
	"outofcontexterror":                TooLong, // Volcengine Ark

	"rate_limit_error":    RateLimited, // Anthropic
	"rate_limit_exceeded": RateLimited, // OpenAI, Groq; also for more tokens than a minute allows
	"insufficient_quota":  RateLimited, // OpenAI
	"overloaded_error":    RateLimited, // Anthropic
	"overloaded":          RateLimited, // TGI
	"throttlingexception": RateLimited, // Bedrock

	"unavailable_error":             None, // llama-server: loading its model
	"authentication_error":          None,
	"permission_error":              None,
	"request_too_large":             None, // Anthropic: bytes, not tokens
	"string_above_max_length":       None, // OpenAI: the characters of one string
	"array_above_max_length":        None, // OpenAI: calls or tools in one list
	"invalid_function_parameters":   None, // OpenAI: a tool's schema
	"invalid_request_message_order": None, // Mistral: pairing
	"invalid_function_call":         None, // Mistral: pairing
}

// A wording is one way of saying it. Its text is plain, except that {prompt}, {more}, {window} and
// {output} stand for a number and say which, {n} for a number that means nothing here, {bound} for an
// optional "at least" or "about", and "..." for anything up to the end of the line.
type wording struct {
	backend string
	kind    Kind
	text    string
}

// quotes are texts that may hold a piece of the request: of a conversation, then, which may be about
// anything, overflows too. They come first and end the search.
var quotes = []wording{
	{"llama-server: a template refuses the shape", None, "jinja"},
	{"llama-server: a template refuses the shape", None, "raise_exception"},
	{"llama-server: a template refuses the shape", None, "unable to generate parser"},
	{"llama-server: messages, tools or arguments it cannot read", None, "failed to parse"},
	{"llama-server: not JSON", None, "[json.exception."},
	{"OpenAI, DeepSeek, DashScope: pairing", None, "must be a response to a prec"},
	{"OpenAI, DeepSeek, DashScope: pairing", None, "must be followed by tool messages"},
	{"Anthropic, Bedrock: pairing", None, "`tool_use` ids"},
	{"Anthropic, Bedrock: pairing", None, "unexpected `tool_use_id`"},
	{"Bedrock: pairing", None, "the number of toolresult blocks"},
	{"Moonshot: pairing", None, "tool_call_id "},
	{"Gemini: pairing", None, "please ensure that function"},
	{"Gemini: pairing", None, "please ensure that the number of function"},
	{"Mistral: pairing", None, "unexpected role"},
}

// wordings are tried in order and the first that fits decides: what is about rates and money, what
// carries numbers, what is about the reply alone, and at last the bare phrases.
var wordings = []wording{
	// Rates, quotas, credit, load.
	{"OpenAI, Groq: more in one request than a minute allows", OverRate, "request too large for...tokens per min"},
	{"OpenAI, Groq", RateLimited, "rate limit"},
	{"OpenAI, Groq", RateLimited, "tokens per min"},
	{"OpenAI, Groq", RateLimited, "tokens per day"},
	{"OpenAI", RateLimited, "current quota"},
	{"Anthropic", RateLimited, "per-minute"},
	{"Anthropic", RateLimited, "credit balance"},
	{"OpenRouter", RateLimited, "more credits"},
	{"OpenRouter", RateLimited, "monthly limit"},
	{"Anthropic, TGI", RateLimited, "overloaded"},
	{"Bedrock", RateLimited, "please wait"},
	{"gateways", RateLimited, "too many requests"},
	{"gateways", RateLimited, "insufficient balance"},

	// llama.cpp and what is built on it.
	{"llama-server", TooLong, "request ({prompt} tokens) exceeds the available context size ({window} tokens)"},
	{"llama-server: the pool its slots share", SharedPool, "context size has been exceeded"},
	{"llama-cpp-python", TooLong, "requested tokens ({prompt}) exceed context window of {window}"},
	{"LM Studio", TooLong, "trying to keep the first {prompt} tokens when context the overflows...loaded with context length of only {window} tokens"},
	{"LM Studio", TooLong, "(n_keep: {prompt}>= n_ctx: {window})"},
	{"LM Studio", TooLong, "reached context length of {window} tokens"},
	{"Ollama", TooLong, "prompt too long; exceeded max context length by {n} tokens"},
	{"DS4", TooLong, "prompt has {prompt} tokens, but the configured context size is {window} tokens"},
	{"TabbyAPI", TooLong, "prompt length {prompt} exceeds the available context size of {window} tokens"},
	{"TabbyAPI: with the reply's share", TooLong, "requires {n} cache tokens, which exceeds the available context size of {window} tokens"},
	{"a local server that answers 404", TooLong, "context limit is {window} tokens; prompt={prompt} leaves"},

	// OpenAI and those that speak like it. The reply's share comes before the bare numbers.
	{"OpenAI, Azure", TooLong, "maximum context length is {window} tokens...({prompt} in the messages, {more} in the functions, and {output} in the completion)"},
	{"OpenAI, Azure, DeepSeek, vLLM", TooLong, "maximum context length is {window} tokens...({prompt} in the messages, {output} in the completion)"},
	{"OpenAI completions, llama-cpp-python", TooLong, "maximum context length is {window} tokens...({prompt} in your prompt; {output} for the completion)"},
	{"llama-cpp-python: no max_tokens", TooLong, "maximum context length is {window} tokens...({prompt} in the messages, none in"},
	{"llama-cpp-python: no max_tokens", TooLong, "maximum context length is {window} tokens...({prompt} in your prompt; none for"},
	{"OpenRouter", TooLong, "maximum context length is {window} tokens...requested {bound}{n} tokens ({prompt} of text input, {more} of tool input, {output} in the output)"},
	{"OpenRouter", TooLong, "maximum context length is {window} tokens...requested {bound}{n} tokens ({prompt} of text input, {output} in the output)"},
	{"vLLM 0.19", TooLong, "maximum context length is {window} tokens...requested {output} output tokens and your prompt contains {bound}{prompt} input tokens"},
	{"vLLM 0.24: characters", TooLong, "maximum context length is {window} tokens...requested {output} output tokens and your prompt contains {n} characters"},
	{"vLLM: max_tokens beyond what the prompt leaves", TooLong, "is too large: {output}. this model's maximum context length is {window} tokens and your request has {prompt} input tokens"},
	{"vLLM", TooLong, "maximum context length is {window} tokens...your request has {bound}{prompt} input tokens"},
	{"vLLM 0.10", TooLong, "maximum context length is {window} tokens...you requested {prompt} tokens in the messages"},
	{"OpenAI", TooLong, "maximum context length is {window} tokens...your messages resulted in {bound}{prompt} tokens"},
	{"OpenAI, gpt-5", TooLong, "input tokens exceed the configured limit of {window} tokens. your messages resulted in {prompt} tokens"},
	{"OpenAI", TooLong, "maximum context length is {window}"},
	{"vLLM", TooLong, "input length ({prompt}) exceeds model's maximum context length ({window})"},
	{"vLLM", TooLong, "prompt (length {prompt}) is longer than the maximum model length of {window}"},
	{"SGLang", TooLong, "maximum context length of {window} tokens...requested a total of {n} tokens: {prompt} tokens from the input messages and {output} tokens for the completion"},
	{"SGLang", TooLong, "exceeds the model's maximum context length of {window} tokens"},
	{"SGLang, Together", TooLong, "the input ({prompt} tokens) is longer than the model's context length ({window} tokens)"},

	// Others, with numbers.
	{"Anthropic", TooLong, "exceed context limit: {prompt} + {output} > {window}"},
	{"Anthropic, Bedrock, LiteLLM", TooLong, "prompt is too long: {prompt} tokens > {window} maximum"},
	{"Fireworks", TooLong, "prompt is too long: {prompt}, model maximum context length: {window}"},
	{"Bedrock", TooLong, "max input tokens: {window}, request input token count: {prompt}"},
	{"Gemini, Vertex", TooLong, "input token count ({prompt}) exceeds the maximum number of tokens allowed ({window})"},
	{"Gemini, Vertex", TooLong, "input token count exceeds the maximum number of tokens allowed ({window})"},
	{"Mistral", TooLong, "prompt contains {prompt} tokens...too large for model with {window} maximum context length"},
	{"xAI", TooLong, "maximum prompt length is {window} but the request contains {prompt} tokens"},
	{"Moonshot", TooLong, "exceeded model token limit: {window} (requested: {prompt})"},
	{"Cerebras", TooLong, "current length is {prompt} while limit is {window}"},
	{"Cohere", TooLong, "number of tokens in the prompt exceeds the limit of {window}"},
	{"GitHub Copilot", TooLong, "prompt token count of {prompt} exceeds the limit of {window}"},
	{"GitHub Models", TooLong, "request body too large for...max size: {window} tokens"},
	{"TGI", TooLong, "`inputs` must have less than {window} tokens. given: {prompt}"},
	{"TGI, Together", TooLong, "`inputs` tokens + `max_new_tokens` must be <= {window}. given: {prompt} `inputs` tokens and {output} `max_new_tokens`"},
	{"Vercel", TooLong, "input too long: {prompt} input tokens, limit is {window}"},
	{"a gateway that counts", TooLong, "request too long: {prompt} input tokens over the limit of {window}"},
	{"DashScope", TooLong, "range of input length should be [{n}, {window}]"},
	{"SiliconFlow", TooLong, "prompt_tokens ({prompt}) must be less than max_seq_len ({window})"},
	{"watsonx", TooLong, "input token count is above the limit"},
	{"watsonx", TooLong, "number of input tokens {prompt} cannot exceed the total tokens limit {window}"},
	{"Poolside", TooLong, "input length {prompt} exceeds the maximum allowed input length of {window} tokens"},

	// The reply alone: max_tokens above a model's cap, or below 1. Nothing a shorter history mends.
	{"OpenAI, Cloudflare", None, "tokens is too large: {n}. this model supports at most"},
	{"Groq", None, "`max_tokens` must be less than"},
	{"DeepSeek", None, "valid range of max_tokens"},
	{"DashScope", None, "range of max_tokens"},
	{"Anthropic", None, "max_tokens: {n} > {n}"},
	{"Bedrock", None, "maximum tokens you requested"},
	{"Volcengine Ark", None, "integer above maximum value"},
	{"Ollama", None, "exceeds model's maximum output tokens"},
	{"TGI", None, "`max_new_tokens` must be"},
	// A default that went negative: the prompt was longer than the window. -1 is what clients send
	// that mean "no limit".
	{"vLLM, old", None, "tokens must be at least 1, got -1."},
	{"vLLM, old", TooLong, "tokens must be at least 1, got -{n}"},
	// Sizes that are not the window.
	{"llama-server: an embedding's batch", None, "increase the physical batch size"},
	{"OpenAI: one string", None, "string too long"},

	// Bare phrases.
	{"llama-server", TooLong, "exceeds the available context size"},
	{"ik_llama.cpp, llama-box, llama-server until May 2025", TooLong, "context shift is disabled"},
	{"Ollama", TooLong, "prompt is longer than the context length"},
	{"Ollama", TooLong, "input length exceeds the context length"},
	{"Ollama", TooLong, "input length exceeds maximum context length"},
	{"LM Studio", TooLong, "is greater than the context length"},
	{"mlx-serve", TooLong, "prompt exceeds maximum context length"},
	{"OpenAI, Groq", TooLong, "reduce the length of the messages"},
	{"OpenAI Responses", TooLong, "exceeds the context window"},
	{"SGLang", TooLong, "exceeds the model's maximum context length"},
	{"vLLM", TooLong, "exceeds model's maximum context length"},
	{"vLLM", TooLong, "is longer than the maximum model length"},
	{"Together", TooLong, "is longer than the model's context length"},
	{"Anthropic", TooLong, "prompt is too long"},
	{"Anthropic", TooLong, "exceeds model context window"},
	{"Anthropic", TooLong, "exceed context limit"},
	{"Bedrock", TooLong, "input is too long for requested model"},
	{"Bedrock Nova", TooLong, "input tokens exceeds maximum length"},
	{"MiniMax", TooLong, "context window exceeds limit"},
	{"z.ai, Ollama", TooLong, "prompt too long"},
	{"z.ai", TooLong, "prompt exceeds max length"},
	{"Moonshot", TooLong, "exceeded model token limit"},
	{"Cloudflare", TooLong, "exceeded this model context window limit"},
	{"Salesforce", TooLong, "input tokens exceed model token limit"},
	{"Volcengine Ark", TooLong, "total tokens of image and text exceed max message tokens"},
	{"LiteLLM", TooLong, "contextwindowexceedederror"},
	{"many", TooLong, "exceeds the maximum context length"},
	{"many", TooLong, "exceeds the model's context"},
	{"many", TooLong, "context_length_exceeded"},
	{"many", TooLong, "context length exceeded"},
	{"many", TooLong, "context window exceeded"},
}

// A compiled wording. Plain phrases, two thirds of the list, need no regular expression.
type matcher struct {
	wording
	phrase  string
	pattern *regexp.Regexp
}

// match reports whether text, in lower case, says it this way, and the numbers it names.
func (m *matcher) match(text string) (map[string]string, bool) {
	if m.pattern == nil {
		return nil, strings.Contains(text, m.phrase)
	}
	found := m.pattern.FindStringSubmatch(text)
	if found == nil {
		return nil, false
	}
	named := make(map[string]string, len(found))
	for i, name := range m.pattern.SubexpNames() {
		if name != "" {
			named[name] = found[i]
		}
	}
	return named, true
}

// compile is done on the first refusal, not at start: most runs never see one.
var compile = sync.OnceValue(func() (compiled struct{ quotes, wordings []matcher }) {
	for _, w := range quotes {
		compiled.quotes = append(compiled.quotes, newMatcher(w))
	}
	for _, w := range wordings {
		compiled.wordings = append(compiled.wordings, newMatcher(w))
	}
	return compiled
})

// A number as it stands in a text, thousands separated or not.
const number = `\d+(?:,\d{3})*`

// placeholders of a wording, in the form that quoting has given them, and what they match.
var placeholders = strings.NewReplacer(
	`\{prompt\}`, `(?P<prompt>`+number+`)`,
	`\{more\}`, `(?P<more>`+number+`)`,
	`\{window\}`, `(?P<window>`+number+`)`,
	`\{output\}`, `(?P<output>`+number+`)`,
	`\{bound\}`, `(?P<bound>at least |about )?`,
	`\{n\}`, `(?:`+number+`)`,
	`\.\.\.`, `[^\n]*?`,
)

func newMatcher(w wording) matcher {
	quoted := regexp.QuoteMeta(w.text)
	pattern := placeholders.Replace(quoted)
	if pattern == quoted {
		return matcher{wording: w, phrase: w.text}
	}
	return matcher{wording: w, pattern: regexp.MustCompile(pattern)}
}
