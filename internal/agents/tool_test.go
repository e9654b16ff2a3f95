package agents

import (
	"strings"
	"testing"
)

func TestBuiltin_RowsAreSound(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range builtinRows() {
		for _, name := range r.names {
			if seen[name] {
				t.Errorf("%s has two rows", name)
			}
			seen[name] = true
			tool := r.tool
			tool.Name = name
			if err := tool.Validate(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if tool.Kind == "" {
				t.Errorf("%s has no kind", name)
			}
			if (tool.Switch == "") != (tool.Cases == nil) {
				t.Errorf("%s: a switch needs cases and cases a switch", name)
			}
			if tool.Kind == KindState && tool.State == "" {
				t.Errorf("%s: which argument holds the state?", name)
			}
			if tool.Kind == KindWrite && len(tool.Ignore) == 0 {
				t.Errorf("%s: a built-in write names its arguments", name)
			}
		}
	}
	for _, o := range sideOpenings {
		if len(o.opening) > 90 {
			t.Errorf("opening longer than needed: %q", o.opening)
		}
	}
}

func TestExtend(t *testing.T) {
	base := Builtin()
	table := base.Extend([]Tool{
		{Name: "kb_get", Kind: KindRead, Path: []string{"doc"}, Range: []string{"from", "to"}},
		{Name: "kb_put", Kind: KindWrite, Path: []string{"doc"}},
		{Name: "notes", Kind: KindState},
		{Name: "run", Kind: KindShell, Command: []string{"line"}},
		{Name: "tail_log", Kind: KindIncremental},
		{Name: "webfetch", Untrusted: true},
		{Name: "bash", Errors: []string{"BOOM"}},
		{Name: "developer__shell", Untrusted: true},
		{Name: "text_editor", Kind: KindEdit},
		{Name: "hints", Untrusted: true},
	})
	for _, c := range []struct {
		name, args string
		kind       TargetKind
		path       string
	}{
		{"kb_get", `{"doc":"d"}`, FullRead, "d"},
		{"kb_get", `{"doc":"d","from":3}`, RangeRead, "d"},
		{"kb_get", `{"path":"d"}`, Other, ""},
		{"kb_put", `{"doc":"d","body":"x","force":true}`, FullWrite, "d"},
		{"run", `{"line":"cat f"}`, FullRead, "f"},
		{"tail_log", `{}`, Incremental, ""},
		{"bash", `{"command":"cat f"}`, FullRead, "f"},             // still a shell
		{"developer__shell", `{"command":"cat f"}`, FullRead, "f"}, // known through its prefix
		{"text_editor", `{"command":"view","path":"f"}`, Edit, "f"},
		{"hints", `{"path":"f"}`, Other, ""},
	} {
		got := table.Target(c.name, []byte(c.args))
		if got.Kind != c.kind || got.Path != c.path {
			t.Errorf("%s(%s): got %v %q, want %v %q", c.name, c.args, got.Kind, got.Path, c.kind, c.path)
		}
	}
	if !table.Untrusted("webfetch") || !table.Untrusted("developer__shell") || table.Untrusted("shell") || table.Untrusted("nobody") {
		t.Error("untrusted tools are the ones that were named")
	}
	if !table.IsError("bash", "BOOM") || base.IsError("bash", "BOOM") || base.Untrusted("webfetch") {
		t.Error("extending a table must not change it")
	}
	if table.Kind("hints") != KindOther || table.Kind("nobody") != KindOther || table.Kind("bash") != KindShell {
		t.Error("kinds")
	}
	if got := (Table{}).Extend(nil).Kind("read"); got != KindOther {
		t.Errorf("an empty table knows %v", got)
	}
}

func TestExtend_SharesNoLists(t *testing.T) {
	base := Table{}.Extend([]Tool{{Name: "x", Errors: append(make([]string, 0, 8), "A")}})
	one := base.Extend([]Tool{{Name: "x", Errors: []string{"B"}}})
	two := base.Extend([]Tool{{Name: "x", Errors: []string{"C"}}})
	if !one.IsError("x", "B") || one.IsError("x", "C") || !two.IsError("x", "C") || two.IsError("x", "B") {
		t.Error("two tables grown from one share their wordings")
	}
}

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		tool Tool
		want string
	}{
		{Tool{Name: "x"}, ""},
		{Tool{Name: "x", Kind: KindList, Errors: []string{"E"}}, ""},
		{Tool{}, "name: must not be empty"},
		{Tool{Name: "x", Kind: "reed"}, `kind: unknown (got "reed"`},
		{Tool{Name: "x", Errors: []string{""}}, "must not contain an empty text"},
		{Tool{Name: "x", Refusals: []string{" "}}, "must not contain an empty text"},
	} {
		err := c.tool.Validate()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: got %v, want %q", c.tool, err, c.want)
		}
	}
}

func TestState(t *testing.T) {
	table := Builtin().Extend([]Tool{{Name: "notes", Kind: KindState}})
	for _, c := range []struct{ name, args, want string }{
		{"todo__todo_write", `{"content":"- [x] a\n- [ ] b"}`, "- [x] a\n- [ ] b"},
		{"todowrite", `{"todos":[{"content":"a","status":"done"}, {"content":"b"}]}`, `[{"content":"a","status":"done"}, {"content":"b"}]`},
		{"TodoWrite", `{"x":1,"todos":[]}`, `[]`},
		{"Checklist", `{"checklist":"- [x] a"}`, "- [x] a"},
		{"update_plan", `{"explanation":"e","plan":[{"step":"a"}]}`, `[{"step":"a"}]`},
		{"notes", ` {"b":1,"a":2} `, `{"b":1,"a":2}`},
	} {
		if got, ok := table.State(c.name, []byte(c.args)); !ok || got != c.want {
			t.Errorf("%s(%s): got %q %v, want %q", c.name, c.args, got, ok, c.want)
		}
		if _, ok := table.StateTool(c.name); !ok {
			t.Errorf("%s keeps state", c.name)
		}
	}
	for _, c := range []struct{ name, args string }{
		{"todowrite", `{"todos":null}`},
		{"todowrite", `{}`},
		{"todowrite", `{"todos":`},
		{"todo__todo_write", `{"content":""}`},
		{"todo__todo_write", `{"content":"a","content":"b"}`},
		{"read", `{"content":"x"}`},
		{"nobody", `{"todos":[1]}`},
	} {
		if got, ok := table.State(c.name, []byte(c.args)); ok {
			t.Errorf("%s(%s): got %q, want none", c.name, c.args, got)
		}
	}
	if key, ok := table.StateTool("todo__todo_write"); key != "content" || !ok {
		t.Errorf("goose's plan is in %q", key)
	}
}
