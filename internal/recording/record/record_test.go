package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPlans_CanBeRead(t *testing.T) {
	names, err := planNames()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		p, err := loadPlan(name)
		if err != nil {
			t.Error(err)
			continue
		}
		if p.note == "" || p.project == "" || len(p.steps) == 0 || !p.steps[0].user {
			t.Errorf("%s: note %q, project %q, %d steps", name, p.note, p.project, len(p.steps))
		}
	}
}

// The sessions that need no go command come out as they are stored. The others
// are held against their plans by "go run ./internal/recording/record -check".
func TestRecord_ComesOutAsStored(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED: the recordings were made with GNU tools")
	}
	for _, tool := range []string{"sh", "sed", "awk", "grep", "od", "comm"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("SKIPPED: %v", err)
		}
	}
	for _, name := range []string{"depot", "teashop"} {
		t.Run(name, func(t *testing.T) {
			want, err := os.ReadFile(filepath.Join("..", "sessions", name+".json"))
			if err != nil {
				t.Fatal(err)
			}
			got, _, err := record(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestRun_Usage(t *testing.T) {
	err := run(t.Context(), []string{"-out", filepath.Join(t.TempDir(), "nope")}, os.Stdout)
	if err == nil || !strings.Contains(err.Error(), "set -out") {
		t.Errorf("error %v", err)
	}
}

func TestParsePlan(t *testing.T) {
	p, err := parsePlan(`@note N
@project x
@empty string
@system
You are.
@user
Do it.

Now.
@# a remark
@assistant
Yes.
@think
Hm.
@read a/b.go
@read a/b.go 10 5
@sh ls; pwd
@sh
a
b
@fails
@edit f
old
@with
new

line
@write g

one
@todo
[x] first
[>] second
`)
	if err != nil {
		t.Fatal(err)
	}
	want := []step{
		{user: true, text: "Do it.\n\nNow."},
		{text: "Yes.", reasoning: "Hm.", calls: []call{
			{line: 15, tool: "read_file", args: []arg{{"path", "a/b.go"}}},
			{line: 16, tool: "read_file", args: []arg{{"path", "a/b.go"}, {"offset", 10}, {"limit", 5}}},
			{line: 17, tool: "shell", args: []arg{{"command", "ls; pwd"}}},
			{line: 18, tool: "shell", args: []arg{{"command", "a\nb"}}, fails: true},
			{line: 22, tool: "edit_file", args: []arg{{"path", "f"}, {"old", "old"}, {"new", "new\n\nline"}}},
			{line: 28, tool: "write_file", args: []arg{{"path", "g"}, {"content", "\none\n"}}},
			{line: 31, tool: "todo_write", args: []arg{{"items", []todo{{"first", "completed"}, {"second", "in_progress"}}}}},
		}},
	}
	if diff := cmp.Diff(want, p.steps, cmp.AllowUnexported(step{}, call{}, arg{}, todo{})); diff != "" {
		t.Error(diff)
	}
	if p.note != "N" || p.project != "x" || p.empty != "string" || p.system != "You are." {
		t.Errorf("got %+v", p)
	}
}

func TestParsePlan_Problems(t *testing.T) {
	tests := []struct{ name, in, want string }{
		{"unknown", "@assistant\n@frobnicate\n", "line 2: @frobnicate: no such direction"},
		{"call outside a turn", "@user\nx\n@sh ls\n", "line 3: @sh: not within a turn"},
		{"with without a call", "@assistant\n@with\nx\n", "no call before it"},
		{"half a range", "@assistant\n@read f 3\n", "want PATH"},
		{"bad item", "@assistant\n@todo\n- x\n", "not an item"},
		{"empty list", "@assistant\n@todo\n", "not an item"},
		{"bad limit", "@shell-limit x\n", "invalid syntax"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := parsePlan(tt.in); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

func TestBench_Tools(t *testing.T) {
	b, err := newBench("teashop")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.close)
	b.limit = 60
	do := func(tool string, args ...arg) string {
		t.Helper()
		result, err := b.call(t.Context(), call{tool: tool, args: args})
		if err != nil {
			t.Fatal(err)
		}
		return result
	}
	path := arg{"path", "notes.txt"}
	tests := []struct{ name, got, want string }{
		{"write", do("write_file", path, arg{"content", "one\ntwo\ntwo\n"}), "Wrote 3 lines (12 bytes) to notes.txt"},
		{"read", do("read_file", path), "   1  one\n   2  two\n   3  two"},
		{"read a part", do("read_file", path, arg{"offset", 2}, arg{"limit", 1}), "   2  two\n(lines 2 to 2 of 3)"},
		{"read behind the end", do("read_file", path, arg{"offset", 9}), "Error: offset 9 is behind the end, the file has 3 lines"},
		{"read nothing", do("read_file", arg{"path", "nope"}), "Error: open /home/dev/teashop/nope: no such file or directory"},
		{"read outside", do("read_file", arg{"path", "../../etc/passwd"}), "Error: ../../etc/passwd is outside the project"},
		{"absolute path", do("read_file", arg{"path", "/home/dev/teashop/notes.txt"}, arg{"limit", 1}), "   1  one\n(lines 1 to 1 of 3)"},
		{"edit twice", do("edit_file", path, arg{"old", "two"}, arg{"new", "x"}), "Error: the old text occurs 2 times in notes.txt; add lines around it until it is unique"},
		{"edit nothing", do("edit_file", path, arg{"old", "six"}, arg{"new", "x"}), "Error: the old text does not occur in notes.txt; read the file again and copy it exactly"},
		{"edit", do("edit_file", path, arg{"old", "one\ntwo"}, arg{"new", "2"}), "Edited notes.txt at line 1: 2 lines became 1"},
		{"shell", do("shell", arg{"command", "pwd; cat /home/dev/teashop/notes.txt"}), "/home/dev/teashop\n2\ntwo"},
		{"silent shell", do("shell", arg{"command", "true"}), "(no output)"},
		{"failing shell", do("shell", arg{"command", "echo out; echo err >&2; exit 3"}), "out\nerr\n\nCommand exited with code 3"},
		{"long shell", do("shell", arg{"command", "seq 10000 10099"}), "(the first 540 of 599 bytes are left out)\n" + lines(10090, 10099)},
		{"todo", do("todo_write", arg{"items", []todo{{"a", "completed"}, {"b", "pending"}}}), "Todo list saved: 1 completed, 0 in progress, 1 pending"},
	}
	for _, tt := range tests {
		if tt.got != tt.want {
			t.Errorf("%s:\n got %q\nwant %q", tt.name, tt.got, tt.want)
		}
		if bad := strings.HasPrefix(tt.want, "Error") || strings.Contains(tt.want, "exited"); failed(tt.got) != bad {
			t.Errorf("%s: failed = %t", tt.name, !bad)
		}
	}
	if _, err := b.call(t.Context(), call{tool: "nope"}); err == nil {
		t.Error("an unknown tool was carried out")
	}
}

func lines(from, to int) string {
	var list []string
	for n := from; n <= to; n++ {
		list = append(list, strconv.Itoa(n))
	}
	return strings.Join(list, "\n")
}

func TestMask(t *testing.T) {
	b := &bench{home: "/tmp/record-123"}
	tests := []struct{ in, want string }{
		{"/tmp/record-123/ledger/x.go:3", "/home/dev/ledger/x.go:3"},
		{"--- PASS: TestX (0.07s)\nok  \tpkg\t1.234s", "--- PASS: TestX (0.00s)\nok  \tpkg\t0.00s"},
		{"main.f(0xc0000a1b20, 0x3)\n\tmain.go:9 +0x5e", "main.f(0xc000012180, 0x3)\n\tmain.go:9 +0x1d4"},
		{"/tmp/go-build81726/b001/x.test", "/tmp/go-build1/b001/x.test"},
		{"/usr/local/go/src/testing/testing.go:1934", "/usr/local/go/src/testing/testing.go:100"},
		{"weight=0.412kg 12:30:05 1.5 s", "weight=0.412kg 12:30:05 1.5 s"},
	}
	for _, tt := range tests {
		if got := b.mask(tt.in); got != tt.want {
			t.Errorf("%q\n got %q\nwant %q", tt.in, got, tt.want)
		}
	}
}

func TestQuoteASCII(t *testing.T) {
	got := quoteASCII("a\"\\\n\t\x1bé茶🍵</")
	if want := `"a\"\\\n\t\u001b\u00e9\u8336\ud83c\udf75</"`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestGenerated_IsTheSameEachTime(t *testing.T) {
	for _, project := range []string{"ledger", "depot"} {
		if diff := cmp.Diff(generated(project), generated(project)); diff != "" {
			t.Error(diff)
		}
	}
	if got := decimalComma(-123456789); got != "-1.234.567,89" {
		t.Errorf("got %s", got)
	}
}
