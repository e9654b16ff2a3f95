package conversation

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/compactproxy/compactproxy/internal/transcript"
)

// Request is how a request looks to the index.
type Request struct {
	// Chain holds chain(0) to chain(number of messages), Prints a short
	// fingerprint for each message.
	Chain  []transcript.Hash
	Prints []uint64
	// System and Tools are hashes of the leading system messages and of the
	// tool list: attributes, not part of the identity.
	System, Tools transcript.Hash
	// Side requests are an agent's own (a title, its own summary): they replay
	// what fits and leave the conversation that they quote as it was.
	Side bool
}

func (r Request) end() transcript.Hash { return r.Chain[len(r.Chain)-1] }

func (r Request) first() transcript.Hash { return r.Chain[min(1, len(r.Chain)-1)] }

// Change is what a request changed of the conversation's last one, new messages
// aside.
type Change struct {
	First         bool // there was no last one
	System, Tools bool
	// Message is the first of the client's messages that is not what it was, from
	// 0 behind the leading system messages; -1 for none.
	Message int
	// Since is the number of messages of the last list.
	Since int
}

// Resolved says who a request is from and what to replay.
type Resolved struct {
	Conversation *Conversation
	Checkpoint   *Checkpoint // nil for none
	Change       Change
}

// Options bound an index.
type Options struct {
	Store         Store // nil keeps everything in memory
	Conversations int   // live ones
	// Retention is how long a live conversation may be unused before the store may
	// remove it; 0 for ever.
	Retention time.Duration
	Bytes     int // of entries in memory
	// OnHealth is told when the store begins to fail, and with nil when it is well
	// again. It must not call the index.
	OnHealth func(error)
}

// Index knows the live conversations and the checkpoints.
type Index struct {
	store     Store
	maxBytes  int
	retention time.Duration
	onHealth  func(error)
	now       func() time.Time

	// storing is held from the snapshot of a state to its end in the store, so that an
	// older one never comes after a newer one. It is taken before mu.
	storing sync.Mutex

	mu       sync.Mutex
	bytes    int
	pinBytes int
	entries  *simplelru.LRU[int64, *Checkpoint] // those in memory
	refs     map[int64]Ref
	byChain  map[transcript.Hash][]int64 // oldest first
	unsaved  int64                       // the last id of a checkpoint that the store has not: negative
	live     *simplelru.LRU[string, *Conversation]
	byLast   map[transcript.Hash][]*Conversation
	byFirst  map[transcript.Hash][]*Conversation
	opened   uint64 // conversations

	// For the store; see keep.go.
	dirty   map[*Conversation]bool
	turns   []Turn
	pending []pending
	stored  int64 // bytes
	health  error
}

// NewIndex reads what the store keeps. An error is the store's; the index works
// without what could not be read.
func NewIndex(o Options) (*Index, error) {
	x := &Index{
		store: o.Store, maxBytes: o.Bytes, retention: o.Retention, onHealth: o.OnHealth, now: time.Now,
		refs: map[int64]Ref{}, byChain: map[transcript.Hash][]int64{},
		byLast: map[transcript.Hash][]*Conversation{}, byFirst: map[transcript.Hash][]*Conversation{},
		dirty: map[*Conversation]bool{},
	}
	// The sizes are positive, which is all that these constructors refuse.
	x.entries, _ = simplelru.NewLRU(1<<30, func(id int64, c *Checkpoint) {
		x.bytes -= c.bytes
		if id < 0 || x.store == nil {
			x.drop(id)
		}
	})
	x.live, _ = simplelru.NewLRU(max(o.Conversations, 1), func(_ string, c *Conversation) { x.leave(c) })
	if x.store == nil {
		return x, nil
	}
	kept, err := x.store.Load(max(o.Conversations, 1))
	if err != nil {
		return x, err
	}
	for _, ref := range kept.Checkpoints {
		x.addRef(ref)
	}
	slices.SortStableFunc(kept.Conversations, func(a, b State) int { return a.Used.Compare(b.Used) })
	for _, s := range kept.Conversations {
		c := &Conversation{ID: s.ID, state: s, unread: s.ID}
		x.join(c)
	}
	return x, nil
}

func (x *Index) addRef(ref Ref) {
	x.refs[ref.ID] = ref
	x.byChain[ref.Chain] = append(x.byChain[ref.Chain], ref.ID)
}

// drop forgets a checkpoint.
func (x *Index) drop(id int64) {
	ref, ok := x.refs[id]
	if !ok {
		return
	}
	delete(x.refs, id)
	remove(x.byChain, ref.Chain, id)
}

