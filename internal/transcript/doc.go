// Package transcript reads a Chat Completions request body as messages, calls
// and results over its raw bytes, and writes edits back without touching any
// other byte.
//
// # Model
//
// [Parse] indexes a body in one validating walk and keeps slices into it; no
// string is decoded until somebody asks. A [Message] is immutable and
// self-contained: its methods named With… return a new message whose bytes
// differ from the old ones only inside the value that was replaced.
// [Body.Rewrite] puts a message list back into the body in one rebuild. A list
// that equals the body's own gives back the identical slice.
//
// # Rules
//
// A body is never decoded and encoded again: unknown fields, key order,
// numbers, spacing and escapes of everything that is not edited stay as the
// client wrote them. Of duplicate keys the last one counts, because that is the
// one llama-server's parser keeps.
//
// # What it must not know
//
// Nothing of HTTP, servers, tokens or policy. It is the only package that knows
// the JSON field names of a chat message; another wire format would be another
// reader that yields the same messages.
package transcript
