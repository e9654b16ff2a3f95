package agents

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Kind says what a tool does, as far as the age of its results is concerned.
// The values are the words used in the configuration.
type Kind string

const (
	// KindRead returns the content of a file, or a range of it.
	KindRead Kind = "read"
	// KindWrite replaces a whole file, so that nothing read before still holds.
	KindWrite Kind = "write"
	// KindEdit changes part of a file. Its result carries no file, so the read
	// before it stays the only place where the rest of the content stands.
	KindEdit Kind = "edit"
	// KindShell runs a command; some commands are reads in disguise.
	KindShell Kind = "shell"
	// KindState keeps state of its own, such as a plan, in a call's argument.
	KindState Kind = "state"
	// KindIncremental returns only what is new since the last call, so that no
	// call ever speaks for an earlier one, however alike they look.
	KindIncremental Kind = "incremental"
	// KindList returns other people's content (matches, listings, pages) under
	// no single path. Its results are judged as carefully as those of a read.
	KindList Kind = "list"
	// KindOther is every tool of which nothing is known.
	KindOther Kind = "other"
)

// Kinds lists the values a configuration may use.
func Kinds() []Kind {
	return []Kind{KindRead, KindWrite, KindEdit, KindShell, KindState, KindIncremental, KindList, KindOther}
}

// Tool is one row of the table: how a tool is called and how its results read.
// The zero value of a field says nothing; in [Table.Extend] it leaves what the
// table already knows.
type Tool struct {
	// Name is the tool's name exactly as calls carry it, case included: agents
	// tell Read from read.
	Name string
	Kind Kind

	// Path lists the arguments that may hold the file's path. Empty means the
	// usual ones.
	Path []string
	// Range lists the arguments that select a part of the file. Empty means the
	// usual ones.
	Range []string
	// Command lists the arguments that may hold a shell command, as a string or
	// as an argument vector. Empty means the usual ones.
	Command []string
	// Dir lists the arguments that may hold a command's working directory.
	Dir []string
	// Ignore lists arguments that change neither what is read nor what is
	// written. A call with an argument that no list names is opaque, except
	// that a write without this list accepts any: whoever configures a tool as
	// a write says that it always writes the whole file.
	Ignore []string
	// Live lists arguments that, when true, detach the call from its output, so
	// that its result is only the first piece of it.
	Live []string
	// Items names an array argument whose elements are the real calls, such as
	// cline's files and commands.
	Items string
	// Switch names an argument that selects a sub-command, and Cases what each
	// of them does. A sub-command that is not listed is opaque.
	Switch string
	Cases  map[string]Kind
	// EditIf lists arguments that, when present, turn a write into an edit.
	EditIf []string
	// Patch lists arguments that hold a patch in the "*** Begin Patch" form.
	Patch []string
	// State names the argument that holds the tool's whole state. Empty, for a
	// state tool, means all arguments.
	State string

	// Errors and Refusals are wordings of this tool's results, matched at the
	// start of the text and at the start of its last line.
	Errors   []string
	Refusals []string
	// Enveloped says that every result is JSON written by the client, so that
	// its fields can be believed even where the tool returns file content.
	Enveloped bool
	// Untrusted marks results that a third party may have written.
	Untrusted bool
}

// Validate reports what is wrong with a row that came from a configuration.
func (t Tool) Validate() error {
	var errs []error
	if strings.TrimSpace(t.Name) == "" {
		errs = append(errs, errors.New("name: must not be empty"))
	}
	if t.Kind != "" && !slices.Contains(Kinds(), t.Kind) {
		errs = append(errs, fmt.Errorf("kind: unknown (got %q, want one of %v)", t.Kind, Kinds()))
	}
	for _, list := range [][]string{t.Errors, t.Refusals} {
		// An empty wording would match every result of the tool.
		if slices.ContainsFunc(list, func(s string) bool { return strings.TrimSpace(s) == "" }) {
			errs = append(errs, errors.New("errors, refusals: must not contain an empty text"))
			break
		}
	}
	return errors.Join(errs...)
}

// Table is an immutable set of tools. The zero Table knows none.
type Table struct {
	tools map[string]Tool
}

