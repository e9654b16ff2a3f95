package agents

import (
	"regexp"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// goose and codex have no read tool, and most models look at files through the
// shell anyway: cat, nl, head, tail and sed -n are reads of a file or of a
// range of its lines. Only the plainest forms count. What the shell would
// expand, redirect, pipe, chain or run in the background is opaque, and so is
// every flag that is not listed here: a command taken for a read by mistake
// evicts content that is still needed, one that is missed costs some tokens.

// maxCommand bounds what is parsed. A look at a file is one short line, and the
// parser recurses: text from a model must not choose the depth of our stack.
const maxCommand = 4096

// read is a command that prints a file: all of it where part is empty.
type read struct {
	dir  string // from a leading "cd dir &&"
	path string
	part string
}

// shellRead recognises a command line that does nothing but print one file.
func shellRead(command string) (r read, ok bool) {
	command = strings.Trim(command, " \t\n")
	if len(command) > maxCommand || !mentionsReader(command) {
		return read{}, false
	}
	// The text is a model's, and it comes again with every later request of the
	// conversation: a parser that panics on it must cost us this answer, not
	// the conversation.
	defer func() {
		if recover() != nil {
			r, ok = read{}, false
		}
	}()
	return parseRead(command, true)
}

// mentionsReader keeps most commands from being parsed at all, and from the
// parser what it takes differently than bash: bytes that it drops, and a
// backslash at the end of a comment, which it takes for a continued line.
func mentionsReader(command string) bool {
	return !strings.ContainsAny(command, "|<>`\x00\r\n") &&
		slices.ContainsFunc([]string{"cat", "nl", "head", "tail", "sed"}, func(name string) bool {
			return strings.Contains(command, name)
		})
}

func parseRead(command string, wrapped bool) (read, bool) {
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(command), "")
	if err != nil || len(file.Stmts) != 1 {
		return read{}, false
	}
	stmt, dir := file.Stmts[0], ""
	if !plain(stmt) {
		return read{}, false
	}
	if and, ok := stmt.Cmd.(*syntax.BinaryCmd); ok {
		if and.Op != syntax.AndStmt || !plain(and.X) || !plain(and.Y) {
			return read{}, false
		}
		cd, ok := literalArgs(and.X.Cmd)
		if !ok || len(cd) != 2 || cd[0] != "cd" || cd[1] == "" || cd[1][0] == '-' {
			return read{}, false
		}
		stmt, dir = and.Y, cd[1]
	}
	argv, ok := literalArgs(stmt.Cmd)
	if !ok {
		return read{}, false
	}
	r, ok := readerArgs(argv, wrapped)
	if !ok {
		return read{}, false
	}
	r.dir = joinPath(dir, r.dir)
	if _, ok := r.within(""); !ok {
		return read{}, false
	}
	return r, true
}

// argvRead recognises an argument vector, as codex's shell tool takes it. No
// shell looks at it, so its words mean what they say.
func argvRead(argv []string) (r read, ok bool) {
	size := 0
	for _, a := range argv {
		size += len(a)
	}
	if size > maxCommand {
		return read{}, false
	}
	defer func() { // as in shellRead
		if recover() != nil {
			r, ok = read{}, false
		}
	}()
	r, ok = readerArgs(argv, true)
	if !ok {
		return read{}, false
	}
	if _, ok := r.within(""); !ok {
		return read{}, false
	}
	return r, true
}

// plain reports that a statement has nothing around its command.
func plain(s *syntax.Stmt) bool {
	return s != nil && !s.Negated && !s.Background && !s.Coprocess && !s.Disown && len(s.Redirs) == 0
}

// literalArgs returns the words of a simple command in which the shell changes
// nothing.
func literalArgs(cmd syntax.Command) ([]string, bool) {
	call, ok := cmd.(*syntax.CallExpr)
	if !ok || len(call.Assigns) > 0 || len(call.Args) == 0 {
		return nil, false
	}
	argv := make([]string, len(call.Args))
	for i, word := range call.Args {
		if argv[i], ok = literalWord(word); !ok {
			return nil, false
		}
	}
	return argv, true
}

