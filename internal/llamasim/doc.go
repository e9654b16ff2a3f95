// Package llamasim is a simulated llama-server: an http.Handler that answers
// the way llama.cpp's server does, without a model. The demo command serves it
// and tests talk to it instead of a real server.
//
// # Its one job
//
// Given a request, give the status, headers, JSON keys (in their order) and
// error wording that llama-server b11669 was seen to give, with token counts,
// a prompt cache and a context window that behave like the real ones. What the
// "model" says is a script, the Reply hook in Options.
//
// It knows nothing of the program that talks to it: no proxy, no compaction,
// no client. Anything such a program must be robust against is asked for with
// a scripted Reply, never detected here.
//
// # What is measured and what is modelled
//
// Shapes and texts come from recorded answers of the real server. Counts do
// not: prompts are rendered by templates of our own and cut into tokens by a
// rule (see token.go) that is deterministic and stable under appending, at
// about 3.4 bytes a token on code. Times in "timings" are computed from
// two configured rates; nothing here ever sleeps, a test that wants a pause
// blocks in one of the hooks.
//
// # Concurrency
//
// A Server may serve any number of requests at once. It starts no goroutines.
// Hooks are called from the goroutine that serves the request, with a context
// that ends when the client leaves or when the request fails.
package llamasim
