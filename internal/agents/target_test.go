package agents

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// calls names each call by client, so that a failure says whose tool broke.
func TestTarget(t *testing.T) {
	full := func(p string) Target { return Target{Kind: FullRead, Key: "file:" + p, Path: p} }
	part := func(p, r string) Target { return Target{Kind: RangeRead, Key: "file:" + p + "\n" + r, Path: p} }
	write := func(p string) Target { return Target{Kind: FullWrite, Key: "file:" + p, Path: p} }
	edit := func(name, args, p string) Target { return Target{Kind: Edit, Key: name + "\n" + args, Path: p} }
	other := func(name, args string) Target { return Target{Kind: Other, Key: name + "\n" + args} }
	live := func(name, args string) Target { return Target{Kind: Incremental, Key: name + "\n" + args} }

	for _, c := range []struct {
		why, name, args string
		want            Target
	}{
		// Reads.
		{"pi", "read", `{"path":"/w/a.txt"}`, full("/w/a.txt")},
		{"opencode", "read", `{"filePath":"/w/a.txt"}`, full("/w/a.txt")},
		{"opencode range", "read", `{"filePath":"/w/a.txt","offset":2001,"limit":100}`, part("/w/a.txt", "read offset=2001 limit=100")},
		{"order of arguments", "read", `{"limit":100, "offset":2001, "filePath":"/w/a.txt"}`, part("/w/a.txt", "read offset=2001 limit=100")},
		{"qwen-code", "read_file", `{"file_path":"/w/a.txt"}`, full("/w/a.txt")},
		{"continue", "Read", `{"filepath":"/w/a.txt"}`, full("/w/a.txt")},
		{"claude", "Read", `{"file_path":"/w/a.txt"}`, full("/w/a.txt")},
		{"goose over ACP", "read", `{"path":"/w/a.txt","line":2,"limit":1}`, part("/w/a.txt", "read limit=1 line=2")},
		{"zero offset is the start", "read", `{"path":"/w/a.txt","offset":0}`, full("/w/a.txt")},
		{"zero offset with a limit is a range", "read", `{"path":"/w/a.txt","offset":0,"limit":50}`, part("/w/a.txt", "read limit=50")},
		{"no offset with a limit is the same range", "read", `{"path":"/w/a.txt","limit":50}`, part("/w/a.txt", "read limit=50")},
		{"null is absent", "read", `{"path":"/w/a.txt","offset":null,"limit":null}`, full("/w/a.txt")},
		{"first line, zero- or one-based", "read", `{"path":"/w/a.txt","offset":1}`, part("/w/a.txt", "read offset=1")},
		{"zero limit is unclear", "read", `{"path":"/w/a.txt","limit":0}`, part("/w/a.txt", "read limit=0")},
		{"numbers as written", "read", `{"path":"/w/a.txt","limit":50.0}`, part("/w/a.txt", "read limit=50.0")},
		{"a remark", "read_file", `{"file_path":"/w/a.txt","explanation":"why"}`, full("/w/a.txt")},
		{"an argument nobody knows", "read", `{"file_path":"a.xlsx","line_count_only":true}`, other("read", `{"file_path":"a.xlsx","line_count_only":true}`)},
		{"no path", "read", `{"bogus":true}`, other("read", `{"bogus":true}`)},
		{"path of another type", "read", `{"path":["a"]}`, other("read", `{"path":["a"]}`)},
		{"a path written twice", "read", `{"path":"a","path":"b"}`, other("read", `{"path":"a","path":"b"}`)},
		{"two paths", "read", `{"path":"a","file_path":"b"}`, other("read", `{"file_path":"b","path":"a"}`)},
		{"spelling of a path", "read", `{"path":"./src//x/./a.go"}`, full("src/x/a.go")},
		{"dot-dot stays", "read", `{"path":"/w/link/../a.go"}`, full("/w/link/../a.go")},
		{"control characters", "read", `{"path":"a\nb"}`, other("read", `{"path":"a\nb"}`)},
		{"escapes are read", "read", `{"p\u0061th":"\u002fw/a.txt"}`, full("/w/a.txt")},

		// Several files in one call.
		{"cline", "read_files", `{"files":[{"path":"/w/a","absolute_path":"/w/a"}]}`, full("/w/a")},
		{"cline relative and absolute", "read_files", `{"files":[{"path":"x/a","absolute_path":"/w/x/a"}]}`, full("/w/x/a")},
		{"cline range", "read_files", `{"files":[{"path":"/w/a","start_line":356,"end_line":368}]}`, part("/w/a", "read_files start_line=356 end_line=368")},
		{"cline two files", "read_files", `{"files":[{"path":"/w/a"},{"path":"/w/b"}]}`, other("read_files", `{"files":[{"path":"/w/a"},{"path":"/w/b"}]}`)},
		{"cline string elements", "read_files", `{"files":["/w/a"]}`, full("/w/a")},
		{"cline nothing", "read_files", `{"files":[]}`, other("read_files", `{"files":[]}`)},
		{"cline wrong", "read_files", `{"bogus":true}`, other("read_files", `{"bogus":true}`)},

		// Writes.
		{"pi", "write", `{"path":"/w/a","content":"x"}`, write("/w/a")},
		{"opencode", "write", `{"filePath":"/w/a","content":"x","description":"d"}`, write("/w/a")},
		{"qwen-code", "write_file", `{"file_path":"/w/a","content":"x"}`, write("/w/a")},
		{"continue", "Write", `{"filepath":"/w/a","content":"x"}`, write("/w/a")},
		{"cline creates", "editor", `{"path":"/w/a","new_text":"x"}`, write("/w/a")},
		{"a write that may append", "write_file", `{"path":"/w/a","content":"x","append":true}`, edit("write_file", `{"append":true,"content":"x","path":"/w/a"}`, "/w/a")},
		{"a write at an offset", "write_file", `{"path":"/w/a","content":"x","offset":9}`, edit("write_file", `{"content":"x","offset":9,"path":"/w/a"}`, "/w/a")},

		// Edits.
		{"goose", "edit", `{"path":"/w/a","before":"b","after":"c"}`, edit("edit", `{"after":"c","before":"b","path":"/w/a"}`, "/w/a")},
		{"continue", "Edit", `{"file_path":"/w/a","old_string":"b","new_string":"c"}`, edit("Edit", `{"file_path":"/w/a","new_string":"c","old_string":"b"}`, "/w/a")},
		{"pi", "edit", `{"path":"/w/a","edits":[{"oldText":"b","newText":"c"}]}`, edit("edit", `{"edits":[{"newText":"c","oldText":"b"}],"path":"/w/a"}`, "/w/a")},
		{"an edit without a path", "edit", `{"bogus":true}`, edit("edit", `{"bogus":true}`, "")},
		{"cline edits", "editor", `{"path":"/w/a","old_text":"b","new_text":"c"}`, edit("editor", `{"new_text":"c","old_text":"b","path":"/w/a"}`, "/w/a")},
		{"cline inserts", "editor", `{"path":"/w/a","insert_line":3,"new_text":"c"}`, edit("editor", `{"insert_line":3,"new_text":"c","path":"/w/a"}`, "/w/a")},
		{"a patch of one file", "apply_patch", `{"input":"*** Begin Patch\n*** Update File: a.go\n@@\n-x\n+y\n*** End Patch"}`, edit("apply_patch", `{"input":"*** Begin Patch\n*** Update File: a.go\n@@\n-x\n+y\n*** End Patch"}`, "a.go")},
		{"a patch that adds a file", "apply_patch", `{"input":"*** Begin Patch\n*** Add File: /w/new.go\n+y\n*** End Patch"}`, write("/w/new.go")},
		{"a patch of two files", "apply_patch", `{"input":"*** Add File: a\n*** Add File: b\n"}`, edit("apply_patch", `{"input":"*** Add File: a\n*** Add File: b\n"}`, "")},
		{"a patch that is none", "apply_patch", `{"input":"mock input"}`, edit("apply_patch", `{"input":"mock input"}`, "")},

		// Sub-commands.
		{"OpenHands", "str_replace_editor", `{"command":"view","path":"/w/a"}`, full("/w/a")},
		{"OpenHands range", "str_replace_editor", `{"command":"view","path":"/w/a","view_range":[690,697]}`, part("/w/a", "str_replace_editor view_range=[690,697]")},
		{"OpenHands to the end", "str_replace_editor", `{"command":"view","path":"/w/a","view_range":[1, -1]}`, full("/w/a")},
		{"OpenHands rated", "str_replace_editor", `{"command":"view","path":"/w/a","security_risk":"LOW"}`, full("/w/a")},
		{"OpenHands create", "str_replace_editor", `{"command":"create","path":"/w/a","file_text":"x"}`, write("/w/a")},
		{"OpenHands edit", "str_replace_editor", `{"command":"str_replace","path":"/w/a","old_str":"a"}`, edit("str_replace_editor", `{"command":"str_replace","old_str":"a","path":"/w/a"}`, "/w/a")},
		{"OpenHands unknown", "str_replace_editor", `{"command":"burn","path":"/w/a"}`, other("str_replace_editor", `{"command":"burn","path":"/w/a"}`)},
		{"goose before 1.50 reads", "developer__text_editor", `{"command":"view","path":"/w/a"}`, full("/w/a")},
		{"goose before 1.50 writes", "developer__text_editor", `{"command":"write","path":"/w/a","file_text":"x"}`, write("/w/a")},
		{"goose before 1.50 edits", "developer__text_editor", `{"command":"insert","path":"/w/a","insert_line":1,"new_str":"x"}`, edit("developer__text_editor", `{"command":"insert","insert_line":1,"new_str":"x","path":"/w/a"}`, "/w/a")},

		// Shells.
		{"goose", "shell", `{"command":"cat hello.txt"}`, full("hello.txt")},
		{"goose before 1.50", "developer__shell", `{"command":"cat hello.txt"}`, full("hello.txt")},
		{"goose timeout", "shell", `{"command":"cat hello.txt","timeout_secs":30}`, full("hello.txt")},
		{"qwen-code", "run_shell_command", `{"command":"cat a","description":"look","is_background":false,"directory":"/w"}`, full("/w/a")},
		{"qwen-code in the background", "run_shell_command", `{"command":"cat a","is_background":true}`, live("run_shell_command", `{"command":"cat a","is_background":true}`)},
		{"opencode", "bash", `{"command":"sed -n '1,80p' a","workdir":"/w/x/"}`, part("/w/x/a", "lines 1-80")},
		{"codex", "exec_command", `{"cmd":"cat a","workdir":"/w","yield_time_ms":1000}`, full("/w/a")},
		{"codex cut short", "exec_command", `{"cmd":"cat a","max_output_tokens":10}`, other("exec_command", `{"cmd":"cat a","max_output_tokens":10}`)},
		{"codex argument vector", "shell", `{"command":["bash","-lc","cd /w && cat a"]}`, full("/w/a")},
		{"codex plain vector", "shell", `{"command":["cat","a b"],"workdir":"/w"}`, full("/w/a b")},
		{"codex vector of other things", "shell", `{"command":["cat",1]}`, other("shell", `{"command":["cat",1]}`)},
		{"cline one command", "run_commands", `{"commands":["cat a"]}`, full("a")},
		{"cline two commands", "run_commands", `{"commands":["cat a","cat b"]}`, other("run_commands", `{"commands":["cat a","cat b"]}`)},
		{"anything else", "bash", `{"command":"make  test"}`, other("bash", `{"command":"make  test"}`)},
		{"OpenHands asks for more output", "execute_bash", `{"command":"","is_input":"true"}`, live("execute_bash", `{"command":"","is_input":"true"}`)},
		{"OpenHands flag off", "execute_bash", `{"command":"cat a","is_input":"false"}`, full("a")},
		{"SWE-agent scrolls", "bash", `{"command":"scroll_down"}`, live("bash", `{"command":"scroll_down"}`)},

		// Everything else.
		{"codex polls", "write_stdin", `{"session_id":1,"chars":""}`, live("write_stdin", `{"chars":"","session_id":1}`)},
		{"claude polls", "BashOutput", `{"bash_id":"1"}`, live("BashOutput", `{"bash_id":"1"}`)},
		{"two greps share a path, not a target", "grep", `{"pattern":"x","path":"/w"}`, other("grep", `{"path":"/w","pattern":"x"}`)},
		{"a plan", "todowrite", `{"todos":[]}`, other("todowrite", `{"todos":[]}`)},
		{"unknown tool with a path", "mcp__kb__get", `{"path":"/w/a"}`, other("mcp__kb__get", `{"path":"/w/a"}`)},
		{"no arguments", "submit", `{}`, other("submit", `{}`)},
		{"not an object", "read", `"a"`, other("read", `"a"`)},
		{"spacing and order", "f", " { \"b\" : [1, 2.50,\"\\u0041\"], \"a\":{\"d\":null,\"c\":true} } ", other("f", `{"a":{"c":true,"d":null},"b":[1,2.50,"A"]}`)},
		{"not JSON", "read", `{"path":"/w/a`, Target{}},
		{"empty", "read", ``, Target{}},
		{"two values", "read", `{} {}`, Target{}},
	} {
		t.Run(c.why+" "+c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, Builtin().Target(c.name, []byte(c.args))); diff != "" {
				t.Errorf("%s(%s) (-want +got):\n%s", c.name, c.args, diff)
			}
		})
	}
}

