// Package tinymodel writes a language model small enough to build inside a
// test: a GGUF file of about 1.3 MB with random weights that a real
// llama-server loads in well under a second.
//
// Most of what compactproxy relies on is decided by the server and not by the
// weights: how many tokens a prompt has, which part of it the cache still
// holds, when a prompt is refused and in which words, how a chat template
// renders a history and which histories it raises on, how tool calls and usage
// figures stream. All of that is real with a model whose answers are nonsense,
// and none of it is real with a simulation. Downloading a proper model for it
// would make every test slow and dependent on a third party.
//
// # What the model says
//
// Answers are word salad: tokens drawn mostly by how often they occur in the
// training text, ASCII only, ended by the end-of-turn token after about a
// hundred tokens. A request can change that for itself, whatever the model was
// built with:
//
//	"logit_bias": [[2034, 100]]   // TokenTurnEnd: an empty answer
//	"logit_bias": [[2034, false]] // never end: run to max_tokens
//	"logit_bias": [[2035, 62]]    // TokenToolCall: one call after the other
//
// and with [ForceToolCall] it gets a single call. llama-server begins to
// constrain the output to a tool's schema when it sees "<tool_call>" and a line
// feed, so the model always puts a line feed behind that token, and it ends its
// turn behind the token "</tool_call>". Keep the parameters of such a tool to
// enums, booleans and integers: a free string goes on until chance closes the
// quotation mark.
//
// Options.ToolProbability makes calls happen unbidden. Once a call is closed,
// the server allows only another call or the end, so that the ratio of the two
// probabilities decides how many calls an answer has.
//
// # What the architectures are for
//
// They differ in what the server can do with the cache when a prompt changes in
// the middle. [Qwen2] attends to everything, so the cache can be cut at any
// token. [Gemma3] has a sliding window and [LFM2] a recurrent layer; with those
// the server can only return to a checkpoint, and one edit early in the history
// may cost the whole prompt.
//
// # Where the vocabulary comes from
//
// The byte-pair encoding is trained when a file is written, on the Go
// distribution's own sources and documentation: text that is there wherever
// these tests run, so that nothing has to be shipped. The same text, options
// and version of this package give the same bytes.
package tinymodel
