// Package compaction decides how a message list that does not fit becomes one
// that does.
//
// # Model
//
// The effective list is a slice of [Entry]: messages together with how many of
// the client's messages they stand for and what an earlier compaction did to
// them. [Recover] applies the cheap passes (evict, collapse, thin) and then,
// in order and only until the target is reached, the steps that need no model:
// clip, and drop with facts in the place of what went.
//
// # Rules
//
// A list is cut only between turns. Every step keeps the list legally paired,
// is idempotent and undoes itself where it frees nothing. Calls stay whole in
// the passes: they are small, and they say where in the work the agent stands.
//
// # What it must not know
//
// It does no I/O and knows no JSON field name of the wire format, no server,
// no metric and no log. What it did, and how many bytes that freed, is in what
// it returns.
package compaction
