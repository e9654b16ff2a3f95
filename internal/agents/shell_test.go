package agents

import (
	"strings"
	"testing"
)

func TestShellRead(t *testing.T) {
	for _, c := range []struct{ command, path, part string }{
		{"cat f", "f", ""},
		{"  cat f  \n", "f", ""},
		{"cat f;", "f", ""},
		{"cat -n f", "f", ""},
		{"cat -- f", "f", ""},
		{"cat 'a b.txt'", "a b.txt", ""},
		{`cat "a b.txt"`, "a b.txt", ""},
		{`cat a\ b.txt`, "a b.txt", ""},
		{`cat "a\"b"`, `a"b`, ""},
		{`cat "a\b"`, `a\b`, ""},
		{"cat 'it'\"'\"'s'", "it's", ""},
		{"cat ./x/../f", "x/../f", ""},
		{"cat /w//f", "/w/f", ""},
		{"/bin/cat f", "f", ""},
		{"nl -ba f", "f", ""},
		{"nl -ba -w4 src/f.go", "src/f.go", ""},
		{"nl f", "f", ""},
		{"head f", "f", "lines 1-10"},
		{"head -n 20 f", "f", "lines 1-20"},
		{"head -n20 f", "f", "lines 1-20"},
		{"head -20 f", "f", "lines 1-20"},
		{"head --lines=20 f", "f", "lines 1-20"},
		{"head --lines 20 f", "f", "lines 1-20"},
		{"tail f", "f", "last 10"},
		{"tail -n 20 f", "f", "last 20"},
		{"tail -50 f", "f", "last 50"},
		{"tail -n +20 f", "f", "lines 20-$"},
		{"tail -n +1 f", "f", ""},
		{"sed -n 1,80p f", "f", "lines 1-80"},
		{"sed -n '1,80p' f", "f", "lines 1-80"},
		{`sed -n "1,80p" f`, "f", "lines 1-80"},
		{"sed -n '5p' f", "f", "lines 5-5"},
		{"sed -n '80,$p' f", "f", "lines 80-$"},
		{"sed -n '1,$p' f", "f", ""},
		{"sed -n -e 1,8p f", "f", "lines 1-8"},
		{"sed -ne 1,8p f", "f", "lines 1-8"},
		{"cd dir && cat f", "dir/f", ""},
		{"cd /w/x/ && sed -n 1,5p f", "/w/x/f", "lines 1-5"},
		{"cd dir && cat /w/f", "/w/f", ""},
		{"cd 'a b' && cat f", "a b/f", ""},
		{`bash -lc "cat f"`, "f", ""},
		{`bash -c 'cd d && head -5 "a b"'`, "d/a b", "lines 1-5"},
		{`cd /w && bash -lc "cat f"`, "/w/f", ""},
		{`cd /w && bash -lc "cd x && cat f"`, "/w/x/f", ""},
		{"cat f # the file", "f", ""},
		{"cat " + strings.Repeat("a/", 500) + "f", strings.Repeat("a/", 500) + "f", ""},
	} {
		r, ok := shellRead(c.command)
		if !ok {
			t.Errorf("%q: opaque, want a read of %q", c.command, c.path)
			continue
		}
		path, _ := r.within("")
		if path != c.path || r.part != c.part {
			t.Errorf("%q: got %q %q, want %q %q", c.command, path, r.part, c.path, c.part)
		}
	}
}

