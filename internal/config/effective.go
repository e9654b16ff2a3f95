package config

import (
	"bytes"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// Effective writes the configuration as a YAML file with every key. Secrets are masked; everything else
// reads back through [Load] as the same configuration. A mask does not: Validate refuses it.
func Effective(c Config) []byte {
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(c); err != nil {
		panic("BUG: the configuration cannot be written: " + err.Error())
	}
	return out.Bytes()
}

// MarshalYAML makes every YAML encoder write what [Effective] writes.
func (c Config) MarshalYAML() (any, error) {
	c.Upstream.URL = maskURL(c.Upstream.URL)
	return sectionNode(schema(), reflect.ValueOf(c)), nil
}

func sectionNode(fields []*field, v reflect.Value) *yaml.Node {
	section := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	for _, f := range fields {
		value := v.Field(f.index)
		node := &yaml.Node{}
		switch {
		case f.isSection():
			node = sectionNode(f.fields, value)
		case value.Kind() == reflect.Slice:
			node.Kind, node.Tag = yaml.SequenceNode, "!!seq"
			if value.Len() == 0 {
				node.Style = yaml.FlowStyle
			}
			for i := range value.Len() {
				if f.entries {
					node.Content = append(node.Content, sectionNode(given(f.fields, value.Index(i)), value.Index(i)))
				} else {
					node.Content = append(node.Content, scalarNode(value.Index(i)))
				}
			}
		default:
			node = scalarNode(value)
		}
		section.Content = append(section.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: f.name}, node)
	}
	return section
}

// given returns the fields of an entry that say something: the zero value of each is that of a key left out.
func given(fields []*field, entry reflect.Value) []*field {
	var some []*field
	for _, f := range fields {
		if !entry.Field(f.index).IsZero() {
			some = append(some, f)
		}
	}
	return some
}

func scalarNode(v reflect.Value) *yaml.Node {
	node := &yaml.Node{Kind: yaml.ScalarNode}
	if v.Kind() != reflect.String {
		node.Value = scalar(v) // its tag is what the text resolves to
		return node
	}
	node.Tag = "!!str" // quoted where it would be read as anything else
	node.Value = v.String()
	if isSecret(v.Type()) {
		node.Value = v.Interface().(Secret).String()
	}
	node.Value = strings.ToValidUTF8(node.Value, "\uFFFD")
	if node.Value == "<<" || strings.ContainsFunc(node.Value, func(r rune) bool { return !unicode.IsGraphic(r) }) {
		node.Style = yaml.DoubleQuotedStyle
	}
	return node
}

// scalar writes a value as it stands in a file, a text in quotes only where it is empty, a list that is empty as [].
func scalar(v reflect.Value) string {
	switch value := v.Interface().(type) {
	case time.Duration:
		return formatDuration(value)
	case interface{ String() string }: // ByteSize, Ratio, Secret
		if text := value.String(); text != "" {
			return text
		}
		return `""`
	}
	switch v.Kind() {
	case reflect.Bool:
		return strconv.FormatBool(v.Bool())
	case reflect.Int:
		return strconv.FormatInt(v.Int(), 10)
	case reflect.Float64:
		return formatNumber(v.Float())
	case reflect.String:
		if v.String() == "" {
			return `""`
		}
		return v.String()
	case reflect.Slice:
		if v.Len() == 0 {
			return "[]"
		}
	}
	panic("BUG: no scalar: " + v.Type().String())
}
