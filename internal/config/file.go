package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"
)

// fileReader turns a YAML file into values with their types, checked against the schema.
//
// It walks the syntax tree rather than decoding into a map, because only the tree knows the line of a key,
// a key that was given twice, the case of its letters and whether a number stood in quotes.
type fileReader struct {
	path     string
	values   map[string]any    // by dotted key; a list of entries is one value
	origins  map[string]origin // by key, also of the keys within entries
	problems Problems
}

func readYAML(path string, data []byte) *fileReader {
	r := &fileReader{path: path, values: map[string]any{}, origins: map[string]origin{}}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var document yaml.Node
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF):
		return r
	case err != nil:
		r.notYAML(err)
		return r
	}
	switch err := decoder.Decode(new(yaml.Node)); {
	case errors.Is(err, io.EOF):
	case err != nil:
		r.notYAML(err)
		return r
	default:
		r.add(path, nil, "holds more than one YAML document", "", "keep one, without a line ---")
		return r
	}
	root := document.Content[0]
	if isNull(root) {
		return r
	}
	if root.Kind != yaml.MappingNode {
		r.add(path, root, "must hold keys", form(root), "write key: value, one a line")
		return r
	}
	r.mapping(schema(), "", root, func(f *field, v reflect.Value) { r.values[f.key] = v.Interface() })
	return r
}

func (r *fileReader) notYAML(err error) {
	text := strings.Join(strings.Fields(strings.TrimPrefix(err.Error(), "yaml: ")), " ")
	if strings.HasPrefix(text, "unknown anchor") { // the text would quote the value, which may be a secret
		r.add(r.path, nil, "is not YAML: a value that begins with * refers to an anchor that does not exist", "", "put a value that begins with * in quotes")
		return
	}
	r.add(r.path, nil, "is not YAML: "+text, "", "check indentation (spaces, no tabs) and quotes around that line")
}

func (r *fileReader) at(n *yaml.Node) origin {
	return origin{text: fmt.Sprintf("at %s:%d", r.path, n.Line), line: n.Line}
}

func (r *fileReader) add(key string, n *yaml.Node, text, got, fix string) {
	p := &Problem{Key: key, Text: text, Got: got, Fix: fix}
	if n != nil {
		p.from(r.at(n))
	}
	r.problems = append(r.problems, p)
}

// mapping reads the keys of one section or of one entry of a list. Prefix is "" or ends in a dot; set takes each value
// outside of sections.
func (r *fileReader) mapping(fields []*field, prefix string, section *yaml.Node, set func(*field, reflect.Value)) {
	first := map[string]*yaml.Node{}
	for i := 0; i+1 < len(section.Content); i += 2 {
		name, n := section.Content[i], follow(section.Content[i+1])
		if name.Kind != yaml.ScalarNode {
			r.add(cmp.Or(strings.TrimSuffix(prefix, "."), r.path), name, "has a key that is not a word", "", "write key: value, one a line")
			continue
		}
		key := prefix + name.Value
		f := find(fields, name.Value)
		if f == nil {
			r.add(prefix+plain(name.Value), name, "unknown key", "", unknownFix(name.Value, prefix, fields))
			continue
		}
		if earlier, twice := first[f.name]; twice {
			r.add(key, name, fmt.Sprintf("given twice, first in line %d", earlier.Line), "", "delete one of them")
			continue
		}
		first[f.name] = name
		r.origins[key] = r.at(name)
		switch {
		case f.isSection():
			if isNull(n) {
				continue // every key below it is commented out
			}
			if n.Kind != yaml.MappingNode {
				r.add(key, name, "is a section, not a value", "", "indent its keys below it: "+names(f.fields))
				continue
			}
			r.mapping(f.fields, key+".", n, set)
		case isNull(n):
			r.add(key, name, "has no value", "", "give it one, or delete the line to leave it at its default")
		case f.entries:
			set(f, r.entries(f, key, n))
		case f.typ.Kind() == reflect.Slice:
			set(f, r.list(f.typ, key, n))
		default:
			if v, ok := r.scalar(f.typ, key, n); ok {
				set(f, v)
			}
		}
	}
}

// entries reads a list whose items have keys. Items with problems are there too, so that the others keep
// their numbers and are checked in the same run.
func (r *fileReader) entries(f *field, key string, n *yaml.Node) reflect.Value {
	items := reflect.Zero(f.typ)
	if n.Kind != yaml.SequenceNode {
		r.add(key, n, "must be a list of entries", form(n), `begin each entry with "- name:"`)
		return items
	}
	for i, item := range n.Content {
		itemKey, item := fmt.Sprintf("%s[%d]", key, i), follow(item)
		r.origins[itemKey] = r.at(item)
		entry := reflect.New(f.typ.Elem()).Elem()
		if item.Kind == yaml.MappingNode {
			r.mapping(f.fields, itemKey+".", item, func(f *field, v reflect.Value) { entry.Field(f.index).Set(v) })
		} else {
			r.add(itemKey, item, "must be an entry with keys", form(item), "its keys are "+names(f.fields))
		}
		items = reflect.Append(items, entry)
	}
	return items
}

