package config

import (
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
)

// EnvPrefix begins the name of every environment variable that sets a key.
const EnvPrefix = "COMPACTPROXY_"

// EnvFile is the environment variable with the path of the file, used where --config is not given.
const EnvFile = EnvPrefix + "CONFIG"

// Key describes one key that holds a value, for help texts and documentation.
type Key struct {
	// Name is the key from the root, dotted; a key of a list's entries reads models[].name.
	Name string
	// Kind says in words what a value looks like.
	Kind string
	// Default is the default as it would stand in the file, "" for keys of a list's entries.
	Default string
	// Env is the environment variable that sets it, "" where only the file can.
	Env string
	// Doc is one sentence.
	Doc string
	// Inert keys belong to features that are not here yet: they are checked, and
	// have no effect.
	Inert bool
}

// inert is shown in help, in the shipped file and by [WithoutEffect]; a key
// leaves it with the feature that reads it.
var inert = map[string]bool{
	"compaction.loop_guard": true, "compaction.compact_tool": true,
}

// WithoutEffect lists the keys that were set to something else than their
// default and that nothing reads yet.
func WithoutEffect(cfg Config) []string {
	defaults := map[string]string{}
	each(schema(), reflect.ValueOf(Default()), func(f *field, v reflect.Value) { defaults[f.key] = scalar(v) })
	var names []string
	each(schema(), reflect.ValueOf(cfg), func(f *field, v reflect.Value) {
		if inert[f.key] && scalar(v) != defaults[f.key] {
			names = append(names, f.key)
		}
	})
	return names
}

// Keys returns every key that holds a value, in the order of the file; a list of entries is followed by the
// keys of its entries.
func Keys() []Key { return slices.Clone(keys()) }

var keys = sync.OnceValue(func() []Key {
	var all []Key
	each(schema(), reflect.ValueOf(Default()), func(f *field, v reflect.Value) {
		key := Key{Name: f.key, Kind: f.kind(), Default: scalar(v), Env: EnvName(f.key), Doc: f.doc, Inert: inert[f.key]}
		if f.entries {
			key.Env = ""
		}
		all = append(all, key)
		for _, e := range f.fields {
			all = append(all, Key{Name: e.key, Kind: e.kind(), Doc: e.doc, Inert: inert[e.key]})
		}
	})
	return all
})

// Lookup returns the key of that name.
func Lookup(name string) (Key, bool) {
	for _, key := range keys() {
		if key.Name == name {
			return key, true
		}
	}
	return Key{}, false
}

// Sections returns the description of every section by its dotted name.
func Sections() map[string]string {
	docs := map[string]string{}
	var walk func([]*field)
	walk = func(fields []*field) {
		for _, f := range fields {
			if f.isSection() {
				docs[f.key] = f.doc
				walk(f.fields)
			}
		}
	}
	walk(schema())
	return docs
}

// EnvName returns the environment variable of a dotted key: COMPACTPROXY_UPSTREAM_URL for upstream.url.
func EnvName(key string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

// field is one key of the schema: a section, a list of entries, or a value.
type field struct {
	name    string // in its section
	key     string // from the root; models[].name in the entries of a list
	doc     string
	typ     reflect.Type
	index   int      // of the struct field in its section
	fields  []*field // of a section, or of each entry of a list
	entries bool
}

var schema = sync.OnceValue(func() []*field { return fieldsOf(reflect.TypeFor[Config](), "") })

func fieldsOf(section reflect.Type, prefix string) []*field {
	fields := make([]*field, 0, section.NumField())
	for i := range section.NumField() {
		sf := section.Field(i)
		f := &field{name: sf.Tag.Get("mapstructure"), doc: sf.Tag.Get("doc"), typ: sf.Type, index: i}
		f.key = prefix + f.name
		switch {
		case isSection(f.typ):
			f.fields = fieldsOf(f.typ, f.key+".")
		case f.typ.Kind() == reflect.Slice && isSection(f.typ.Elem()):
			f.entries = true
			f.fields = fieldsOf(f.typ.Elem(), f.key+"[].")
		}
		fields = append(fields, f)
	}
	return fields
}

func isSection(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && t != reflect.TypeFor[Ratio]()
}

func (f *field) isSection() bool { return f.fields != nil && !f.entries }

// each calls visit for every field below v that holds a value, sections opened, lists not.
func each(fields []*field, v reflect.Value, visit func(*field, reflect.Value)) {
	for _, f := range fields {
		if f.isSection() {
			each(f.fields, v.Field(f.index), visit)
		} else {
			visit(f, v.Field(f.index))
		}
	}
}

// kind is [Key.Kind] of the field.
func (f *field) kind() string {
	switch {
	case f.entries:
		return "list of entries"
	case f.typ.Kind() == reflect.Slice:
		return "list"
	}
	switch f.typ {
	case reflect.TypeFor[time.Duration]():
		return "duration"
	case reflect.TypeFor[ByteSize]():
		return "size"
	case reflect.TypeFor[Ratio]():
		return "auto | number"
	case reflect.TypeFor[Secret]():
		return "secret"
	}
	if options := optionsOf(f.typ); options != nil {
		return strings.Join(options, " | ")
	}
	switch f.typ.Kind() {
	case reflect.Bool:
		return "true | false"
	case reflect.Int:
		return "whole number"
	case reflect.Float64:
		return "number"
	}
	return "text"
}

// optionsOf returns the values of an enumeration, nil for any other type.
func optionsOf(t reflect.Type) []string {
	if e, ok := reflect.Zero(t).Interface().(enum); ok {
		return e.options()
	}
	return nil
}

func isSecret(t reflect.Type) bool {
	return t == reflect.TypeFor[Secret]() || t == reflect.TypeFor[[]Secret]()
}
