// Package agents knows how coding agents use their tools: which argument names
// the file, which range of it, which shell command is nothing but a look at one
// file, how a failed result reads, how a refused one reads, and which requests
// an agent sends on its own account (titles, its own compaction, classifiers).
//
// Chat Completions carries none of this. There is no error flag, no notion of
// a file, no mark on a side request; each agent has its own names and its own
// wording, and a pass that evicts, collapses or thins results depends on
// reading them correctly. All of it is data about other people's programs, so
// it lives in one place: [Builtin], written out in table.go and extended from
// the configuration with [Table.Extend].
//
// # Rules
//
// The package is pure. It imports nothing of this module, does no I/O and knows
// no field name of a wire format: callers hand over a tool's name, its
// arguments as JSON bytes and the text of a result.
//
// Every answer errs towards "I do not know". A call that is not understood in
// every argument is opaque ([Other]: only the identical call speaks for it); a
// result that does not read like a failure in the words of a known client is a
// success; a refusal is never counted as a failure. Collapsing or evicting too
// little costs tokens, too much destroys information.
//
// # Cost and concurrency
//
// A [Table] is immutable and safe for concurrent use. Everything is linear in
// the size of the arguments or text that is passed in, and nothing is retained.
package agents