// join makes a conversation live, leave ends that.
func (x *Index) join(c *Conversation) {
	x.live.Add(c.ID, c)
	x.byLast[c.state.Last] = append(x.byLast[c.state.Last], c)
	x.byFirst[c.state.First] = append(x.byFirst[c.state.First], c)
	x.pinBytes += c.pinBytes
}

func (x *Index) leave(c *Conversation) {
	remove(x.byLast, c.state.Last, c)
	remove(x.byFirst, c.state.First, c)
	x.pinBytes -= c.pinBytes
	c.pins, c.pinBytes = nil, 0
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

// Resolve finds or opens the conversation that a request belongs to, advances
// it, and returns the checkpoint to replay.
//
// A live conversation stays on the checkpoint it last used until it compacts
// itself: a fork may have filed a longer one inside the shared prefix, and
// taking that would change bytes that this conversation has cached. For a
// conversation that is not live the longest checkpoint wins.
func (x *Index) Resolve(r Request) Resolved {
	x.mu.Lock()
	c, live, change := x.identify(r)
	x.mu.Unlock()
	for {
		x.mu.Lock()
		ref, ok := x.own(c, r.Chain)
		if !ok && (!live || c.state.Checkpoint != 0) { // it had none, or what it had is gone or does not fit
			ref, ok = x.longest(r)
		}
		c.replays(ref.ID) // 0 where there is none
		x.mu.Unlock()
		if !ok {
			return Resolved{c, nil, change}
		}
		cp, err := x.load(ref)
		if err == nil || !errors.Is(err, ErrGone) && !errors.Is(err, errCodec) {
			return Resolved{c, cp, change} // a store that cannot be read now may be later
		}
		x.mu.Lock()
		x.drop(ref.ID) // and see what else there is
		x.mu.Unlock()
	}
}

// identify returns the conversation of a request, advanced by it, and whether it
// was live before.
func (x *Index) identify(r Request) (c *Conversation, live bool, change Change) {
	c, changed, related := x.find(r)
	now := x.now()
	if c == nil || r.Side {
		opened := &Conversation{state: State{Started: now}}
		from := related
		if c != nil { // a side request that quotes it
			opened.state.Checkpoint, from = c.state.Checkpoint, c
		}
		if from != nil {
			opened.state.Parent, opened.state.Taint = from.ID, from.state.Taint
			opened.unread = from.ID
		}
		opened.ID = x.name(r, now)
		if r.Side && c != nil {
			opened.ID = c.ID
		}
		opened.state.ID = opened.ID
		opened.advance(r, now)
		if from != nil {
			x.inherit(opened, from, r)
		}
		if !r.Side && len(r.Chain) > 1 { // else there is nothing to know it by next time
			x.join(opened)
			x.dirty[opened] = true
		}
		return opened, false, Change{First: related == nil, Message: changed, Since: max(changed, 0)}
	}
	change = Change{System: c.state.System != r.System, Tools: c.state.Tools != r.Tools, Message: changed, Since: c.since()}
	remove(x.byLast, c.state.Last, c)
	c.advance(r, now)
	x.byLast[c.state.Last] = append(x.byLast[c.state.Last], c)
	x.live.Get(c.ID) // used: keep it
	x.dirty[c] = true
	return c, true, change
}

// candidates bounds how many conversations with one opening are compared: a
// swarm's workers may open alike by the thousand.
const candidates = 64

// find looks for the live conversation whose last list is the longest prefix of
// this one, changed is -1 then. Else for one of which the client has changed a
// message, the one at changed, and kept what stands behind it. Else c is nil, and
// related is the conversation that this one went on from, if any: a rewind, a
// fork.
//
// A request that differs from a conversation in both system and tools is another
// agent's that quotes its messages: a title, a memory extraction, a subagent.
func (x *Index) find(r Request) (c *Conversation, changed int, related *Conversation) {
	for i := len(r.Chain) - 1; i > 0; i-- {
		for _, c := range x.byLast[r.Chain[i]] {
			if c.sameAgent(r) {
				return c, -1, nil
			}
		}
	}
	best, all := 1, x.byFirst[r.first()]
	for _, other := range all[max(len(all)-candidates, 0):] {
		if n := commonPrefix(other.state.Prints, r.Prints); n > best && other.sameAgent(r) {
			related, best = other, n
		}
	}
	if related == nil {
		return nil, -1, nil
	}
	if continues(related.state.Prints[best:], r.Prints[best:]) {
		return related, best, nil
	}
	return nil, best, related
}

func (c *Conversation) sameAgent(r Request) bool {
	return c.state.System == r.System || c.state.Tools == r.Tools
}

func commonPrefix(a, b []uint64) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// continues tells an edit from a fork or a rewind: both lists begin with a message
// that differs, and most of what stood behind the old one stands behind the new
// one as well.
func continues(old, now []uint64) bool {
	if len(old) < 2 || len(now) < len(old) {
		return false
	}
	same := 0
	for i := 1; i < len(old); i++ {
		if old[i] == now[i] {
			same++
		}
	}
	return 2*same >= len(old)-1
}

// own is the checkpoint that a conversation last used, if it is there and covers
// the list that has this chain.
func (x *Index) own(c *Conversation, chain []transcript.Hash) (Ref, bool) {
	ref, ok := x.refs[c.state.Checkpoint]
	if !ok || ref.N >= len(chain) || chain[ref.N] != ref.Chain {
		return Ref{}, false
	}
	return ref, true
}

func (x *Index) longest(r Request) (Ref, bool) {
	for i := len(r.Chain) - 1; i > 0; i-- {
		if ids := x.byChain[r.Chain[i]]; len(ids) > 0 {
			return x.refs[ids[len(ids)-1]], true
		}
	}
	return Ref{}, false
}

// load returns a checkpoint with its entries. An error means that it is not to
// be had.
func (x *Index) load(ref Ref) (*Checkpoint, error) {
	x.mu.Lock()
	cp, ok := x.entries.Get(ref.ID)
	x.mu.Unlock()
	if ok {
		return cp, nil
	}
	if x.store == nil {
		return nil, ErrGone
	}
	b, err := x.store.Entries(ref.ID)
	if err != nil {
		if !errors.Is(err, ErrGone) {
			x.failed(err)
		}
		return nil, err
	}
	if cp, err = restored(ref, b); err != nil {
		return nil, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.remember(cp)
	return cp, nil
}

// remember keeps a checkpoint's entries in memory, within the bound.
func (x *Index) remember(cp *Checkpoint) {
	if old, ok := x.entries.Peek(cp.ID); ok {
		x.bytes -= old.bytes
	}
	x.entries.Add(cp.ID, cp)
	x.bytes += cp.bytes
	for x.bytes > x.maxBytes && x.entries.Len() > 1 {
		x.entries.RemoveOldest()
	}
}

// Latest returns the conversation's checkpoint if it covers the list that has
// this chain, nil otherwise. It changes while a request is under way when
// another request of the conversation compacts it.
func (x *Index) Latest(c *Conversation, chain []transcript.Hash) *Checkpoint {
	x.mu.Lock()
	ref, ok := x.own(c, chain)
	x.mu.Unlock()
	if !ok {
		return nil
	}
	cp, err := x.load(ref)
	if err != nil {
		return nil
	}
	return cp
}

// File stores a checkpoint with the originals that it replaces and that its
// parent did not, and makes it the conversation's own. It returns when a kill of
// the process cannot undo that; where the store fails, the checkpoint is kept in
// memory, and stored once the store is well again.
func (x *Index) File(c *Conversation, cp *Checkpoint, originals []Original, s Summary) {
	x.mu.Lock()
	parent := c.state.Checkpoint
	x.mu.Unlock()
	cp.Conversation = c.ID
	c.rewritten()
	filed := Filed{Ref: cp.Ref, Parent: max(parent, 0), Entries: encodeEntries(cp.Entries), Originals: originals, Summary: s}
	id := x.commit(c, &filed, nil)

	x.mu.Lock()
	defer x.mu.Unlock()
	cp.ID = id
	if old, ok := x.refs[parent]; ok && old.Conversation == c.ID && old.Chain == cp.Chain && !x.replayed(parent) {
		x.entries.Remove(parent) // compacted again without a new message
		x.drop(parent)
	}
	x.addRef(cp.Ref)
	x.remember(cp)
	x.unpin(c, cp.N)
	if !c.forgotten.Load() {
		x.dirty[c] = true
	}
}

// replayed tells whether a live conversation replays that checkpoint.
func (x *Index) replayed(id int64) bool {
	return slices.ContainsFunc(x.live.Values(), func(c *Conversation) bool { return c.state.Checkpoint == id })
}

// Stats are sizes for the metrics.
type Stats struct {
	Conversations, Checkpoints int
	Bytes                      int // of checkpoints and pins in memory
	Stored                     int // of the store on disk, as of the last flush; Bytes without a store
}

// Stats returns the present sizes.
func (x *Index) Stats() Stats {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := Stats{Conversations: x.live.Len(), Checkpoints: len(x.refs), Bytes: x.bytes + x.pinBytes, Stored: int(x.stored)}
	if x.store == nil {
		s.Stored = s.Bytes
	}
	return s
}

// name makes an id. Workers of a swarm open with the same bytes, so the time and
// a serial number are part of it.
func (x *Index) name(r Request, now time.Time) string {
	x.opened++
	end := r.end()
	b := append(end[:], r.System[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(now.UnixNano()))
	b = binary.LittleEndian.AppendUint64(b, x.opened)
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:6])
}
