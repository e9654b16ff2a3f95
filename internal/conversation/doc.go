// Package conversation answers "who is this?" for a request that names no
// conversation, and keeps the checkpoints that replay compacted history.
//
// # Model
//
// A conversation is known by its content: by the chain of fingerprints over
// its messages, seeded with the client's credentials, so that nothing crosses
// users. A [Checkpoint] is filed under chain(n): "the first n original messages
// (leading system messages aside) are replaced by these entries". A request
// matches a checkpoint if one of its own chain values is on file, so rewinds,
// forks and two clients with one history find what fits them and nothing else.
// A live [Conversation] is found by its last chain value; where the client
// changed an old message, by comparing lists that open alike.
//
// # Concurrency and bounds
//
// An [Index] is safe for concurrent use. In memory it holds a few dozen bytes for
// each checkpoint of the [Store], the entries of those that were used last, and
// the live conversations; the least recently used go first. Without a store, or
// while that fails, it holds what it can in memory.
//
// # What it must not know
//
// HTTP, the server, what a compaction decides, and how a store stores.
package conversation
