package agents

import (
	"slices"
	"strings"
)

// TargetKind says what a call did to its target, and so which earlier results
// its own result speaks for.
type TargetKind int

const (
	// None is a call of which nothing can be said: its arguments are not JSON.
	None TargetKind = iota
	// FullRead returned a whole file.
	FullRead
	// RangeRead returned a part of a file.
	RangeRead
	// FullWrite replaced a whole file.
	FullWrite
	// Edit changed part of a file, or might have.
	Edit
	// Other is a call that only an identical call speaks for.
	Other
	// Incremental returned what was new at the time, which nothing repeats.
	Incremental
)

var targetKindNames = [...]string{"none", "full_read", "range_read", "full_write", "edit", "other", "incremental"}

func (k TargetKind) String() string {
	if k < 0 || int(k) >= len(targetKindNames) {
		return "unknown"
	}
	return targetKindNames[k]
}

// Target is what a call was about.
type Target struct {
	Kind TargetKind
	// Key is equal for calls with the same target and empty only for [None]. It
	// is the path for whole files, path and range for parts of them, and name
	// and arguments for everything else, edits included: two different edits of
	// a file that fail in the same way are two failures.
	Key string
	// Path is the file, where the call is about exactly one.
	Path string
}

// Supersedes reports whether the result of the newer call makes the result of
// the older one stale. It says nothing about what became of the two calls: the
// caller makes sure that both were answered and neither failed nor was refused
// (see [Table.Outcome]).
//
// An edit supersedes nothing, unlike in the seed's rule: its result carries no
// file, and evicting the read before it only buys another read. A read of a
// range leaves a read of the whole file alone, and the other way round too,
// since most clients cut long files short.
func Supersedes(newer, older Target) bool {
	switch newer.Kind {
	case FullRead, FullWrite:
		return (older.Kind == FullRead || older.Kind == FullWrite) && older.Path == newer.Path
	case RangeRead, Other:
		return older.Kind == newer.Kind && older.Key == newer.Key
	default:
		return false
	}
}

// Target tells what a call is about. Calls that name several files or commands
// (cline's read_files and run_commands) have no single target: only the
// identical call speaks for them.
func (t Table) Target(name string, args []byte) Target {
	v, ok := parseValue(args)
	if !ok {
		return Target{}
	}
	target := Target{Kind: Other}
	if tool, known := t.lookup(name); known && v.kind == '{' {
		target = tool.target(v)
	}
	if target.Key == "" {
		target.Key = callKey(name, v)
	}
	return target
}

// target leaves the key empty where it is the whole call.
func (tool Tool) target(v value) Target {
	if tool.isLive(v) {
		return Target{Kind: Incremental}
	}
	files := tool.files(v)
	if len(files) == 1 {
		return files[0]
	}
	if tool.kindOf(v) == KindEdit || slices.ContainsFunc(files, func(f Target) bool { return f.Kind == Edit || f.Kind == FullWrite }) {
		return Target{Kind: Edit}
	}
	return Target{Kind: Other}
}

// Files returns every file that a call is known to read or write, in the order
// of its arguments, including those of calls with several. It is there for
// statements of fact ("files read and written"), not for superseding: entries
// may lack a key.
func (t Table) Files(name string, args []byte) []Target {
	v, ok := parseValue(args)
	if !ok || v.kind != '{' {
		return nil
	}
	tool, ok := t.lookup(name)
	if !ok || tool.isLive(v) {
		return nil
	}
	files := tool.files(v)
	return slices.DeleteFunc(files, func(f Target) bool { return f.Path == "" })
}

// isLive reports whether the call's result is only what was new.
func (tool Tool) isLive(v value) bool {
	if tool.Kind == KindIncremental {
		return true
	}
	for _, key := range tool.Live {
		if has, ok := v.member(key); ok && has.truthy() {
			return true
		}
	}
	if tool.Kind == KindShell {
		// An empty command asks a running one for more of its output
		// (OpenHands), and a pager command moves a window (SWE-agent).
		if c, ok := v.first(tool.commandKeys()); ok && c.kind == '"' {
			command := strings.TrimSpace(c.text)
			return command == "" || slices.Contains(pagerCommands, command)
		}
	}
	return false
}

// kindOf resolves a sub-command. Empty means that it is not one we know.
func (tool Tool) kindOf(v value) Kind {
	if tool.Switch == "" {
		return tool.Kind
	}
	sub, ok := v.member(tool.Switch)
	if !ok || sub.kind != '"' {
		return ""
	}
	return tool.Cases[sub.text]
}

// files lists what the call reads or writes, as far as that is certain.
func (tool Tool) files(v value) []Target {
	kind := tool.kindOf(v)
	if tool.Items != "" {
		items, ok := v.member(tool.Items)
		if !ok || items.kind != '[' || !tool.knows(v, []string{tool.Items}) {
			return nil
		}
		var out []Target
		for _, item := range items.items {
			if item.kind == '"' && kind != KindShell {
				item = value{kind: '{', members: []member{{name: tool.pathKeys()[0], value: item}}}
			}
			var f Target
			var ok bool
			if kind == KindShell {
				f, ok = tool.command(item, "")
			} else {
				f, ok = tool.file(item, kind)
			}
			if !ok && len(items.items) == 1 {
				return nil
			}
			out = append(out, f)
		}
		return out
	}
	if kind == KindShell {
		c, ok := v.first(tool.commandKeys())
		if !ok || !tool.knows(v, tool.commandKeys(), tool.Dir, tool.Live) {
			return nil
		}
		dir := ""
		if d, ok := v.first(tool.Dir); ok {
			if d.kind != '"' {
				return nil
			}
			dir = d.text
		}
		if f, ok := tool.command(c, dir); ok {
			return []Target{f}
		}
		return nil
	}
	if p, ok := v.first(tool.Patch); ok && p.kind == '"' {
		return patchTargets(p.text)
	}
	if f, ok := tool.file(v, kind); ok {
		return []Target{f}
	}
	return nil
}

