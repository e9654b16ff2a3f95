package transcript

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"regexp"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// Hash is a SHA-256 cut to 16 bytes. Tool results are third-party text, so the
// hash must not be forgeable: a hostile result must not take another's place.
type Hash [16]byte

func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// FingerprintVersion changes when the fingerprint of any message changes, so
// that chains of another version never match.
const FingerprintVersion = 2

// Fingerprint identifies what a message says. It covers role, text, calls
// (name and arguments; a call of another type as it stands), other content
// parts, function_call, and a role that is not known. It leaves out what clients
// change when they send a message again: ids, cache_control, reasoning, unknown
// members, empty against missing content, a string against one text part, the
// spacing and escapes of argument JSON, and in user messages [clocks].
func Fingerprint(m *Message) Hash {
	h := sha256.New()
	h.Write([]byte{byte(m.Role)})
	for _, p := range m.Parts {
		switch p.Kind {
		case TextPart:
			text := m.unquote(p.text)
			if m.Role == User {
				text = withoutClocks(text)
			}
			if len(text) > 0 {
				writeField(h, 't', text)
			}
		default:
			writeField(h, 'p', without("cache_control", m.raw[p.raw.start:p.raw.end]))
		}
	}
	for _, s := range m.other {
		writeField(h, 'o', compactJSON(m.raw[s.start:s.end]))
	}
	for _, c := range m.Calls {
		if !c.function() { // a custom call, say: all of it but its id
			writeField(h, 'x', without("id", m.raw[c.whole.start:c.whole.end]))
			continue
		}
		writeField(h, 'c', []byte(c.Name))
		writeField(h, 'a', compactJSON(c.Arguments))
	}
	return sum(h)
}

// writeField writes a tagged, length-prefixed field, so that two different
// sequences of fields never give the same bytes.
func writeField(h hash.Hash, tag byte, b []byte) {
	var head [9]byte
	head[0] = tag
	binary.LittleEndian.PutUint64(head[1:], uint64(len(b)))
	h.Write(head[:])
	h.Write(b)
}

func sum(h hash.Hash) (out Hash) {
	var buf [sha256.Size]byte
	copy(out[:], h.Sum(buf[:0]))
	return out
}

// clocks are the blocks that hold a date or a time of day and nothing else,
// so that leaving them out can never hide an instruction. qwen-code 0.24 moves
// its dated reminder to the newest user message on every turn; goose rewrote
// the time of its turn context in place (June to July 2026).
var clocks = []*regexp.Regexp{
	regexp.MustCompile(`<system-reminder>\nThe current date is: [A-Z][a-z]+, [A-Z][a-z]+ [0-9]{1,2}, [0-9]{4}\.(?: Note: This is the authoritative current date \x{2014} it may differ from the "Today's date" mentioned earlier in the conversation startup context\.)?\n</system-reminder>`),
	regexp.MustCompile(`<current-time>[0-9][0-9 :+-]{5,40}</current-time>`),
	regexp.MustCompile(`(?m)^It is currently [0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}$`),
}

// Volatile tells whether the message holds something that clients take away or
// change when they send it again, that a model reads all the same, and that the
// fingerprint leaves out: reasoning, or a clock in a user message.
func (m *Message) Volatile() bool {
	if m.known != nil {
		return m.known.volatile
	}
	return m.isVolatile()
}

func (m *Message) isVolatile() bool {
	for _, s := range m.reasoning {
		if s.end-s.start > len(`""`) {
			return true
		}
	}
	if m.Role != User {
		return false
	}
	for _, p := range m.Parts {
		if p.Kind != TextPart {
			continue
		}
		text := m.unquote(p.text)
		for _, re := range clocks {
			if re.Match(text) {
				return true
			}
		}
	}
	return false
}

// SameIDs tells whether two messages with one fingerprint also name the same
// calls.
func SameIDs(a, b *Message) bool {
	return a.Answers == b.Answers && slices.EqualFunc(a.Calls, b.Calls, func(x, y Call) bool { return x.ID == y.ID })
}

// Prints are short fingerprints of messages, to compare two lists message by
// message; equal chain values are the proof of equality.
func Prints(list []Message) []uint64 {
	out := make([]uint64, len(list))
	for i := range list {
		fp := list[i].fingerprint()
		out[i] = binary.LittleEndian.Uint64(fp[:])
	}
	return out
}

func withoutClocks(text []byte) []byte {
	for _, re := range clocks {
		text = re.ReplaceAll(text, nil)
	}
	return text
}

// compactJSON normalises spacing and string escapes and keeps the order of
// keys and the spelling of numbers: chat clients write arguments anew without
// spaces and with "\u00e9" as a letter, but keep the order. Text that is not
// JSON is returned as it is.
func compactJSON(b []byte) []byte {
	v := jsontext.Value(append([]byte(nil), b...))
	err := v.Format(
		jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true),
		jsontext.PreserveRawStrings(false), jsontext.CanonicalizeRawInts(false),
		jsontext.CanonicalizeRawFloats(false), jsontext.SpaceAfterColon(false), jsontext.SpaceAfterComma(false),
	)
	if err != nil {
		return b
	}
	return v
}

// without compacts a JSON object and drops one top-level member: claude-style
// clients move cache_control on each request.
func without(member string, object []byte) []byte {
	compact := compactJSON(object)
	if len(compact) == 0 || compact[0] != '{' {
		return compact
	}
	w := newWalker(compact)
	out := []byte{'{'}
	err := w.members(func(key string, _ jsontext.Kind) error {
		s, err := w.value()
		if err == nil && key != member {
			out = append(append(append(out, quote(key)...), ':'), w.bytes(s)...)
			out = append(out, ',')
		}
		return err
	})
	if err != nil {
		return compact
	}
	return out
}

// Chain returns chain(0) to chain(len(messages)): element i stands for the
// first i messages, and for seed, which stands for everything that keeps two
// conversations with the same messages apart.
func Chain(seed []byte, messages []Message) []Hash {
	chain := make([]Hash, len(messages)+1)
	h := sha256.New()
	h.Write([]byte{FingerprintVersion})
	writeField(h, 's', seed)
	chain[0] = sum(h)
	for i := range messages {
		fp := messages[i].fingerprint()
		h.Reset()
		h.Write(chain[i][:])
		h.Write(fp[:])
		chain[i+1] = sum(h)
	}
	return chain
}

func (m *Message) fingerprint() Hash {
	if m.known != nil {
		return m.known.fingerprint
	}
	return Fingerprint(m)
}