// list reads a list of plain values; an item with a problem is the zero value.
func (r *fileReader) list(t reflect.Type, key string, n *yaml.Node) reflect.Value {
	items := reflect.Zero(t)
	if n.Kind != yaml.SequenceNode {
		got := form(n)
		if isSecret(t) && n.Kind == yaml.ScalarNode {
			got = secretMask
		}
		r.add(key, n, "must be a list", got, "put it in brackets, as in [a, b]")
		return items
	}
	for i, item := range n.Content {
		itemKey, item := fmt.Sprintf("%s[%d]", key, i), follow(item)
		r.origins[itemKey] = r.at(item)
		v := reflect.Zero(t.Elem())
		if isNull(item) {
			r.add(itemKey, item, "has no value", "", "give it one, or delete the item")
		} else {
			v, _ = r.scalar(t.Elem(), itemKey, item)
		}
		items = reflect.Append(items, v)
	}
	return items
}

// scalar reads one value. YAML has decided already what the text is (the tag); a text where a number
// belongs, or the reverse, is refused rather than converted.
func (r *fileReader) scalar(t reflect.Type, key string, n *yaml.Node) (reflect.Value, bool) {
	zero := reflect.Zero(t)
	got := form(n)
	if isSecret(t) && n.Kind == yaml.ScalarNode {
		got = secretMask
	}
	if n.Kind != yaml.ScalarNode {
		r.add(key, n, "must be a single value", got, "write one value, without brackets and dashes")
		return zero, false
	}
	tag, isText := n.ShortTag(), n.ShortTag() == "!!str"
	isNumber := tag == "!!int" || tag == "!!float"
	options := optionsOf(t)
	switch {
	case t.Kind() == reflect.String && options != nil && tag == "!!bool":
		r.add(key, n, "must be "+choice(options), got, "write one of these words, in quotes where a program writes this file: some turn on and off into true and false")
		return zero, false
	case t.Kind() == reflect.String && options != nil && !isText:
		r.add(key, n, "must be "+choice(options), got, "")
		return zero, false
	case t.Kind() == reflect.String && !isText:
		r.add(key, n, "must be text", got, "put it in quotes")
		return zero, false
	case isText && n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0 && quotedNumber(t, n.Value):
		r.add(key, n, "must be "+article(t)+", not text", got, "remove the quotes")
		return zero, false
	case t.Kind() == reflect.Bool && tag != "!!bool":
		r.add(key, n, "must be true or false", got, "")
		return zero, false
	case !isText && !isNumber && t.Kind() != reflect.String && t.Kind() != reflect.Bool:
		r.add(key, n, "must be "+article(t), got, "")
		return zero, false
	}
	v, problem := parse(t, n.Value)
	if problem != nil {
		problem.Key, problem.Got = key, got
		problem.from(r.at(n))
		r.problems = append(r.problems, problem)
		return zero, false
	}
	return v, true
}

// quotedNumber says whether a quoted text would be a fine value of t without its quotes. Durations and sizes are texts
// to YAML and may be quoted.
func quotedNumber(t reflect.Type, text string) bool {
	switch {
	case t == reflect.TypeFor[Ratio]():
		return text != "auto"
	case t.Kind() == reflect.Bool, t.Kind() == reflect.Float64:
		_, problem := parse(t, text)
		return problem == nil
	case t == reflect.TypeFor[int]():
		_, problem := parse(t, text)
		return problem == nil
	}
	return false
}

// article names a type in a message.
func article(t reflect.Type) string {
	switch kind := (&field{typ: t}).kind(); kind {
	case "auto | number":
		return "auto or a number"
	case "true | false":
		return "true or false"
	case "text", "secret":
		return "text"
	default:
		return "a " + kind
	}
}

// form shows what stands at a node: a value as it was written, otherwise only what it is.
func form(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "keys"
	case yaml.SequenceNode:
		return "a list"
	}
	if n.ShortTag() == "!!str" {
		return quote(n.Value)
	}
	return plain(n.Value)
}

// follow returns the node that an alias stands for. The schema bounds the depth of the walk, so an alias that
// contains itself ends as a value of the wrong form.
func follow(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

func find(fields []*field, name string) *field {
	for _, f := range fields {
		if f.name == name {
			return f
		}
	}
	return nil
}

func names(fields []*field) string {
	texts := make([]string, len(fields))
	for i, f := range fields {
		texts[i] = f.name
	}
	return strings.Join(texts, ", ")
}

func unknownFix(name, prefix string, fields []*field) string {
	if found := suggest(name, prefix, fields); len(found) > 0 {
		return "did you mean " + choice(found) + "?"
	}
	return "the keys here are " + names(fields)
}
