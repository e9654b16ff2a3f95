package transcript

import (
	"hash/maphash"
	"sync"
)

// Memo remembers what was read in messages, by their raw bytes: an agent sends
// its whole history again on each turn, and hashing those bytes with maphash
// costs a fraction of reading them anew, of decoding and of SHA-256. It keeps
// none of the text. It is safe for concurrent use; see [NewMemo].
type Memo struct {
	seed  maphash.Seed
	limit int

	mu       sync.Mutex
	old, new map[memoKey]*known // two generations: the old one is dropped whole
	size     int                // of new, in bytes
}

// memoKey is a seeded hash and the length. The seed never leaves the process,
// so nobody can search for a collision.
type memoKey struct {
	sum uint64
	n   int
}

// known is what was read in one message. It must not be changed.
type known struct {
	shape       Message // without its bytes
	fingerprint Hash
	volatile    bool
}

// NewMemo remembers at least limit and at most twice as many bytes of its own.
func NewMemo(limit int) *Memo {
	return &Memo{seed: maphash.MakeSeed(), limit: limit, old: map[memoKey]*known{}, new: map[memoKey]*known{}}
}

// message reads one message, or remembers what it read in the same bytes. raw is
// a valid JSON object.
func (f *Memo) message(raw []byte) (Message, error) {
	if f == nil {
		return ParseMessage(raw)
	}
	key := memoKey{maphash.Bytes(f.seed, raw), len(raw)}
	f.mu.Lock()
	k := f.new[key]
	if k == nil {
		if k = f.old[key]; k != nil {
			f.put(key, k)
		}
	}
	f.mu.Unlock()
	if k == nil {
		m, err := ParseMessage(raw)
		if err != nil {
			return Message{}, err
		}
		k = &known{shape: m, fingerprint: Fingerprint(&m), volatile: m.isVolatile()}
		k.shape.raw = nil
		if k.shape.Footprint() > f.limit/64 {
			return m, nil // one giant would push out everything else
		}
		f.mu.Lock()
		f.put(key, k)
		f.mu.Unlock()
	}
	m := k.shape
	m.raw, m.known = raw, k
	return m, nil
}

func (f *Memo) put(key memoKey, k *known) {
	const entry = 100 // key, map, fingerprint
	cost := entry + k.shape.Footprint()
	if f.size+cost > f.limit && len(f.new) > 0 {
		f.old, f.new, f.size = f.new, map[memoKey]*known{}, 0
	}
	f.size += cost
	f.new[key] = k
}
