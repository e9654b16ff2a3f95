package conversation

import (
	"context"
	"slices"
	"time"
)

// pending is a commit that the store refused.
type pending struct {
	c      *Conversation
	commit Commit
	id     int64 // under which the checkpoint is known meanwhile
}

// maxPending bounds commits that wait for the store to get well.
const maxPending = 256

// commit stores at once, or keeps for later what the store refuses. The id is
// the checkpoint's, negative while the store does not have it, 0 without one.
func (x *Index) commit(c *Conversation, filed *Filed, pins []Pin) (id int64) {
	x.storing.Lock()
	defer x.storing.Unlock()
	defer func() {
		if filed != nil { // before anyone else stores the conversation's state
			x.mu.Lock()
			c.replays(id)
			x.mu.Unlock()
		}
	}()
	commit := Commit{State: c.snapshot(), Checkpoint: filed, Pins: pins}
	if x.store != nil && !c.forgotten.Load() {
		id, err := x.store.Commit(commit)
		if err == nil {
			x.well()
			return id
		}
		x.failed(err)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if filed != nil {
		x.unsaved--
		id = x.unsaved
	}
	if x.store != nil && !c.forgotten.Load() && len(x.pending) < maxPending {
		x.pending = append(x.pending, pending{c, commit, id})
	}
	return id
}

func (x *Index) failed(err error) {
	x.mu.Lock()
	first := x.health == nil
	x.health = err
	x.mu.Unlock()
	if first && x.onHealth != nil {
		x.onHealth(err)
	}
}

func (x *Index) well() {
	x.mu.Lock()
	again := x.health != nil
	x.health = nil
	x.mu.Unlock()
	if again && x.onHealth != nil {
		x.onHealth(nil)
	}
}

// Health is why the store does not take what it should, nil if it does or if
// there is none.
func (x *Index) Health() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.health
}

// Record notes an answered request, and the checkpoint that was replayed for it.
func (x *Index) Record(c *Conversation, t Turn, cp *Checkpoint, compacted bool, rereads int) {
	c.count(t, cp, compacted, rereads)
	x.mu.Lock()
	defer x.mu.Unlock()
	if live, ok := x.live.Peek(c.ID); !ok || live != c {
		return
	}
	x.dirty[c] = true
	if t.Conversation = c.ID; x.store != nil && len(x.turns) < maxTurns {
		x.turns = append(x.turns, t)
	}
}

// maxTurns bounds turns that wait for the store.
const maxTurns = 10_000

// How often Run stores what may lag, and looks whether the store is too large.
const (
	flushEvery = time.Second
	pruneEvery = time.Minute
)

// Run keeps the store up to date until ctx ends, and once more then.
func (x *Index) Run(ctx context.Context) {
	if x.store == nil {
		return
	}
	flush, prune := time.NewTicker(flushEvery), time.NewTicker(pruneEvery)
	defer flush.Stop()
	defer prune.Stop()
	for {
		select {
		case <-flush.C:
			x.Flush()
			x.measure()
		case <-prune.C:
			x.Prune()
		case <-ctx.Done():
			x.Flush()
			return
		}
	}
}

func (x *Index) measure() {
	size := x.store.Size()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.stored = size
}

// Flush stores what waits.
func (x *Index) Flush() {
	if x.store == nil || !x.retry() {
		return
	}
	x.storing.Lock()
	defer x.storing.Unlock()
	x.mu.Lock()
	notes := Notes{Turns: x.turns}
	dirty := x.dirty
	x.turns, x.dirty = nil, map[*Conversation]bool{}
	for c := range dirty {
		s := c.snapshot()
		s.Checkpoint = max(s.Checkpoint, 0)
		notes.States = append(notes.States, s)
	}
	x.mu.Unlock()
	if len(notes.States)+len(notes.Turns) == 0 {
		return
	}
	if err := x.store.Note(notes); err != nil {
		x.failed(err)
		x.mu.Lock()
		defer x.mu.Unlock()
		for c := range dirty {
			x.dirty[c] = true
		}
		return
	}
	x.well()
}

// retry offers the store what it refused, in order, and reports whether it has
// taken everything.
func (x *Index) retry() bool {
	for {
		x.mu.Lock()
		if len(x.pending) == 0 {
			x.mu.Unlock()
			return true
		}
		p := x.pending[0]
		x.mu.Unlock()
		x.storing.Lock()
		id, err := x.store.Commit(p.commit)
		x.storing.Unlock()
		if err != nil {
			x.failed(err)
			return false
		}
		x.well()
		x.mu.Lock()
		x.pending = x.pending[1:]
		x.saved(p.id, id)
		x.mu.Unlock()
	}
}

// saved gives a checkpoint that the store has taken at last its id.
func (x *Index) saved(old, id int64) {
	ref, ok := x.refs[old]
	if !ok {
		return // not in memory any more
	}
	cp, inMemory := x.entries.Peek(old)
	delete(x.refs, old)
	for i, other := range x.byChain[ref.Chain] {
		if other == old {
			x.byChain[ref.Chain][i] = id
		}
	}
	ref.ID = id
	x.refs[id] = ref
	for _, c := range x.live.Values() {
		if c.state.Checkpoint == old {
			c.replays(id)
			x.dirty[c] = true
		}
	}
	if inMemory {
		moved := *cp
		moved.ID = id
		x.entries.Remove(old)
		x.remember(&moved)
	}
}

// Prune brings the store within its bounds.
func (x *Index) Prune() {
	if x.store == nil {
		return
	}
	x.Flush() // the store decides by what is replayed
	x.mu.Lock()
	var live []string
	for _, c := range x.live.Values() {
		if x.retention <= 0 || x.now().Sub(c.state.Used) < x.retention {
			live = append(live, c.ID)
		}
	}
	x.mu.Unlock()
	removed, err := x.store.Prune(live)
	x.mu.Lock()
	for _, id := range removed {
		x.live.Remove(id)
	}
	x.disown(removed...)
	x.mu.Unlock()
	if err != nil {
		x.failed(err)
	}
}

// Forget removes a conversation from memory and store.
func (x *Index) Forget(id string) error {
	x.Flush() // the store decides by what the others replay
	x.mu.Lock()
	if c, ok := x.live.Peek(id); ok {
		c.forgotten.Store(true) // a request of it may be under way
		delete(x.dirty, c)
		x.live.Remove(id)
	}
	x.disown(id)
	x.pending = slices.DeleteFunc(x.pending, func(p pending) bool { return p.c.ID == id })
	x.mu.Unlock()
	if x.store == nil {
		return nil
	}
	return x.store.Forget(id)
}

// disown drops the checkpoints of conversations that are gone, those aside that a
// live one replays.
func (x *Index) disown(ids ...string) {
	gone := make(map[string]bool, len(ids))
	for _, id := range ids {
		gone[id] = true
	}
	needed := map[int64]string{}
	for _, c := range x.live.Values() {
		needed[c.state.Checkpoint] = c.ID
	}
	for _, ref := range x.refs {
		if !gone[ref.Conversation] {
			continue
		}
		if heir, ok := needed[ref.ID]; ok {
			ref.Conversation = heir // and the store does likewise
			x.refs[ref.ID] = ref
		} else {
			x.entries.Remove(ref.ID)
			x.drop(ref.ID)
		}
	}
}
