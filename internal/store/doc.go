// Package store keeps conversations, their checkpoints and the messages that
// these replaced in one SQLite file, and finds those messages again.
//
// # Model
//
// A [Store] is a conversation.Store. A checkpoint and the originals that it covers
// are committed in one transaction. An original is taken apart: a shell, and the
// literals that a model reads, each stored once for however many messages hold
// it; put together again it is the client's bytes. What nothing refers to any
// more is deleted by triggers, in the transaction that deletes its last reference.
//
// Texts are found by full-text search ([Store.Recall]) and by the SHA-256 of what
// they say ([Store.Text]). The index is filled in the background and may lag;
// originals never do.
//
// # Concurrency and bounds
//
// A Store is safe for concurrent use. One process at a time has the folder open
// ([LockedError], [Running]). There is one writing connection, and every transaction
// on it is short, so that a request's commit does not wait long: compressing is
// done outside, indexing, merging and giving back of free pages in small steps.
// [Store.Prune] bounds age and size. A file that turns out to be damaged is moved
// aside and a new one begun.
//
// Bytes in the file are input from outside: garbage gives an error.
//
// # What it must not know
//
// HTTP, loggers, what a compaction is, and what the entries of a checkpoint mean.
package store
