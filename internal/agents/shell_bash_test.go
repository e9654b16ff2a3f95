package agents

import (
	"bytes"
	"math/rand"
	"os/exec"
	"strings"
	"testing"
)

// What counts is what a real shell makes of a command. This builds commands out
// of pieces that shells disagree about, and has bash say which file the ones
// that were taken for reads would have printed. The readers are replaced by
// functions, so nothing is read.
func TestShellRead_AgreesWithBash(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("SKIPPED: no bash here")
	}
	heads := []string{"cat ", "head -n 5 ", "nl -ba ", "tail ", "sed -n 3p ", "cd d && cat ", "cd 'x y' && sed -n 3p ", `cd "q\\z" && cat `, "bash -lc "}
	pieces := []string{
		" ", " ", "f", "a.go", "1", "-n", "-5", "--", "-", "+5", "'a b'", `"a b"`, "a b", `\ `, `\`, "'", `"`, `\"`, `\'`, `"\a"`, `'\n'`, `""`, "''",
		"~", "#", "# x", "=", "!", "%", "^", ",", "@", ":", "é", "/", "..", "./", "//", "?", "*", "'*'", `\*`, "[", "]", "{", "}", "{a,b}", "$", "$x", "'$x'", `"\$x"`, `\$`, "$'x'", "(", ")", "@(", "&", "&&", ";", "|", "<", "\n", "\\\n", "\t", "1,5p",
	}
	rnd := rand.New(rand.NewSource(1))
	type want struct{ command, path string }
	var wants []want
	var input bytes.Buffer
	seen := map[string]bool{}
	for tries := 0; tries < 400_000 && len(wants) < 1500; tries++ {
		command := heads[rnd.Intn(len(heads))]
		for range 1 + rnd.Intn(6) {
			command += pieces[rnd.Intn(len(pieces))]
		}
		r, ok := shellRead(command)
		if !ok || seen[command] {
			continue
		}
		seen[command] = true
		path, _ := r.within("")
		wants = append(wants, want{command, path})
		input.WriteString(command)
		input.WriteByte(0)
	}
	if len(wants) < 500 {
		t.Fatalf("only %d commands to compare", len(wants))
	}

	const script = `
		cd() { [ $# -eq 1 ] && at="$at$1/"; }
		say() { printf '%s\0' "$at" "${@: -1}"; }
		cat() { say "$@"; }; nl() { say "$@"; }; head() { say "$@"; }; tail() { say "$@"; }; sed() { say "$@"; }
		bash() { eval "$2"; }
		while IFS= read -r -d '' command; do
			at=
			eval "$command"
			printf '\1\0'
		done`
	cmd := exec.CommandContext(t.Context(), bash, "--norc", "--noprofile", "-c", script)
	cmd.Stdin = &input
	cmd.Dir = t.TempDir()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("bash: %v", err)
	}
	answers := strings.Split(string(out), "\x01\x00")
	if len(answers) != len(wants)+1 {
		t.Fatalf("%d answers to %d commands", len(answers)-1, len(wants))
	}
	for i, w := range wants {
		said := strings.Split(answers[i], "\x00") // directory, file, ""
		if len(said) != 3 {
			t.Errorf("%q: taken for a read of %q, bash printed %q", w.command, w.path, answers[i])
			continue
		}
		got := said[1]
		if !strings.HasPrefix(got, "/") {
			got = said[0] + got
		}
		if got, _ = cleanPath(got); got != w.path {
			t.Errorf("%q: taken for a read of %q, bash reads %q", w.command, w.path, got)
		}
	}
}