// command reads a shell command given as one string or as an argument vector.
func (tool Tool) command(c value, dir string) (Target, bool) {
	switch c.kind {
	case '"':
		if r, ok := shellRead(c.text); ok {
			return r.target(dir)
		}
	case '[':
		argv := make([]string, len(c.items))
		for i, item := range c.items {
			if item.kind != '"' {
				return Target{}, false
			}
			argv[i] = item.text
		}
		if r, ok := argvRead(argv); ok {
			return r.target(dir)
		}
	}
	return Target{}, false
}

func (r read) target(dir string) (Target, bool) {
	path, ok := r.within(dir)
	if !ok {
		return Target{}, false
	}
	return readTarget(path, r.part), true
}

func (tool Tool) file(v value, kind Kind) (Target, bool) {
	path, ok := tool.path(v)
	if !ok {
		return Target{}, false
	}
	called := []string{tool.Switch}
	switch kind {
	case KindRead:
		if !tool.knows(v, called, tool.pathKeys(), tool.rangeKeys(), tool.Live) {
			return Target{}, false
		}
		return readTarget(path, tool.part(v)), true
	case KindWrite:
		_, edits := v.first(tool.EditIf)
		if edits || len(tool.Ignore) > 0 && !tool.knows(v, called, tool.pathKeys(), tool.Live) {
			// What an argument does that we do not know (append? at which
			// offset?) decides whether the old content is gone.
			return Target{Kind: Edit, Path: path}, true
		}
		return Target{Kind: FullWrite, Key: fileKey(path, ""), Path: path}, true
	case KindEdit:
		return Target{Kind: Edit, Path: path}, true
	}
	return Target{}, false
}

func readTarget(path, part string) Target {
	if part == "" {
		return Target{Kind: FullRead, Key: fileKey(path, ""), Path: path}
	}
	return Target{Kind: RangeRead, Key: fileKey(path, part), Path: path}
}

// fileKey tells a file from a part of it by a newline, which no path here holds.
func fileKey(path, part string) string {
	if part == "" {
		return "file:" + path
	}
	return "file:" + path + "\n" + part
}

// path returns the one path that the arguments name. Where several arguments
// name it (cline sends path and absolute_path), they must agree.
func (tool Tool) path(v value) (string, bool) {
	found := ""
	for _, key := range tool.pathKeys() {
		has, ok := v.member(key)
		if !ok || has.isNull() {
			continue
		}
		if has.kind != '"' {
			return "", false
		}
		p, ok := cleanPath(has.text)
		switch {
		case !ok:
			return "", false
		case found == "" || strings.HasPrefix(p, "/") && strings.HasSuffix(p, "/"+found):
			found = p
		case p == found || strings.HasPrefix(found, "/") && strings.HasSuffix(found, "/"+p):
		default:
			return "", false
		}
	}
	return found, found != ""
}

// part describes the range that the arguments select, empty for a whole file.
// It names the tool, because some tools count lines from zero and some from one.
func (tool Tool) part(v value) string {
	var b []byte
	for _, key := range tool.rangeKeys() {
		has, ok := v.member(key)
		if !ok || has.isNull() {
			continue
		}
		text := string(has.appendCanonical(nil))
		if text == "0" && slices.Contains(startKeys, key) || slices.Contains(wholeRanges, text) {
			continue
		}
		b = append(b, ' ')
		b = append(b, key...)
		b = append(b, '=')
		b = append(b, text...)
	}
	if len(b) == 0 {
		return ""
	}
	return tool.Name + string(b)
}

// knows reports whether every argument that says anything is accounted for.
func (tool Tool) knows(v value, lists ...[]string) bool {
	for _, m := range v.members {
		if m.value.isNull() || slices.Contains(tool.Ignore, m.name) || slices.Contains(remarkKeys, m.name) {
			continue
		}
		if !slices.ContainsFunc(lists, func(l []string) bool { return slices.Contains(l, m.name) }) {
			return false
		}
	}
	return true
}

func (tool Tool) pathKeys() []string {
	if len(tool.Path) > 0 {
		return tool.Path
	}
	return pathKeys
}

func (tool Tool) rangeKeys() []string {
	if len(tool.Range) > 0 {
		return tool.Range
	}
	return lineKeys
}

func (tool Tool) commandKeys() []string {
	if len(tool.Command) > 0 {
		return tool.Command
	}
	return commandKeys
}

// first returns the first of the named members that is there and not null.
func (v value) first(names []string) (value, bool) {
	for _, name := range names {
		if has, ok := v.member(name); ok && !has.isNull() {
			return has, true
		}
	}
	return value{}, false
}

// cleanPath makes spellings of one path equal where that is certain: doubled
// slashes, "." elements and a trailing slash go. ".." stays, because dropping
// the element before it is wrong where that is a symbolic link, and so does a
// relative path, because only the agent knows where it starts.
func cleanPath(p string) (string, bool) {
	if p == "" || strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\uFFFD' }) {
		return "", false
	}
	out := make([]byte, 0, len(p))
	for elem := range strings.SplitSeq(p, "/") {
		if elem == "" || elem == "." {
			continue
		}
		if len(out) > 0 || p[0] == '/' {
			out = append(out, '/')
		}
		out = append(out, elem...)
	}
	switch {
	case len(out) > 0:
		return string(out), true
	case p[0] == '/':
		return "/", true
	}
	return ".", true
}
