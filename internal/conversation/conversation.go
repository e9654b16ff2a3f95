package conversation

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/compactproxy/compactproxy/internal/compaction"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

// Conversation is what is known of one conversation while it is live.
type Conversation struct {
	// ID is a name for headers, logs and the API; never a key.
	ID string

	// Guarded by mu, which is taken last. What it is recognised by and the checkpoint
	// are changed with the index locked as well, which may read them.
	mu       sync.Mutex
	state    State
	messages int  // of its last list, 0 after a restart
	answered Ref  // the checkpoint of its last answered prompt
	known    bool // whether that is known

	// Guarded by the index.
	pins     map[transcript.Hash]Pin
	pinBytes int
	unread   string // the conversation whose pins are still to be read from the store, "" for none
	// inherited pins are stored under the other conversation only.
	inherited bool
	// forgotten ones are not stored any more.
	forgotten atomic.Bool
}

// Anchor returns the last reports.
func (c *Conversation) Anchor() compaction.Anchor {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state.Anchor
}

// Observe notes what the server reported for a request of this conversation.
func (c *Conversation) Observe(r compaction.Report) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state.Anchor = c.state.Anchor.Observe(r)
}

// Rebase replaces the reports, which measured a list that was rewritten, by the
// count or the estimate of the new one.
func (c *Conversation) Rebase(r compaction.Report) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state.Anchor = compaction.Anchor{Last: r}
}

// MarkFull notes that an answer ended because the window was full, at this
// many tokens in all: the next request cannot fit as it grows.
func (c *Conversation) MarkFull(tokens int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state.Full = tokens
}

// TakeFull returns that mark and clears it.
func (c *Conversation) TakeFull() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.state.Full
	c.state.Full = 0
	return n
}

// Mark returns the mark of a compaction that did not help.
func (c *Conversation) Mark() Mark {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state.Mark
}

// SetMark notes that a compaction did not help; the zero mark takes that back.
func (c *Conversation) SetMark(m Mark) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state.Mark = m
}

// Describe takes in what a request says of the conversation, and returns the size
// of its last prompt in tokens, 0 if that is unknown. Another model has another
// tokenizer: the reports are dropped.
func (c *Conversation) Describe(model, session string) (prompt int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state.Model != "" && c.state.Model != model {
		c.state.Anchor = compaction.Anchor{}
	}
	c.state.Model = model
	if session != "" {
		c.state.Session = session
	}
	return c.state.Prompt
}

// Rewritten tells whether the checkpoint, nil for none, is another one than that of
// the last answered prompt: what is forwarded now does not extend what was.
func (c *Conversation) Rewritten(cp *Checkpoint) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := Ref{}
	if cp != nil {
		now = cp.Ref
	}
	return c.known && (now.N != c.answered.N || now.Chain != c.answered.Chain)
}

// count adds an answered request to the totals.
func (c *Conversation) count(t Turn, cp *Checkpoint, compacted bool, rereads int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answered, c.known = Ref{}, true
	if cp != nil {
		c.answered = cp.Ref
	}
	s := &c.state
	s.Prompt = t.Prompt
	s.Totals.Requests++
	s.Totals.Prompt += t.Prompt
	s.Totals.Cached += max(t.Cached, 0)
	s.Totals.Completion += t.Completion
	s.Totals.Rereads += rereads
	if t.Miss != "" {
		s.Totals.Misses++
	}
	if compacted {
		s.Totals.Compactions++
	}
}

// rewritten forgets the size of the last prompt: the next one does not extend it.
func (c *Conversation) rewritten() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state.Prompt = 0
}

// replays sets the checkpoint that it replays. The index is locked.
func (c *Conversation) replays(id int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state.Checkpoint = id
}

// snapshot is the state as it is to be stored.
func (c *Conversation) snapshot() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.state
	s.Prints = slices.Clone(s.Prints)
	s.Taint = slices.Clone(s.Taint)
	return s
}

// advance takes in a request's list.
func (c *Conversation) advance(r Request, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.state
	if s.Tools != r.Tools {
		s.Anchor = compaction.Anchor{} // the reports counted other tools
	}
	s.First, s.Last, s.System, s.Tools, s.Used = r.first(), r.end(), r.System, r.Tools, now
	s.Prints = r.Prints[:min(len(r.Prints), maxPrints)]
	c.messages = len(r.Prints)
}

// since is the number of messages of its last list, of which not all prints may be
// kept.
func (c *Conversation) since() int { return max(c.messages, len(c.state.Prints)) }

// maxPrints bounds the fingerprints that are kept of a list: 32 KiB.
const maxPrints = 4096
