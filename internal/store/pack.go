package store

import (
	"errors"
	"fmt"

	"github.com/klauspost/compress/zstd"
)

// maxUnpacked bounds what a stored value may unpack to, so that a few bytes of
// garbage cannot take all memory. A longer value is stored as it is.
const maxUnpacked = 512 << 20

// packer compresses values for the file. The coders belong to the store: shared
// by a whole process they would break its tests with synctest.
type packer struct {
	enc *zstd.Encoder
	dec *zstd.Decoder
}

func newPacker() packer {
	// The options are constants, which is all that these constructors refuse.
	enc, _ := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithLowerEncoderMem(true))
	dec, _ := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxUnpacked))
	return packer{enc, dec}
}

func (p packer) close() {
	p.dec.Close()
	_ = p.enc.Close() // it writes to nothing
}

// How a packed value begins.
const (
	plain  = 0
	zipped = 1
)

// minZipped is where compressing begins to pay: a frame has 13 bytes of its own.
const minZipped = 64

// pack returns a copy of b for the file, compressed where that is shorter.
func (p packer) pack(b []byte) []byte {
	if len(b) >= minZipped && len(b) <= maxUnpacked {
		if out := p.enc.EncodeAll(b, []byte{zipped}); len(out) <= len(b) {
			return out
		}
	}
	return append([]byte{plain}, b...)
}

var errPacked = errors.New("not a packed value")

// unpack undoes pack. The result shares no memory with b.
func (p packer) unpack(b []byte) ([]byte, error) {
	switch {
	case len(b) > 0 && b[0] == plain:
		return append([]byte{}, b[1:]...), nil
	case len(b) > 0 && b[0] == zipped:
		out, err := p.dec.DecodeAll(b[1:], []byte{})
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errPacked, err)
		}
		return out, nil
	}
	return nil, errPacked
}
