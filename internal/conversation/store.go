package conversation

import (
	"errors"
	"time"

	"github.com/compactproxy/compactproxy/internal/compaction"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

// Store keeps what must survive a restart. It knows bytes and hashes, and
// nothing of what a compaction is. Its methods are safe for concurrent use. An
// error of any of them leaves what was stored before as it was; the Index then
// serves on from memory.
type Store interface {
	// Load returns every checkpoint without its entries, oldest first, and the
	// states of at most that many conversations, the most recently used ones.
	Load(conversations int) (Kept, error)
	// Entries returns the entries of a checkpoint as they were committed, or
	// ErrGone.
	Entries(checkpoint int64) ([]byte, error)
	// Pins returns what was pinned for a conversation.
	Pins(conversation string) ([]Pin, error)
	// Commit stores all of it or nothing, and returns when a kill of the process
	// cannot undo it. The id is the new checkpoint's, 0 if there is none.
	Commit(Commit) (checkpoint int64, err error)
	// Note stores what may lag behind: a kill of the process may lose the last
	// notes, and costs no more than a less exact forecast.
	Note(Notes) error
	// Forget removes a conversation: its checkpoints, pins, turns and originals.
	// What another one needs is handed to that one: a checkpoint that it replays,
	// with the originals below it.
	Forget(conversation string) error
	// Prune removes conversations that were not used since the retention, and the
	// longest unused ones while the store is larger than its bound, and says which.
	// It keeps the live ones; of those it removes superseded checkpoints and then
	// originals, and only if nothing else brings it within its bound. What was removed
	// before an error is returned with it.
	Prune(live []string) (removed []string, err error)
	// Size is what the store takes on disk, in bytes.
	Size() int64
}

// ErrGone says that a checkpoint is not there any more.
var ErrGone = errors.New("the checkpoint is not in the store")

// Kept is what a store knows at its start.
type Kept struct {
	Conversations []State
	Checkpoints   []Ref
}

// Ref is a checkpoint without its entries.
type Ref struct {
	ID           int64
	Conversation string // that filed it
	Chain        transcript.Hash
	N            int
}

// State is what is kept of a conversation.
type State struct {
	ID      string // a name for headers, logs and the API; never a key
	Parent  string // the conversation that this one went on from, "" for none
	Session string // the label that the client gave, "" for none
	Model   string
	Started time.Time
	Used    time.Time

	// How it is recognised: the chain value of its first message, that of its last
	// list, and a short fingerprint of each message of that list.
	First, Last   transcript.Hash
	Prints        []uint64
	System, Tools transcript.Hash

	Checkpoint int64 // that it replays, 0 for none; a Commit's own once that is stored
	Prompt     int   // tokens of its last prompt as the server reported them, 0 if unknown
	Anchor     compaction.Anchor
	Full       int // tokens of an answer that filled the window, 0 if none did
	Mark       Mark
	Taint      []string // names of the untrusted tools whose results entered
	Totals     Totals
}

// Mark says that a compaction did not help, and that another one is not worth
// an attempt until the conversation has grown or the user has written.
type Mark struct {
	N      int // messages at the time, 0 for no mark
	Chain  transcript.Hash
	Tokens int // of the prompt at the time
}

// Totals are sums over a conversation's requests.
type Totals struct {
	Requests    int
	Compactions int
	Prompt      int // tokens
	Cached      int // of those, from the server's cache
	Completion  int
	Misses      int // turns that paid again for what should have been cached
	Rereads     int
}

// Commit is what is stored in one transaction.
type Commit struct {
	State State
	// Checkpoint is nil where only pins are stored.
	Checkpoint *Filed
	Pins       []Pin
}

// Filed is a checkpoint as it goes to the store.
type Filed struct {
	Ref           // without ID
	Parent  int64 // the checkpoint that was replayed before, 0 for none
	Entries []byte
	// Originals are the client's messages that this checkpoint covers and its
	// parent does not.
	Originals []Original
	Summary   Summary
}

// Summary is what a compaction did, for people.
type Summary struct {
	At      time.Time      `json:"at"`
	Trigger string         `json:"trigger"`
	Kind    string         `json:"kind"`
	Window  int            `json:"window_tokens"`
	Limit   int            `json:"threshold_tokens"`
	Before  int            `json:"tokens_before"`
	After   int            `json:"tokens_after"`
	Exact   bool           `json:"exact"` // whether the server counted the tokens after
	Removed map[string]int `json:"removed_bytes"`
	Reasons []string       `json:"reasons,omitempty"`
}

// Original is one of the client's messages that was replaced.
type Original struct {
	N       int             // its position: 1 for the first one behind the leading system messages
	Chain   transcript.Hash // chain(N)
	Tool    string          // the tool whose result it is, "" for others
	Message transcript.Message
}

// Pin keeps the bytes with which a message was forwarded.
type Pin struct {
	N     int // as in Original
	Chain transcript.Hash
	Raw   []byte
}

// Notes are what a store takes in batches.
type Notes struct {
	States []State
	Turns  []Turn
}

// Turn is one answered request, for the charts and the cache lens.
type Turn struct {
	Conversation string    `json:"-"`
	At           time.Time `json:"at"`
	Action       string    `json:"action"`
	Client       int       `json:"client_tokens"` // estimate of what the client sent
	Forecast     int       `json:"forecast_tokens"`
	Prompt       int       `json:"prompt_tokens"` // as the server reported
	Cached       int       `json:"cached_tokens"` // -1 where the server does not say
	Completion   int       `json:"completion_tokens"`
	Expected     int       `json:"expected_cached_tokens"`
	Miss         string    `json:"miss,omitempty"`    // reason of a cache miss
	Message      int       `json:"message,omitempty"` // the client's message that changed, from 1
}
