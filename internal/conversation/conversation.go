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
// A live [Conversation] is found by its last chain value.
//
// # Concurrency and bounds
//
// An [Index] is safe for concurrent use and bounded by number of conversations
// and by bytes of checkpoints; the least recently used go first.
//
// # What it must not know
//
// HTTP, the server, and what a compaction decides.
package conversation

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/compactproxy/compactproxy/internal/compaction"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

// Checkpoint replaces the first N original messages. It must not be changed
// after it was filed.
type Checkpoint struct {
	N       int
	Chain   transcript.Hash // chain(N)
	Entries []compaction.Entry
	bytes   int
	id      int    // two branches of a conversation may cut at the same message
	owner   string // the conversation that filed it
}

// NewCheckpoint copies the entries, so that a checkpoint does not keep the
// whole request body alive whose bytes they share.
func NewCheckpoint(n int, chain transcript.Hash, entries []compaction.Entry) *Checkpoint {
	c := &Checkpoint{N: n, Chain: chain, Entries: make([]compaction.Entry, len(entries))}
	for i, e := range entries {
		e.Message = clone(&e.Message)
		c.bytes += e.Footprint()
		if e.Task != nil {
			task := clone(e.Task)
			e.Task = &task
			c.bytes += task.Footprint()
		}
		c.Entries[i] = e
	}
	return c
}

func clone(m *transcript.Message) transcript.Message {
	out, err := transcript.ParseMessage(bytes.Clone(m.Raw()))
	if err != nil {
		panic("BUG: a message that was parsed before is not JSON: " + err.Error())
	}
	return out
}

// Conversation is what is known of one conversation while it is live.
type Conversation struct {
	// ID is a name for headers, logs and the API; never a key.
	ID string

	compacting sync.Mutex // see Compact

	mu         sync.Mutex
	last       transcript.Hash // chain value of the whole list of its last request
	system     transcript.Hash
	tools      transcript.Hash
	checkpoint int // id of the one it last used, 0 for none
	anchor     compaction.Anchor
	full       int // tokens of an answer that filled the window, 0 if none did
}

// Compact runs do while no other compaction of this conversation runs: two
// identical requests in flight share one.
func (c *Conversation) Compact(do func()) {
	c.compacting.Lock()
	defer c.compacting.Unlock()
	do()
}

// Anchor returns the last reports.
func (c *Conversation) Anchor() compaction.Anchor {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.anchor
}

// Observe notes what the server reported for a request of this conversation.
func (c *Conversation) Observe(r compaction.Report) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.anchor = c.anchor.Observe(r)
}

// Retire forgets the reports: they measured a list that was rewritten.
func (c *Conversation) Retire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.anchor = compaction.Anchor{}
}

// MarkFull notes that an answer ended because the window was full, at this
// many tokens in all: the next request cannot fit as it grows.
func (c *Conversation) MarkFull(tokens int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.full = tokens
}

// TakeFull returns that mark and clears it.
func (c *Conversation) TakeFull() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.full
	c.full = 0
	return n
}

// Request is how a request looks to the index.
type Request struct {
	// Chain holds chain(0) to chain(number of messages).
	Chain []transcript.Hash
	// System and Tools are hashes of the leading system messages and of the
	// tool list: attributes, not part of the identity.
	System, Tools transcript.Hash
}

func (r Request) end() transcript.Hash { return r.Chain[len(r.Chain)-1] }

// Index knows the live conversations and the checkpoints.
type Index struct {
	mu          sync.Mutex
	maxBytes    int
	bytes       int
	checkpoints *simplelru.LRU[int, *Checkpoint]
	byChain     map[transcript.Hash][]*Checkpoint // oldest first
	filed       int                               // the last id
	live        *simplelru.LRU[string, *Conversation]
	byEnd       map[transcript.Hash][]*Conversation
	serial      int // of conversations that opened with bytes of a live one
}

// NewIndex bounds the index by live conversations and bytes of checkpoints.
func NewIndex(conversations int, maxBytes int) *Index {
	x := &Index{maxBytes: maxBytes, byEnd: map[transcript.Hash][]*Conversation{}, byChain: map[transcript.Hash][]*Checkpoint{}}
	// The sizes are positive, which is all that these constructors refuse.
	x.checkpoints, _ = simplelru.NewLRU(1<<30, func(_ int, c *Checkpoint) {
		x.bytes -= c.bytes
		remove(x.byChain, c.Chain, c)
	})
	x.live, _ = simplelru.NewLRU(max(conversations, 1), func(_ string, c *Conversation) { remove(x.byEnd, c.last, c) })
	return x
}