func literalWord(word *syntax.Word) (string, bool) {
	var b strings.Builder
	for i, part := range word.Parts {
		switch part := part.(type) {
		case *syntax.Lit:
			if strings.ContainsAny(part.Value, "*?[]{}$`\n") || i == 0 && strings.HasPrefix(part.Value, "~") {
				return "", false
			}
			text, ok := unescape(part.Value, "")
			if !ok {
				return "", false
			}
			b.WriteString(text)
		case *syntax.SglQuoted:
			if part.Dollar {
				return "", false
			}
			b.WriteString(part.Value)
		case *syntax.DblQuoted:
			if part.Dollar {
				return "", false
			}
			for _, inner := range part.Parts {
				lit, ok := inner.(*syntax.Lit)
				if !ok || strings.ContainsAny(lit.Value, "$`") {
					return "", false
				}
				text, ok := unescape(lit.Value, `"\`)
				if !ok {
					return "", false
				}
				b.WriteString(text)
			}
		default:
			return "", false
		}
	}
	return b.String(), true
}

// unescape drops the backslashes that quote. In double quotes they quote only
// some characters and stand for themselves elsewhere; outside them they quote
// whatever follows.
func unescape(s, only string) (string, bool) {
	if !strings.Contains(s, `\`) {
		return s, true
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			out = append(out, s[i])
			continue
		}
		if i+1 == len(s) || s[i+1] == '\n' {
			return "", false
		}
		if only == "" || strings.IndexByte(only, s[i+1]) >= 0 {
			i++
		}
		out = append(out, s[i])
	}
	return string(out), true
}

// readerArgs recognises the words of a command that prints a file. Wrapped
// allows one shell around it: bash -lc "cat f".
func readerArgs(argv []string, wrapped bool) (read, bool) {
	if len(argv) < 2 {
		return read{}, false
	}
	name := argv[0]
	for _, bin := range []string{"/bin/", "/usr/bin/"} {
		name = strings.TrimPrefix(name, bin)
	}
	args := argv[1:]
	switch name {
	case "bash", "sh", "zsh":
		if wrapped && len(args) == 2 && (args[0] == "-c" || args[0] == "-lc") && mentionsReader(args[1]) {
			return parseRead(args[1], false)
		}
	case "cat":
		return oneFile(args, "", catFlags, nil)
	case "nl":
		return oneFile(args, "", nil, nlFlags)
	case "head", "tail":
		return headTail(name, args)
	case "sed":
		return sedPrint(args)
	}
	return read{}, false
}

var (
	// Line numbers leave the content whole; -A, -s and -v do not.
	catFlags = []string{"-n", "-b", "-u", "--number", "--number-nonblank"}
	// nl prints every line whatever it numbers.
	nlFlags = regexp.MustCompile(`^-(?:b[atn]|w[0-9]+|nln|nrn|nrz)$`)

	lineCount = regexp.MustCompile(`^[1-9][0-9]{0,9}$`)
	fromLine  = regexp.MustCompile(`^\+[0-9]{1,10}$`)
	sedScript = regexp.MustCompile(`^([1-9][0-9]{0,9})(?:,([1-9][0-9]{0,9}|\$))?p$`)
)

// oneFile accepts known flags and then a single file. Flags behind the file are
// opaque: BSD tools take them for further files.
func oneFile(args []string, part string, flags []string, pattern *regexp.Regexp) (read, bool) {
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		if args[0] == "--" {
			args = args[1:]
			break
		}
		if !slices.Contains(flags, args[0]) && (pattern == nil || !pattern.MatchString(args[0])) {
			return read{}, false
		}
		args = args[1:]
	}
	if len(args) != 1 {
		return read{}, false
	}
	return read{path: args[0], part: part}, true
}

func headTail(name string, args []string) (read, bool) {
	count := "10"
	if flag := args[0]; strings.HasPrefix(flag, "-") && flag != "--" {
		args = args[1:]
		switch {
		case flag == "-n" || flag == "--lines":
			if len(args) == 0 {
				return read{}, false
			}
			count, args = args[0], args[1:]
		case strings.HasPrefix(flag, "--lines="):
			count = strings.TrimPrefix(flag, "--lines=")
		case strings.HasPrefix(flag, "-n"):
			count = flag[len("-n"):]
		default:
			if count = flag[1:]; !lineCount.MatchString(count) {
				return read{}, false
			}
		}
	}
	var part string
	switch {
	case name == "tail" && fromLine.MatchString(count):
		// tail -n +1 is a way to print a whole file.
		if first := strings.TrimLeft(count, "+0"); first != "" && first != "1" {
			part = "lines " + first + "-$"
		}
	case !lineCount.MatchString(count):
		return read{}, false
	case name == "head":
		part = "lines 1-" + count
	default:
		part = "last " + count
	}
	return oneFile(args, part, nil, nil)
}

// sedPrint accepts sed -n with one address or range and the command p.
func sedPrint(args []string) (read, bool) {
	quiet, script := false, ""
	for len(args) > 0 && strings.HasPrefix(args[0], "-") && script == "" {
		flag := args[0]
		args = args[1:]
		switch flag {
		case "-n", "--quiet", "--silent":
			quiet = true
		case "-e", "-ne":
			if len(args) == 0 {
				return read{}, false
			}
			quiet = quiet || flag == "-ne"
			script, args = args[0], args[1:]
		default:
			return read{}, false
		}
	}
	if script == "" {
		if len(args) == 0 {
			return read{}, false
		}
		script, args = args[0], args[1:]
	}
	m := sedScript.FindStringSubmatch(script)
	if m == nil || !quiet {
		return read{}, false
	}
	first, last := m[1], m[2]
	if last == "" {
		last = first
	}
	part := "lines " + first + "-" + last
	if first == "1" && last == "$" {
		part = ""
	}
	return oneFile(args, part, nil, nil)
}

// within resolves the file against the directory that the call itself names.
// Paths that a tool would read differently than the shell (a literal ~ or a
// leading dash), standard input, and the files of the kernel, which change
// without anyone writing to them, are nobody's target.
func (r read) within(dir string) (string, bool) {
	if r.path == "" || r.path == "-" {
		return "", false
	}
	path, ok := cleanPath(joinPath(dir, joinPath(r.dir, r.path)))
	if !ok || path[0] == '-' || path[0] == '~' || path == "." || path == "/" {
		return "", false
	}
	for _, special := range []string{"/dev", "/proc", "/sys"} {
		if path == special || strings.HasPrefix(path, special+"/") {
			return "", false
		}
	}
	return path, true
}

func joinPath(dir, path string) string {
	switch {
	case dir == "" || strings.HasPrefix(path, "/"):
		return path
	case path == "":
		return dir
	}
	return dir + "/" + path
}
