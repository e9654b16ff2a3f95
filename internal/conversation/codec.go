package conversation

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/compactproxy/compactproxy/internal/agents"
	"github.com/compactproxy/compactproxy/internal/compaction"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

// codecVersion begins every encoded list of entries. Version 1 had no summary.
const codecVersion = 2

var errCodec = errors.New("decode checkpoint: not a list of entries")

// encodeEntries writes entries for the store: a version, their number, and for
// each its end, edit, outcome, raw message and, on a rebuilt one, the raw task and the
// summary.
// Raw bytes are not always UTF-8, so this is no JSON.
func encodeEntries(entries []compaction.Entry) []byte {
	size := 16
	for i := range entries {
		size += 32 + len(entries[i].Raw())
		if t := entries[i].Task; t != nil {
			size += len(t.Raw()) + len(entries[i].Summary)
		}
	}
	out := append(make([]byte, 0, size), codecVersion)
	out = binary.AppendUvarint(out, uint64(len(entries)))
	for i := range entries {
		e := &entries[i]
		out = binary.AppendVarint(out, int64(e.End))
		out = append(out, byte(e.Edit), byte(e.Outcome))
		out = appendBytes(out, e.Raw())
		if e.Task == nil {
			out = append(out, 0)
			continue
		}
		out = appendBytes(append(out, 1), e.Task.Raw())
		out = appendBytes(out, []byte(e.Summary))
	}
	return out
}

func appendBytes(out, b []byte) []byte {
	return append(binary.AppendUvarint(out, uint64(len(b))), b...)
}

// DecodeEntries reads what a store was given for a checkpoint. The entries share
// no memory with b.
func DecodeEntries(b []byte) ([]compaction.Entry, error) {
	r := reader{b: b}
	version := r.byte()
	if version < 1 || version > codecVersion {
		return nil, errCodec
	}
	n := r.uvarint()
	if r.bad || n > uint64(len(b)) { // each takes more than a byte
		return nil, errCodec
	}
	entries := make([]compaction.Entry, 0, n)
	for range n {
		e := compaction.Entry{End: int(r.varint()), Edit: compaction.Edit(r.byte()), Outcome: agents.Outcome(r.byte())}
		var err error
		if e.Message, err = transcript.ParseMessage(r.bytes()); err != nil || r.bad || e.Edit > compaction.Rebuilt || e.End < -1 {
			return nil, errCodec
		}
		if r.byte() == 1 {
			task, err := transcript.ParseMessage(r.bytes())
			if err != nil {
				return nil, fmt.Errorf("%w: task: %w", errCodec, err)
			}
			e.Task = &task
			if version > 1 {
				e.Summary = string(r.bytes())
			}
		}
		entries = append(entries, e)
	}
	if r.bad || len(r.b) > 0 {
		return nil, errCodec
	}
	return entries, nil
}

// reader takes values off the front of b; bad is set where they end too early.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.bad = true
		return 0
	}
	c := r.b[0]
	r.b = r.b[1:]
	return c
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	return v * uint64(r.skip(n))
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.b)
	return v * int64(r.skip(n))
}

// skip takes n bytes off, and returns 0 where the number is not one.
func (r *reader) skip(n int) int {
	if n <= 0 {
		r.bad = true
		return 0
	}
	r.b = r.b[n:]
	return 1
}

func (r *reader) bytes() []byte {
	n := r.uvarint()
	if n > uint64(len(r.b)) {
		r.bad = true
		return nil
	}
	out := bytes.Clone(r.b[:n])
	r.b = r.b[n:]
	return out
}