// Resolve finds or opens the conversation that a request belongs to, advances
// it, and returns the checkpoint to replay, nil if there is none.
//
// A live conversation stays on the checkpoint it last used until it compacts
// itself: a fork may have filed a longer one inside the shared prefix, and
// taking that would change bytes that this conversation has cached. For a
// conversation that is not live the longest checkpoint wins.
func (x *Index) Resolve(r Request) (*Conversation, *Checkpoint) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if c := x.find(r); c != nil {
		x.advance(c, r)
		cp := x.own(c, r.Chain)
		if cp == nil && c.checkpoint != 0 { // pushed out, or the client changed what it covers
			if cp = x.longest(r); cp != nil {
				c.checkpoint = cp.id
			} else {
				c.checkpoint = 0
			}
		}
		return c, cp
	}
	c := &Conversation{ID: x.name(r)}
	if len(r.Chain) == 1 { // no message: nothing to know it by next time
		return c, nil
	}
	cp := x.longest(r)
	if cp != nil {
		c.checkpoint = cp.id
	}
	x.live.Add(c.ID, c)
	x.advance(c, r)
	return c, cp
}

// own is the checkpoint that a conversation last used, nil if it has none, or it
// was pushed out, or it does not cover the list that has this chain.
func (x *Index) own(c *Conversation, chain []transcript.Hash) *Checkpoint {
	cp, ok := x.checkpoints.Get(c.checkpoint)
	if !ok || cp.N >= len(chain) || chain[cp.N] != cp.Chain {
		return nil
	}
	return cp
}

// Latest returns the conversation's checkpoint if it covers the list that has
// this chain, nil otherwise. It changes while a request is under way when
// another request of the conversation compacts it.
func (x *Index) Latest(c *Conversation, chain []transcript.Hash) *Checkpoint {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.own(c, chain)
}

// find looks for the live conversation whose last list is the longest prefix of
// this one. A request that differs from it in both system and tools is another
// agent's that quotes its messages: a title, a memory extraction, a subagent.
func (x *Index) find(r Request) *Conversation {
	for i := len(r.Chain) - 1; i > 0; i-- {
		for _, c := range x.byEnd[r.Chain[i]] {
			if c.system == r.System || c.tools == r.Tools {
				return c
			}
		}
	}
	return nil
}

func (x *Index) longest(r Request) *Checkpoint {
	for i := len(r.Chain) - 1; i > 0; i-- {
		if list := x.byChain[r.Chain[i]]; len(list) > 0 {
			cp := list[len(list)-1]
			x.checkpoints.Get(cp.id) // used: keep it
			return cp
		}
	}
	return nil
}

func (x *Index) advance(c *Conversation, r Request) {
	remove(x.byEnd, c.last, c)
	c.last, c.system, c.tools = r.end(), r.System, r.Tools
	x.byEnd[c.last] = append(x.byEnd[c.last], c)
	x.live.Get(c.ID) // used: keep it
}

// remove takes one value out of a list in a map, and the list with its last one.
func remove[T comparable](m map[transcript.Hash][]T, key transcript.Hash, value T) {
	list := slices.DeleteFunc(m[key], func(v T) bool { return v == value })
	if len(list) == 0 {
		delete(m, key)
		return
	}
	m[key] = list
}

// File puts a checkpoint on file and makes it the conversation's own.
func (x *Index) File(c *Conversation, cp *Checkpoint) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if last, ok := x.checkpoints.Peek(c.checkpoint); ok && last.owner == c.ID && last.Chain == cp.Chain && !x.shared(last.id, c) {
		x.checkpoints.Remove(last.id) // compacted again without a new message
	}
	x.filed++
	cp.id, cp.owner = x.filed, c.ID
	c.checkpoint = cp.id
	x.checkpoints.Add(cp.id, cp)
	x.byChain[cp.Chain] = append(x.byChain[cp.Chain], cp)
	x.bytes += cp.bytes
	for x.bytes > x.maxBytes && x.checkpoints.Len() > 1 {
		x.checkpoints.RemoveOldest()
	}
}

// shared tells whether another live conversation replays that checkpoint.
func (x *Index) shared(id int, but *Conversation) bool {
	return slices.ContainsFunc(x.live.Values(), func(c *Conversation) bool { return c != but && c.checkpoint == id })
}

// Stats are sizes for the metrics.
type Stats struct{ Conversations, Checkpoints, Bytes int }

// Stats returns the present sizes.
func (x *Index) Stats() Stats {
	x.mu.Lock()
	defer x.mu.Unlock()
	return Stats{x.live.Len(), x.checkpoints.Len(), x.bytes}
}

// name derives an id from the list, system and tools that open a conversation.
// Workers of a swarm open with the same bytes: those are numbered.
func (x *Index) name(r Request) string {
	end := r.end()
	sum := sha256.Sum256(append(append(end[:], r.System[:]...), r.Tools[:]...))
	id := hex.EncodeToString(sum[:6])
	if x.live.Contains(id) {
		x.serial++
		id += "-" + strconv.Itoa(x.serial)
	}
	return id
}
