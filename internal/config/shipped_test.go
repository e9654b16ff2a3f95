package config_test

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/compactproxy/compactproxy/internal/config"
)

const shipped = "../../configs/compactproxy.yaml"

func readShipped(t *testing.T) string {
	t.Helper()
	content, err := os.ReadFile(shipped)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func TestShipped_IsTheDefault(t *testing.T) {
	cfg := load(t, config.Source{Path: shipped, File: []byte(readShipped(t))})
	if diff := cmp.Diff(config.Default(), cfg); diff != "" {
		t.Errorf("(-default +file):\n%s", diff)
	}
}

// Every key stands in the file, in the order of the schema and with its default spelled as help spells it; each,
// and each section, under a comment that begins with its description; keys of entries stand in the comment of
// their list. The file has no other key: Load refuses those.
func TestShipped_HasEveryKeyAndItsDescription(t *testing.T) {
	comments, values, order := map[string]string{}, map[string]string{}, []string{}
	var section []string
	var comment []string
	for line := range strings.Lines(readShipped(t)) {
		trimmed := strings.TrimSpace(line)
		indent := (len(line) - len(strings.TrimLeft(line, " "))) / 2
		switch {
		case trimmed == "":
			comment = nil
		case strings.HasPrefix(trimmed, "#"):
			comment = append(comment, strings.TrimSpace(strings.TrimPrefix(trimmed, "#")))
		default:
			name, value, _ := strings.Cut(trimmed, ":")
			section = append(section[:indent], name)
			key := strings.Join(section, ".")
			comments[key] = strings.Join(comment, "\n")
			values[key] = strings.TrimSpace(value)
			order = append(order, key)
			comment = nil
		}
	}

	var want []string
	list, listComment := "", ""
	for _, key := range config.Keys() {
		if entry, ok := strings.CutPrefix(key.Name, list+"[]."); ok && list != "" {
			description := strings.TrimSuffix(strings.ToLower(key.Doc[:1])+key.Doc[1:], ".")
			text := strings.Join(strings.Fields(listComment), " ")
			if !strings.Contains(text, entry+" "+description) {
				t.Errorf("the comment of %s does not say: %s  %s", list, entry, description)
			}
			continue
		}
		list, listComment = key.Name, comments[key.Name]
		want = append(want, key.Name)
		if !strings.HasPrefix(comments[key.Name]+"\n", key.Doc+"\n") {
			t.Errorf("%s: its comment does not begin with the line %q:\n%s", key.Name, key.Doc, comments[key.Name])
		}
		if inert := strings.Contains(comments[key.Name], "(No effect yet.)"); inert != key.Inert {
			t.Errorf("%s: its comment says that it has no effect yet: %v, it has none: %v", key.Name, inert, key.Inert)
		}
		got := values[key.Name]
		if got != key.Default && got != key.Default+"0" && !(got == "60s" && key.Default == "1m") {
			t.Errorf("%s: %s in the file, %s in help", key.Name, got, key.Default)
		}
		delete(comments, key.Name)
	}
	var got []string
	for _, key := range order {
		if _, isSection := comments[key]; !isSection {
			got = append(got, key)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("keys (-schema +file):\n%s", diff)
	}
	for section, comment := range comments {
		if doc, ok := config.Sections()[section]; !ok || !strings.HasPrefix(comment+"\n", doc+"\n") {
			t.Errorf("%s: its comment does not begin with %q:\n%s", section, doc, comment)
		}
		delete(comments, section)
	}
	if len(comments) > 0 {
		t.Errorf("sections that do not exist: %v", comments)
	}
}

// The examples in the comments are right.
func TestShipped_Examples(t *testing.T) {
	text := readShipped(t)
	for _, example := range []struct{ key, end string }{{"models:", "models: []"}, {"  tools:", "  tools: []"}} {
		indent := strings.Repeat(" ", strings.Index(example.key, strings.TrimSpace(example.key)))
		start := strings.Index(text, indent+"# "+strings.TrimSpace(example.key)+"\n")
		end := strings.Index(text, "\n"+example.end)
		if start < 0 || end < start {
			t.Errorf("no example for %s", example.key)
			continue
		}
		var lines []string
		for line := range strings.Lines(text[start:end]) {
			lines = append(lines, indent+strings.TrimPrefix(strings.TrimPrefix(line, indent+"# "), indent+"#"))
		}
		yaml := strings.Join(lines, "")
		if indent != "" {
			yaml = "compaction:\n" + yaml
		}
		cfg, err := config.Load(config.Source{Path: "example.yaml", File: []byte(yaml)})
		if err != nil {
			t.Errorf("%v\n%s", err, yaml)
		}
		if err == nil && len(cfg.Models)+len(cfg.Compaction.Tools) < 2 {
			t.Errorf("no entries in\n%s", yaml)
		}
	}
}

func TestWithoutEffect(t *testing.T) {
	cfg := config.Default()
	if got := config.WithoutEffect(cfg); got != nil {
		t.Errorf("defaults: %v", got)
	}
	cfg.Compaction.LoopGuard, cfg.Compaction.KeepRecent, cfg.Compaction.CompactTool = config.LoopGuardOff, 5, true
	if diff := cmp.Diff([]string{"compaction.loop_guard", "compaction.compact_tool"}, config.WithoutEffect(cfg)); diff != "" {
		t.Error(diff)
	}
}