func TestShellRead_Opaque(t *testing.T) {
	for _, command := range []string{
		"", "   ", "ls", "cat", "cat -", "cat -n", "catalog f", "echo cat",
		"cat f g", "cat f -n", "cat -A f", "cat -s f", "cat -e f", "cat --help f",
		"cat f | head", "cat < f", "cat f > g", "cat f 2>&1", "cat f 2>/dev/null", "cat <<EOF\nx\nEOF", "cat > f <<'EOF'\nx\nEOF",
		"cat f && ls", "ls && cat f", "cat f; ls", "cat f\nls", "cat f || true", "! cat f", "cat f &", "(cat f)", "{ cat f; }", "time cat f",
		"cd d; cat f", "cd d || cat f", "cd a && cd b && cat f", "cd && cat f", "cd - && cat f", "cd a b && cat f", "cd d && cat f && ls", "cd d > x && cat f", "pushd d && cat f", "cd d && cat f &", "! cd d && cat f",
		"cat *.go", "cat a?", "cat [ab]", "cat {a,b}", "cat ~/f", "cat ~", `cat \~/f`, "cat $f", `cat "$f"`, "cat ${f}", "cat $(ls)", "cat `ls`", `cat "$(ls)"`, "cat $'f'", `cat $"f"`, "cat <(ls)", "cat !(x)", "cat @(a)", "cat $((1))",
		"F=1 cat f", "sudo cat f", "command cat f", "xargs cat f", "if true; then cat f; fi", "for i in a; do cat f; done", "cat() { :; }; cat f",
		"head -c 10 f", "head -n -5 f", "head -n x f", "head -n f", "head -n 0 f", "head -q f", "head -n 5", "head -5", "head -n", "head -n 5 f g", "head -05 f",
		"tail -f f", "tail -F f", "tail -n 5 -f f", "tail +5 f", "tail -c 5 f", "tail -5f f",
		"sed 1,80p f", "sed -n f", "sed -n p f", "sed -n /x/p f", "sed -n '1,5d' f", "sed -n '1~2p' f", "sed -n '0,5p' f", "sed -n '1,5p;9p' f", "sed -n -i 1,5p f", "sed -i s/a/b/ f", "sed -nE 1,5p f", "sed -n 1,5p f g", "sed -n 1,5p", "sed -n", "sed -e 1p f", "sed -n -e", "sed -n '1,5p\n6p' f", "sed -n '1,+4p' f",
		"nl -s: f", "nl -b p f", "nl -ba f g", "nl -bpx f",
		"less f", "bat f", "awk 1 f", "more f",
		"bash -lc 'cat f' x", "bash -lc 'bash -lc \"cat f\"'", "bash cat f", "bash -x -c 'cat f'", "bash -lc 'cat f | wc'", "sh -c", "bash -lc \"cat $f\"",
		"cat /dev/stdin", "cat /proc/cpuinfo", "cat /sys/x", "cd /proc && cat cpuinfo", "cat ./-f", "cat -- -f", "cat ./~x", "cat .", "cat /", "cat ''", `cat ""`, "cat 'a\nb'", "cat 'a\tb'", "cat 'a\x00b'", "cat f\rx", "cat f\r\n", "sed -n 3p #\\\n=", "# look\ncat f", "cat \\\nf", "cat '\xff'",
		"cat 'f", `cat "f`, "cat f)", "cat f;;",
		"cat " + strings.Repeat("a", maxCommand),
		strings.Repeat("(", maxCommand/2) + "cat f",
		"[[ -f f ]] && cat f", "test -f f && cat f",
	} {
		if r, ok := shellRead(command); ok {
			path, _ := r.within("")
			t.Errorf("%.80q: read of %q %q, want opaque", command, path, r.part)
		}
	}
}

func TestArgvRead(t *testing.T) {
	for _, c := range []struct {
		argv []string
		path string
	}{
		{[]string{"cat", "f"}, "f"},
		{[]string{"cat", "a*"}, "a*"},
		{[]string{"cat", "$f"}, "$f"},
		{[]string{"bash", "-lc", "cat f"}, "f"},
		{[]string{"/bin/bash", "-lc", "cd d && cat f"}, "d/f"},
		{[]string{"bash", "-lc", "cat a*"}, ""},
		{[]string{"bash", "-lc", "bash -lc 'cat f'"}, ""},
		{[]string{"cat", "f", "g"}, ""},
		{[]string{"cat"}, ""},
		{nil, ""},
		{[]string{"cat", "~/f"}, ""},
		{[]string{"powershell.exe", "-Command", "cat f"}, ""},
		{[]string{"cat", strings.Repeat("a", maxCommand+1)}, ""},
	} {
		r, ok := argvRead(c.argv)
		path := ""
		if ok {
			path, _ = r.within("")
		}
		if path != c.path {
			t.Errorf("%q: got %q, want %q", c.argv, path, c.path)
		}
	}
}

// quote is the one way to quote that no shell argues about.
func quote(path string) string { return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'" }

// A command that is taken for a read of a path must be one: printing the path
// in the plainest possible way has the same target.
func FuzzShellRead(f *testing.F) {
	for _, s := range []string{
		"cat f", "cd d && cat 'a b'", `cat "a\"b\\c"`, `cat a\ b`, "sed -n 1,80p f", "tail -n +5 f", "nl -ba f", `bash -lc "cat 'f'"`,
		"cat '~x' y", "cat =x", "cat a#b", "cat é", "cat -- --", "cat a'b'\"c\"", "head -5 f # x", "cat \\\nf", "cat a\\\nb", "cat %{x}", "cat a=b", "cat x!", "cat ,,^", "cd . && cat ./../f",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, command string) {
		if len(command) <= maxCommand {
			parseRead(command, true) // without the safety net
		}
		r, ok := shellRead(command)
		if !ok {
			return
		}
		path, ok := r.within("")
		if !ok || path == "" {
			t.Fatalf("%q: a read of nothing", command)
		}
		again, ok := shellRead("cat " + quote(path))
		if !ok {
			if len(quote(path))+4 > maxCommand {
				return
			}
			t.Fatalf("%q: read of %q, which cat does not read", command, path)
		}
		if p, _ := again.within(""); p != path || again.part != "" {
			t.Fatalf("%q: read of %q, but cat reads %q %q", command, path, p, again.part)
		}
		if a, ok := argvRead([]string{"cat", path}); !ok {
			t.Fatalf("%q: read of %q, which a vector does not read", command, path)
		} else if p, _ := a.within(""); p != path {
			t.Fatalf("%q: read of %q, but a vector reads %q", command, path, p)
		}
	})
}
