package agents

import (
	"strings"
	"testing"
)

// Every result of a conversation is judged on every request that compacts, so
// the price of one must not depend on how long it is.
func BenchmarkOutcome(b *testing.B) {
	text := strings.Repeat("    return self.value  # an ordinary line of a file\n", 1000)
	for _, c := range []struct{ why, name, text string }{
		{"shell", "shell", text},
		{"shell_failed", "shell", text + "\n\nCommand exited with code 1"},
		{"read", "read", text},
		{"unknown", "nobody", text},
		{"codex", "exec_command", "Chunk ID: eabf24\nWall time: 0.0 seconds\nProcess exited with code 0\nOutput:\n" + text},
		{"short", "shell", "hello.txt\n"},
	} {
		b.Run(c.why, func(b *testing.B) {
			b.ReportAllocs()
			table := Builtin()
			for b.Loop() {
				table.Outcome(c.name, c.text)
			}
		})
	}
}

func BenchmarkTarget(b *testing.B) {
	for _, c := range []struct{ why, name, args string }{
		{"read", "read", `{"path":"/w/src/main.go","offset":10,"limit":200}`},
		{"shell_read", "shell", `{"command":"cd /w && sed -n 1,80p src/main.go"}`},
		{"shell_other", "shell", `{"command":"cd /w && go test ./... 2>&1 | tail -20"}`},
		{"write_50KB", "write", `{"path":"/w/a","content":"` + strings.Repeat("x", 50_000) + `"}`},
	} {
		b.Run(c.why, func(b *testing.B) {
			b.ReportAllocs()
			table, args := Builtin(), []byte(c.args)
			for b.Loop() {
				table.Target(c.name, args)
			}
		})
	}
}
