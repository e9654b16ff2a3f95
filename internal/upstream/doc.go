// Package upstream talks to the model server and understands what it says when it does not answer.
//
// It knows three things about a server: what it refused and why ([Classify]), how a refusal has to
// read so that every agent recognises it ([Translate]), and how large its window is ([Prober],
// [Tracker]).
//
// # What it must not know
//
// Conversations, checkpoints and compaction: whether a refusal leads to a retry, a shorter history or
// a lower max_tokens is decided elsewhere, from the numbers given here. The HTTP edge: nothing here
// sees a client's request or writes an answer. Logs, metrics and configuration: whoever wants to hear
// of a change passes a function.
//
// # Model
//
// A refusal is classified from its status and its bytes alone, by pure functions, from the table in
// rules.go. What the server calls itself (type, code) counts before what it writes; texts that may
// quote the request (template errors, bad JSON) never count as an overflow, because an agent that
// debugs an overflow has exactly those words in its history.
//
// A window is known per model, in this order: what the configuration says, but never more than the
// server has shown; what a refusal said; what /props or /v1/models said. A refusal beats the readings
// before it and loses to a reading that differs from those, since then the server was restarted.
//
// # Concurrency
//
// Classify, ClassifyFinish and Translate are pure and safe for concurrent use. A Prober holds no
// state. A Tracker is safe for concurrent use and owns one goroutine, which ends with Close; its
// OnChange calls are serial.
package upstream
