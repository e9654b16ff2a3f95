package config

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"regexp"
	"strconv"
	"strings"
)

// ByteSize is a number of bytes, written with a unit: 256MiB, 2GiB, 1.5GB.
type ByteSize int64

// Units of [ByteSize]: IEC units are powers of 1024, SI units powers of 1000.
const (
	KiB ByteSize = 1 << (10 * (iota + 1))
	MiB
	GiB
	TiB
	PiB

	KB ByteSize = 1e3
	MB ByteSize = 1e6
	GB ByteSize = 1e9
	TB ByteSize = 1e12
	PB ByteSize = 1e15
)

// byteUnits is ordered for String: IEC before SI, the largest first.
var byteUnits = []struct {
	name string
	size ByteSize
}{
	{"PiB", PiB}, {"TiB", TiB}, {"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB},
	{"PB", PB}, {"TB", TB}, {"GB", GB}, {"MB", MB}, {"KB", KB},
	{"B", 1},
}

var (
	errSizeUnit   = errors.New("needs a unit")
	errSizeSyntax = errors.New("is not a size")
	errSizeWhole  = errors.New("is not a whole number of bytes")
	errSizeRange  = errors.New("is out of range")

	sizeSyntax = regexp.MustCompile(`^([0-9]{1,20}(?:\.[0-9]{1,20})?) ?([A-Za-z]*)$`)
)

// ParseByteSize reads a size such as 256MiB (IEC), 100MB (SI) or 512B. The case of the unit does not
// matter. Only 0 may stand without one: 256 alone could be meant as anything.
func ParseByteSize(text string) (ByteSize, error) {
	m := sizeSyntax.FindStringSubmatch(text)
	if m == nil {
		return 0, errSizeSyntax
	}
	number, ok := new(big.Rat).SetString(m[1])
	if !ok {
		return 0, errSizeSyntax
	}
	if m[2] == "" {
		if number.Sign() == 0 {
			return 0, nil
		}
		return 0, errSizeUnit
	}
	for _, u := range byteUnits {
		if !strings.EqualFold(u.name, m[2]) {
			continue
		}
		number.Mul(number, new(big.Rat).SetInt64(int64(u.size)))
		if !number.IsInt() {
			return 0, errSizeWhole
		}
		if !number.Num().IsInt64() {
			return 0, errSizeRange
		}
		return ByteSize(number.Num().Int64()), nil
	}
	return 0, errSizeSyntax
}

// String writes the size with the largest unit that divides it, IEC before SI, so that ParseByteSize
// reads back the same number of bytes.
func (s ByteSize) String() string {
	if s == 0 {
		return "0B"
	}
	if s == math.MinInt64 {
		return fmt.Sprintf("%dB", int64(s))
	}
	for _, u := range byteUnits {
		if s%u.size == 0 {
			return strconv.FormatInt(int64(s/u.size), 10) + u.name
		}
	}
	return ""
}

// MarshalText writes the size as String does.
func (s ByteSize) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the size as ParseByteSize does.
func (s *ByteSize) UnmarshalText(text []byte) error {
	size, err := ParseByteSize(string(text))
	if err != nil {
		return fmt.Errorf("%q %w", text, err)
	}
	*s = size
	return nil
}
