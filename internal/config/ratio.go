package config

import (
	"errors"
	"math"
	"regexp"
	"strconv"
)

// Ratio is a setting that is either auto, the zero value, or a number the user chose.
type Ratio struct {
	// Explicit says that Value was chosen; without it the setting is auto and Value is 0.
	Explicit bool
	// Value is the number where Explicit, without a unit.
	Value float64
}

// Exactly returns the ratio that is the number x rather than auto.
func Exactly(x float64) Ratio { return Ratio{Explicit: true, Value: x} }

// String writes auto or the number, as ParseRatio reads it.
func (r Ratio) String() string {
	if !r.Explicit {
		return "auto"
	}
	return formatNumber(r.Value)
}

// ParseRatio reads auto or a decimal number.
func ParseRatio(text string) (Ratio, error) {
	if text == "auto" {
		return Ratio{}, nil
	}
	x, err := parseNumber(text)
	if err != nil {
		return Ratio{}, errors.New("must be auto or a number")
	}
	return Exactly(x), nil
}

// numberSyntax is narrower than strconv's: no hexadecimal, no infinity, no NaN, no underscores.
var numberSyntax = regexp.MustCompile(`^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?$`)

func parseNumber(text string) (float64, error) {
	if !numberSyntax.MatchString(text) {
		return 0, strconv.ErrSyntax
	}
	x, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsInf(x, 0) {
		return 0, strconv.ErrRange
	}
	return x, nil
}

func formatNumber(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }
