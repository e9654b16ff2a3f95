package tinymodel

import (
	"bufio"
	"encoding/binary"
	"io"
	"math"
)

// The parts of GGUF version 3 that a model of 32-bit floats needs: a header,
// typed key-value pairs, a directory of tensors, and the tensors themselves,
// each at a multiple of the alignment. All numbers are little-endian.
const (
	ggufMagic     = "GGUF"
	ggufVersion   = 3
	ggufAlignment = 32

	typeUint32  = 4
	typeInt32   = 5
	typeFloat32 = 6
	typeBool    = 7
	typeString  = 8
	typeArray   = 9

	tensorFloat32 = 0
)

var le = binary.LittleEndian

// metadata collects key-value pairs in their encoded form.
type metadata struct {
	count uint64
	buf   []byte
}

func (m *metadata) key(key string, kind uint32) {
	m.count++
	m.buf = appendString(m.buf, key)
	m.buf = le.AppendUint32(m.buf, kind)
}

func (m *metadata) array(key string, kind uint32, n int) {
	m.key(key, typeArray)
	m.buf = le.AppendUint32(m.buf, kind)
	m.buf = le.AppendUint64(m.buf, uint64(n))
}

func (m *metadata) text(key, value string) {
	m.key(key, typeString)
	m.buf = appendString(m.buf, value)
}

func (m *metadata) number(key string, value uint32) {
	m.key(key, typeUint32)
	m.buf = le.AppendUint32(m.buf, value)
}

func (m *metadata) real(key string, value float32) {
	m.key(key, typeFloat32)
	m.buf = le.AppendUint32(m.buf, math.Float32bits(value))
}

func (m *metadata) flag(key string, value bool) {
	m.key(key, typeBool)
	var b byte
	if value {
		b = 1
	}
	m.buf = append(m.buf, b)
}

func (m *metadata) texts(key string, values []string) {
	m.array(key, typeString, len(values))
	for _, v := range values {
		m.buf = appendString(m.buf, v)
	}
}

func (m *metadata) numbers(key string, values []int32) {
	m.array(key, typeInt32, len(values))
	for _, v := range values {
		m.buf = le.AppendUint32(m.buf, uint32(v))
	}
}

func appendString(buf []byte, s string) []byte {
	buf = le.AppendUint64(buf, uint64(len(s)))
	return append(buf, s...)
}

// tensor is a named block of numbers. shape lists the dimensions as GGML counts
// them: the first is the one whose elements lie next to each other, for a
// matrix the length of its input.
type tensor struct {
	name  string
	shape []int
	data  []float32
}

func (t tensor) size() int { return 4 * len(t.data) }

// encode writes a complete file.
func encode(w io.Writer, meta *metadata, tensors []tensor) error {
	head := append([]byte(nil), ggufMagic...)
	head = le.AppendUint32(head, ggufVersion)
	head = le.AppendUint64(head, uint64(len(tensors)))
	head = le.AppendUint64(head, meta.count)
	head = append(head, meta.buf...)
	offset := 0
	for _, t := range tensors {
		head = appendString(head, t.name)
		head = le.AppendUint32(head, uint32(len(t.shape)))
		for _, n := range t.shape {
			head = le.AppendUint64(head, uint64(n))
		}
		head = le.AppendUint32(head, tensorFloat32)
		head = le.AppendUint64(head, uint64(offset))
		offset += aligned(t.size())
	}

	out := bufio.NewWriterSize(w, 1<<16) // remembers the first error for Flush
	out.Write(head)
	pad(out, len(head))
	var b [4]byte
	for _, t := range tensors {
		for _, f := range t.data {
			le.PutUint32(b[:], math.Float32bits(f))
			out.Write(b[:])
		}
		pad(out, t.size())
	}
	return out.Flush()
}

func aligned(n int) int { return (n + ggufAlignment - 1) / ggufAlignment * ggufAlignment }

func pad(w *bufio.Writer, written int) {
	var zeros [ggufAlignment]byte
	w.Write(zeros[:aligned(written)-written])
}
