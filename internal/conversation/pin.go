package conversation

import "github.com/compactproxy/compactproxy/internal/transcript"

// maxPinBytes bounds the pins in memory; those of conversations that were not
// used for long are read from the store again when needed.
const maxPinBytes = 64 << 20

// Pins returns what is pinned of a conversation, by chain value. The map must not
// be changed.
func (x *Index) Pins(c *Conversation) map[transcript.Hash]Pin {
	x.mu.Lock()
	from := c.unread
	x.mu.Unlock()
	if from != "" {
		var pins []Pin
		if x.store != nil {
			var err error
			if pins, err = x.store.Pins(from); err != nil {
				x.failed(err)
				return nil // they may be read later
			}
		}
		x.mu.Lock()
		c.unread = ""
		x.pin(c, pins)
		c.inherited = c.inherited || from != c.ID && len(pins) > 0
		x.mu.Unlock()
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return c.pins
}

// Pin keeps the bytes with which messages are forwarded, and returns when a kill
// of the process cannot undo that.
func (x *Index) Pin(c *Conversation, pins []Pin) {
	x.mu.Lock()
	stored := pins
	if c.inherited { // and so far the other conversation's
		c.inherited = false
		for _, p := range c.pins {
			stored = append(stored[:len(stored):len(stored)], p)
		}
	}
	x.mu.Unlock()
	x.commit(c, nil, stored)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.pin(c, pins)
	if x.pinBytes <= maxPinBytes {
		return
	}
	for _, id := range x.live.Keys() { // oldest first
		if x.pinBytes <= maxPinBytes {
			break
		}
		if old, _ := x.live.Peek(id); old != c && old.pins != nil {
			x.pinBytes -= old.pinBytes
			old.pins, old.pinBytes, old.unread = nil, 0, old.ID
		}
	}
}

// pin adds to a copy, since a request may be reading the map.
func (x *Index) pin(c *Conversation, pins []Pin) {
	if len(pins) == 0 {
		return
	}
	all := make(map[transcript.Hash]Pin, len(c.pins)+len(pins))
	for chain, p := range c.pins {
		all[chain] = p
	}
	for _, p := range pins {
		if _, ok := all[p.Chain]; !ok { // the bytes that went out first count
			all[p.Chain] = p
		}
	}
	x.setPins(c, all)
}

// unpin drops what a checkpoint of n messages covers.
func (x *Index) unpin(c *Conversation, n int) {
	all := map[transcript.Hash]Pin{}
	for chain, p := range c.pins {
		if p.N > n {
			all[chain] = p
		}
	}
	x.setPins(c, all)
}

func (x *Index) setPins(c *Conversation, all map[transcript.Hash]Pin) {
	before := c.pinBytes
	c.pins, c.pinBytes = all, 0
	for _, p := range all {
		c.pinBytes += len(p.Raw)
	}
	if live, ok := x.live.Peek(c.ID); ok && live == c {
		x.pinBytes += c.pinBytes - before
	}
}

// inherit gives a conversation that goes on from another one the pins of what
// they share.
func (x *Index) inherit(c, from *Conversation, r Request) {
	if from.unread != "" {
		return // all of them are read when they are needed
	}
	c.unread = ""
	shared := map[transcript.Hash]Pin{}
	for _, chain := range r.Chain {
		if p, ok := from.pins[chain]; ok {
			shared[chain] = p
		}
	}
	x.setPins(c, shared)
	c.inherited = len(shared) > 0
}
