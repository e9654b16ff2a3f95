package conversation

import (
	"bytes"
	"fmt"

	"github.com/compactproxy/compactproxy/internal/compaction"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

// Checkpoint replaces the first N original messages. It must not be changed
// after it was filed.
type Checkpoint struct {
	Ref
	Entries []compaction.Entry

	bytes int
}

// NewCheckpoint copies the entries, so that a checkpoint does not keep the
// whole request body alive whose bytes they share.
func NewCheckpoint(n int, chain transcript.Hash, entries []compaction.Entry) *Checkpoint {
	c := &Checkpoint{Ref: Ref{N: n, Chain: chain}, Entries: make([]compaction.Entry, len(entries))}
	for i, e := range entries {
		e.Message = clone(&e.Message)
		if e.Task != nil {
			task := clone(e.Task)
			e.Task = &task
		}
		c.Entries[i] = e
	}
	c.measure()
	return c
}

func (c *Checkpoint) measure() {
	for i := range c.Entries {
		c.bytes += c.Entries[i].Footprint()
		if t := c.Entries[i].Task; t != nil {
			c.bytes += t.Footprint()
		}
	}
}

// restored is a checkpoint from the store's bytes.
func restored(ref Ref, b []byte) (*Checkpoint, error) {
	entries, err := DecodeEntries(b)
	if err != nil {
		return nil, err
	}
	if len(entries) == 0 || entries[len(entries)-1].End != ref.N {
		return nil, fmt.Errorf("%w: they do not end at message %d", errCodec, ref.N)
	}
	c := &Checkpoint{Ref: ref, Entries: entries}
	c.measure()
	return c, nil
}

func clone(m *transcript.Message) transcript.Message {
	out, err := transcript.ParseMessage(bytes.Clone(m.Raw()))
	if err != nil {
		panic("BUG: a message that was parsed before is not JSON: " + err.Error())
	}
	return out
}
