package agents

import "testing"

func TestMaskVolatile(t *testing.T) {
	for _, c := range []struct{ why, a, b string }{
		{
			"codex: chunk id and wall time",
			"Chunk ID: 54fcb5\nWall time: 0.0012 seconds\nProcess exited with code 1\nOriginal token count: 11\nOutput:\nno\n",
			"Chunk ID: 8fd1d9\nWall time: 1.0000 seconds\nProcess exited with code 1\nOriginal token count: 11\nOutput:\nno\n",
		},
		{
			"codex, older",
			"Exit code: 1\nWall time: 0.1 seconds\nOutput:\nno",
			"Exit code: 1\nWall time: 0.2 seconds\nOutput:\nno",
		},
		{
			"qwen-code: process group",
			"Command: x\nOutput: no\nError: (none)\nExit Code: 1\nSignal: (none)\nProcess Group PGID: 100",
			"Command: x\nOutput: no\nError: (none)\nExit Code: 1\nSignal: (none)\nProcess Group PGID: 200",
		},
		{
			"pi: spill file, before its exit code",
			"x\n\n[Showing lines 3-4 of 4. Full output: /tmp/pi-bash-12ab.log]\n\nCommand exited with code 1",
			"x\n\n[Showing lines 3-4 of 4. Full output: /tmp/pi-bash-34cd.log]\n\nCommand exited with code 1",
		},
		{
			"goose: spill file",
			"x\n\n[Output exceeded 2000 line limit (30000 lines total). Full output saved to /tmp/.tmpAb/output-1. Read it with shell commands]",
			"x\n\n[Output exceeded 2000 line limit (30000 lines total). Full output saved to /tmp/.tmpCd/output-2. Read it with shell commands]",
		},
		{
			"opencode: spill file",
			"...output truncated...\n\nFull output saved to: /data/tool_1\n\nx",
			"...output truncated...\n\nFull output saved to: /data/tool_2\n\nx",
		},
		{
			"claude: spill file",
			"<persisted-output>\nOutput too large (164.9KB). Full output saved to: /p/a.txt\n\nPreview",
			"<persisted-output>\nOutput too large (164.9KB). Full output saved to: /p/b.txt\n\nPreview",
		},
		{
			"qwen-code: spill file",
			"Tool output was too large and has been truncated.\nThe full output has been saved to: /p/a\nx",
			"Tool output was too large and has been truncated.\nThe full output has been saved to: /p/b\nx",
		},
	} {
		if a, b := MaskVolatile(c.a), MaskVolatile(c.b); a != b {
			t.Errorf("%s: %q and %q differ", c.why, a, b)
		}
	}
}

func TestMaskVolatile_LeavesOutputAlone(t *testing.T) {
	for _, text := range []string{
		"",
		"plain",
		"Wall time: 3 seconds", // no header: printed by a program
		"log\nChunk ID: 12\nWall time: 1\nOutput:\n",
		"Process Group PGID: 12",
		"Command: x\nProcess Group PGID: 12\nmore",
		"see the full output in the log",
	} {
		if got := MaskVolatile(text); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
	// Only the header is the client's; the same words below it are output.
	const head, tail = "Chunk ID: 1\nWall time: 2 seconds\nProcess exited with code 1\nOutput:", "\nWall time: 3 seconds\n"
	if a, b := MaskVolatile(head+tail), MaskVolatile(head+"\nWall time: 4 seconds\n"); a == b {
		t.Errorf("the output was masked: %q", a)
	}
	// Different failures stay different.
	if MaskVolatile("Chunk ID: 1\nWall time: 2\nProcess exited with code 1\nOutput:\na") == MaskVolatile("Chunk ID: 1\nWall time: 2\nProcess exited with code 1\nOutput:\nb") {
		t.Error("two failures became one")
	}
}
