package config

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// parse reads one value of type t, a scalar, from its text. It checks the form only; what a value may be is
// for [Config.Validate]. The problem has no key yet.
func parse(t reflect.Type, text string) (reflect.Value, *Problem) {
	v := reflect.New(t).Elem()
	wrong := func(what, fix string) (reflect.Value, *Problem) {
		got := plain(text)
		if t.Kind() == reflect.String {
			got = quote(text)
		}
		if isSecret(t) {
			got = secretMask
		}
		return v, &Problem{Text: what, Got: got, Fix: fix}
	}
	switch t {
	case reflect.TypeFor[time.Duration]():
		d, err := time.ParseDuration(text)
		if err == nil {
			v.SetInt(int64(d))
			return v, nil
		}
		if numberSyntax.MatchString(text) {
			return wrong("needs a unit", fmt.Sprintf("write %ss or %sm", text, text))
		}
		return wrong("is not a duration", "write it like 500ms, 30s, 15m or 1h30m; the largest unit is h, as in 168h for a week")
	case reflect.TypeFor[ByteSize]():
		size, err := ParseByteSize(text)
		switch {
		case err == nil:
			v.SetInt(int64(size))
			return v, nil
		case errors.Is(err, errSizeUnit):
			return wrong(err.Error(), fmt.Sprintf("write %sMiB or %sB", text, text))
		case errors.Is(err, errSizeSyntax):
			return wrong(err.Error(), "write it like 256MiB, 2GiB or 500MB")
		}
		return wrong(err.Error(), "use a smaller number or a smaller unit")
	case reflect.TypeFor[Ratio]():
		r, err := ParseRatio(text)
		if err != nil {
			return wrong(err.Error(), "write auto, or a fraction such as 0.8")
		}
		v.Set(reflect.ValueOf(r))
		return v, nil
	}
	switch t.Kind() {
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return wrong("must be true or false", "")
		}
		v.SetBool(b)
	case reflect.Int:
		n, err := parseWhole(text)
		if errors.Is(err, strconv.ErrRange) {
			return wrong("is out of range", "")
		}
		if err != nil {
			return wrong("must be a whole number", "write it in digits, as in 32768")
		}
		v.SetInt(int64(n))
	case reflect.Float64:
		x, err := parseNumber(text)
		if err != nil {
			return wrong("must be a number", "write it like 0.15")
		}
		v.SetFloat(x)
	case reflect.String:
		if !utf8.ValidString(text) {
			return wrong("is not UTF-8", "")
		}
		v.SetString(text)
	default:
		panic("BUG: a configuration field of type " + t.String())
	}
	return v, nil
}

// wholeSyntax has no leading zero: YAML 1.1 and Go read 010 as eight.
var wholeSyntax = regexp.MustCompile(`^[+-]?(0|[1-9][0-9_]*)$`)

func parseWhole(text string) (int, error) {
	if !wholeSyntax.MatchString(text) {
		return 0, strconv.ErrSyntax
	}
	n, err := strconv.Atoi(strings.ReplaceAll(text, "_", ""))
	if err != nil {
		return 0, strconv.ErrRange
	}
	return n, nil
}

// parseText reads the value of a field as the environment and the command line give it: a list as its
// items between commas.
func parseText(f *field, text string) (reflect.Value, *Problem) {
	if f.entries {
		return reflect.Value{}, &Problem{Text: "cannot be set here", Fix: "set " + f.key + " in the file"}
	}
	if f.typ.Kind() != reflect.Slice {
		return parse(f.typ, text)
	}
	var items reflect.Value = reflect.Zero(f.typ)
	for item := range strings.SplitSeq(text, ",") {
		v, problem := parse(f.typ.Elem(), strings.TrimSpace(item))
		if problem != nil {
			return items, problem
		}
		items = reflect.Append(items, v)
	}
	return items, nil
}
