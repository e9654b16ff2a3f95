// Package proxy is the HTTP edge: it routes, runs the life of a chat request,
// relays answers and serves the admin listener.
//
// # Life of a chat request
//
// chat.go reads and plans: index the body, find the conversation, replay its
// checkpoint, check the pairing. exchange.go forwards, understands a refusal,
// recovers once and sends again. relay.go streams the answer event by event,
// keeps a waiting client alive and treats an error before the first visible
// token as if it had been a status. answer.go reads usage and timings as they
// pass. Everything else goes through passthrough.go unread.
//
// # Rules
//
// What a rewrite cannot do, the last good list does: an error inside the
// proxy's own work is counted, logged once, and the request goes out as it
// last was. No content of a conversation is logged, at any level. Whoever
// starts a goroutine here ends it with the request.
package proxy
