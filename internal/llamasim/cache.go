package llamasim

import (
	"slices"
	"sync"
)

// promptCache remembers the last prompts, in slots or in RAM: the difference
// does not show. A prompt finds the remembered one it shares the longest
// beginning with and takes it over where it keeps at least half of it;
// otherwise the old one is put away and stays.
type promptCache struct {
	mu      sync.Mutex
	limit   int
	entries []*cached // least recently used first
}

// cached is a remembered prompt. One that a running request works on cannot
// serve another.
type cached struct {
	tokens []uint64
	busy   bool
}

// lookup is how many of the tokens are remembered. The last token of a prompt
// is always processed, so it is never all of them.
func (c *promptCache) lookup(tokens []uint64) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, n := c.best(tokens)
	return n
}

func (c *promptCache) best(tokens []uint64) (*cached, int) {
	var best *cached
	longest := 0
	for _, e := range c.entries {
		if e.busy {
			continue
		}
		if n := commonPrefix(e.tokens, tokens); n >= longest && n > 0 {
			best, longest = e, n
		}
	}
	return best, max(0, min(longest, len(tokens)-1))
}

// admit starts work on a prompt and returns its entry and how much of it is
// remembered. Unless reuse is set that is nothing. The entry holds no more
// than that until grow is called, and is the caller's until release.
func (c *promptCache) admit(tokens []uint64, reuse bool) (*cached, int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	entry, n := c.best(tokens)
	if entry == nil || n < len(entry.tokens)/2 {
		entry = &cached{}
	} else {
		c.entries = slices.DeleteFunc(c.entries, func(e *cached) bool { return e == entry })
	}
	if !reuse {
		n = 0
	}
	entry.tokens, entry.busy = tokens[:n:n], true
	c.entries = append(c.entries, entry)
	for i := 0; i < len(c.entries) && len(c.entries) > c.limit; {
		if c.entries[i].busy {
			i++
			continue
		}
		c.entries = slices.Delete(c.entries, i, i+1)
	}
	return entry, n
}

// grow sets what an admitted entry holds. The cache keeps the slice.
func (c *promptCache) grow(e *cached, tokens []uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.tokens = tokens
}

func (c *promptCache) release(e *cached) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.busy = false
}

func (c *promptCache) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries = nil
}