func TestTarget_ZeroTableKnowsNothing(t *testing.T) {
	got := Table{}.Target("read", []byte(`{"path":"a"}`))
	if want := (Target{Kind: Other, Key: "read\n" + `{"path":"a"}`}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestSupersedes(t *testing.T) {
	call := func(name, args string) Target { return Builtin().Target(name, []byte(args)) }
	var (
		readA  = call("read", `{"path":"a"}`)
		catA   = call("bash", `{"command":"cat ./a"}`)
		readB  = call("read", `{"path":"b"}`)
		headA  = call("bash", `{"command":"head -n 5 a"}`)
		sedA   = call("bash", `{"command":"sed -n 1,5p a"}`)
		partA  = call("read", `{"path":"a","offset":100,"limit":10}`)
		part2A = call("read", `{"path":"a","offset":110,"limit":10}`)
		writeA = call("write", `{"path":"a","content":"x"}`)
		editA  = call("edit", `{"path":"a","oldText":"x"}`)
		lsW    = call("bash", `{"command":"ls"}`)
		lsX    = call("bash", `{"command":"ls x"}`)
		poll   = call("write_stdin", `{"session_id":1}`)
		none   = call("read", `{`)
	)
	for _, c := range []struct {
		why          string
		newer, older Target
		want         bool
	}{
		{"the same read again", readA, readA, true},
		{"a look through the shell is a read", catA, readA, true},
		{"and the other way round", readA, catA, true},
		{"another file", readB, readA, false},
		{"a write makes the read stale", writeA, readA, true},
		{"a write makes the write before it stale", writeA, writeA, true},
		{"a read shows what a write left", readA, writeA, true},
		{"an edit carries no file", editA, readA, false},
		{"an edit leaves an edit", editA, editA, false},
		{"a read leaves an edit's result", readA, editA, false},
		{"a write leaves an edit's result", writeA, editA, false},
		{"the same range again", partA, partA, true},
		{"another range", part2A, partA, false},
		{"a range leaves the whole", partA, readA, false},
		{"the whole leaves a range", readA, partA, false},
		{"a write leaves a range", writeA, partA, false},
		{"two spellings of one range", sedA, headA, true},
		{"the same command", lsW, lsW, true},
		{"another command", lsX, lsW, false},
		{"only what is new", poll, poll, false},
		{"nothing known", none, none, false},
		{"nothing known against zero", Target{}, Target{}, false},
	} {
		if got := Supersedes(c.newer, c.older); got != c.want {
			t.Errorf("%s: got %v, want %v\nnewer %+v\nolder %+v", c.why, got, c.want, c.newer, c.older)
		}
	}
}

func TestFiles(t *testing.T) {
	paths := func(ts []Target) string {
		var b strings.Builder
		for _, f := range ts {
			b.WriteString(f.Kind.String() + " " + f.Path + "; ")
		}
		return b.String()
	}
	for _, c := range []struct{ name, args, want string }{
		{"read_files", `{"files":[{"path":"/w/a"},{"path":"/w/b","start_line":3},"/w/c"]}`, "full_read /w/a; range_read /w/b; full_read /w/c; "},
		{"run_commands", `{"commands":["cat a","make","head b"]}`, "full_read a; range_read b; "},
		{"apply_patch", `{"patch":"*** Add File: a\n*** Update File: b\n*** Move to: c\n*** Delete File: d\n"}`, "full_write a; edit b; edit c; edit d; "},
		{"write", `{"path":"a","content":"x"}`, "full_write a; "},
		{"grep", `{"path":"a"}`, ""},
		{"unknown", `{"path":"a"}`, ""},
		{"read", `nonsense`, ""},
		{"write_stdin", `{"path":"a"}`, ""},
	} {
		if got := paths(Builtin().Files(c.name, []byte(c.args))); got != c.want {
			t.Errorf("%s(%s): got %q, want %q", c.name, c.args, got, c.want)
		}
	}
}

func TestCallKey(t *testing.T) {
	same := [][2]string{
		{`{"a":1,"b":"x"}`, ` {"b": "\u0078" , "a":1}`},
		{`{"a":[{"y":1,"x":2}]}`, `{"a":[{"x":2,"y":1}]}`},
	}
	for _, c := range same {
		if a, b := CallKey("f", []byte(c[0])), CallKey("f", []byte(c[1])); a != b {
			t.Errorf("%s and %s are one call: %q, %q", c[0], c[1], a, b)
		}
	}
	different := [][2]string{
		{`{"a":1}`, `{"a":1.0}`},
		{`{"a":[1,2]}`, `{"a":[2,1]}`},
		{`{"a":1}`, `{"a":"1"}`},
		{`{"a":null}`, `{}`},
		{`{"a":9007199254740993}`, `{"a":9007199254740992}`},
		{`{"a":`, `{"b":`},
		{`{"p":"` + strings.Repeat("x", 1000) + `"}`, `{"p":"` + strings.Repeat("x", 999) + `y"}`},
	}
	for _, c := range different {
		if a, b := CallKey("f", []byte(c[0])), CallKey("f", []byte(c[1])); a == b {
			t.Errorf("%s and %s are two calls: %q", c[0], c[1], a)
		}
	}
	if CallKey("f", []byte(`{}`)) == CallKey("g", []byte(`{}`)) {
		t.Error("the name is part of the key")
	}
	if n := len(CallKey("f", []byte(`{"p":"`+strings.Repeat("x", 1<<20)+`"}`))); n > 100 {
		t.Errorf("a long key has %d bytes", n)
	}
}

// Arguments are untrusted, and they come in every shape that JSON allows.
func FuzzTarget(f *testing.F) {
	for _, name := range []string{"read", "read_files", "write", "editor", "apply_patch", "str_replace_editor", "bash", "shell", "run_commands", "write_stdin", "todowrite", "nobody"} {
		f.Add(name, []byte(`{"path":"a","offset":1,"command":"cat x","files":[{"path":"b"}],"input":"*** Add File: c"}`))
		f.Add(name, []byte(`{"command":["bash","-lc","cat x"],"commands":["cat x"],"a":{"b":[1,null,true,"\u00e9"]}}`))
		f.Add(name, []byte(`{"path":"a","path":"b"}`))
	}
	f.Fuzz(func(t *testing.T, name string, args []byte) {
		table := Builtin()
		got := table.Target(name, args)
		if (got.Kind == None) != (got.Key == "") {
			t.Fatalf("%q(%q): kind %v with key %q", name, args, got.Kind, got.Key)
		}
		v, ok := parseValue(args)
		if ok != (got.Kind != None) {
			t.Fatalf("%q(%q): JSON %v but kind %v", name, args, ok, got.Kind)
		}
		if Supersedes(got, got) != (got.Kind == FullRead || got.Kind == RangeRead || got.Kind == FullWrite || got.Kind == Other) {
			t.Fatalf("%q(%q): %+v against itself", name, args, got)
		}
		if !ok {
			return
		}
		// A client's re-serialisation of the arguments is the same call.
		if again := table.Target(name, v.appendCanonical(nil)); again != got {
			t.Fatalf("%q(%q): %+v, canonical %+v", name, args, got, again)
		}
		table.Files(name, args)
		table.State(name, args)
	})
}