var builtin = sync.OnceValue(func() Table {
	tools := make(map[string]Tool)
	for _, r := range builtinRows() {
		for _, name := range r.names {
			t := r.tool
			t.Name = name
			tools[name] = t
		}
	}
	return Table{tools: tools}
})

// Builtin returns the table of the agents this project was tested against.
func Builtin() Table { return builtin() }

// Extend returns a table that also knows the given tools. An entry for a tool
// that is already known adds to it: lists of wordings grow, other fields
// replace what was there where they are set. Naming a kind says what the tool
// is from scratch, so sub-commands of the old row no longer apply.
func (t Table) Extend(tools []Tool) Table {
	next := make(map[string]Tool, len(t.tools)+len(tools))
	maps.Copy(next, t.tools)
	for _, add := range tools {
		if old, ok := next[add.Name]; ok {
			next[add.Name] = merge(old, add)
			continue
		}
		if old, ok := (Table{tools: next}).lookup(add.Name); ok {
			old.Name = add.Name
			next[add.Name] = merge(old, add)
			continue
		}
		next[add.Name] = add
	}
	return Table{tools: next}
}

func merge(old, add Tool) Tool {
	if add.Kind != "" && add.Kind != old.Kind {
		old.Kind = add.Kind
		old.Switch, old.Cases, old.Items, old.EditIf, old.Patch = "", nil, "", nil, nil
	}
	replace := func(dst *[]string, src []string) {
		if len(src) > 0 {
			*dst = src
		}
	}
	replace(&old.Path, add.Path)
	replace(&old.Range, add.Range)
	replace(&old.Command, add.Command)
	replace(&old.Dir, add.Dir)
	replace(&old.Ignore, add.Ignore)
	replace(&old.Live, add.Live)
	replace(&old.EditIf, add.EditIf)
	replace(&old.Patch, add.Patch)
	if add.Items != "" {
		old.Items = add.Items
	}
	if add.Switch != "" {
		old.Switch, old.Cases = add.Switch, add.Cases
	}
	if add.State != "" {
		old.State = add.State
	}
	old.Errors = slices.Concat(old.Errors, add.Errors)
	old.Refusals = slices.Concat(old.Refusals, add.Refusals)
	old.Enveloped = old.Enveloped || add.Enveloped
	old.Untrusted = old.Untrusted || add.Untrusted
	return old
}

// lookup finds a tool by its exact name, and else without a prefix that an
// agent puts before its own tools.
func (t Table) lookup(name string) (Tool, bool) {
	if tool, ok := t.tools[name]; ok {
		return tool, true
	}
	for _, p := range toolPrefixes {
		if rest, ok := strings.CutPrefix(name, p); ok {
			tool, ok := t.tools[rest]
			return tool, ok
		}
	}
	return Tool{}, false
}

func (t Table) kind(name string) (Tool, Kind) {
	tool, ok := t.lookup(name)
	if !ok || tool.Kind == "" {
		return tool, KindOther
	}
	return tool, tool.Kind
}

// Kind returns what the table knows of a tool, [KindOther] where it is nothing.
func (t Table) Kind(name string) Kind {
	_, k := t.kind(name)
	return k
}

// Untrusted reports whether results of the tool may hold third-party text.
func (t Table) Untrusted(name string) bool {
	tool, _ := t.lookup(name)
	return tool.Untrusted
}

// StateTool reports whether the tool keeps state that should be carried past a
// compaction, and which argument holds it. An empty key means all arguments.
func (t Table) StateTool(name string) (key string, ok bool) {
	tool, kind := t.kind(name)
	return tool.State, kind == KindState
}

// State returns the state that one call of a state tool left behind. Text is
// returned as it is (goose keeps the whole plan in one string), anything else
// as the JSON that the model wrote.
func (t Table) State(name string, args []byte) (state string, ok bool) {
	key, ok := t.StateTool(name)
	if !ok {
		return "", false
	}
	v, ok := parseValue(args)
	if !ok {
		return "", false
	}
	if key == "" {
		return string(bytes.TrimSpace(args)), true
	}
	if v, ok = v.member(key); !ok || v.isNull() {
		return "", false
	}
	if v.kind == '"' {
		return v.text, v.text != ""
	}
	return string(rawMember(args, key)), true
}
