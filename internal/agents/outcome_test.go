package agents

import (
	"strings"
	"testing"
)

func TestOutcome(t *testing.T) {
	long := strings.Repeat("x\n", ownMessage)
	const goose = "The user has declined to run this tool. DO NOT attempt to call this tool again."
	const qwen = "Command: make\nDirectory: (root)\nOutput: "
	for _, c := range []struct {
		name, text string
		want       Outcome
	}{
		// goose.
		{"shell", "hello world 42", Succeeded},
		{"shell", "(no output)", Succeeded},
		{"shell", "oops\n\nCommand exited with code 3", Failed},
		{"shell", "(no output)\n\nCommand exited with code 3\n", Failed},
		{"shell", "Command exited with code 3", Failed},
		{"shell", "oops\n\nCommand exited with code 0", Succeeded},
		{"shell", "log:\nCommand exited with code 3", Succeeded}, // no blank line: printed, not reported
		{"shell", "x\n\nCommand exited with code 3\n\nand went on", Succeeded},
		{"shell", "x\n\nCommand timed out after 5 seconds", Failed},
		{"shell", "Error: the first line of a file\nand more", Succeeded},
		{"shell", "Error: the only line of a file", Succeeded},
		{"shell", "Traceback (most recent call last):\n  File \"x\", line 1\nKeyError", Succeeded},
		{"shell", "Error: Failed to parse arguments: missing field `command`", Failed},
		{"shell", goose, Refused},
		{"developer__shell", "x\n\nCommand exited with code 1", Failed},
		{"write", "Created /w/a (1 lines)", Succeeded},
		{"write", "Failed to write /w/a: permission denied", Failed},
		{"edit", "Edited /w/a (1 lines -> 1 lines)", Succeeded},
		{"edit", "No match found for the specified text.\n\nFile preview:\n```\n   1: hello\n```", Failed},
		{"edit", "Found 3 matches. Please provide more context to identify a unique match:\n", Failed},
		{"edit", "Error: Failed to parse arguments: missing field `path`", Failed},
		{"edit", goose, Refused},
		{"unparseable_tool_call", "The tool call returned the following error:\n-32600: Tool 'x' was not advertised for this model turn", Failed},
		{"todo__todo_write", "Updated (46 chars)", Succeeded},

		// opencode.
		{"read", "<path>/w/a</path>\n<type>file</type>\n<content>\n1: hello\n</content>", Succeeded},
		{"read", "File not found: /w/missing", Failed},
		{"read", "File not found: /w/missing\n" + long, Succeeded}, // a log
		{"read", "The read tool was called with invalid arguments: SchemaError(Missing key\n  at [\"filePath\"]).", Failed},
		{"invalid", "The arguments provided to the tool are invalid: Model tried to call unavailable tool 'x'.", Failed},
		{"edit", "Could not find oldString in the file. It must match exactly, including whitespace.", Failed},
		{"edit", "Edit applied successfully.", Succeeded},
		{"bash", "oops\n", Succeeded}, // its exit code is not shown
		{"bash", "/bin/bash: line 1: nosuchcmd: command not found\n", Failed},
		{"bash", "cat: missing.txt: No such file or directory\n", Failed},
		{"bash", "cat: missing.txt: No such file or directory\nhello\n", Succeeded},
		{"bash", "ls: cannot access 'src/lib': No such file or directory", Failed},
		{"bash", "a note: nothing here", Succeeded},
		{"bash", "out\n\n<bash_metadata>\nbash tool terminated command after exceeding timeout 120000 ms\n</bash_metadata>", Failed},
		{"bash", "The user rejected permission to use this specific tool call.", Refused},
		{"bash", "The user rejected permission to use this specific tool call with the following feedback: no", Refused},
		{"write", "The user has specified a rule which prevents you from using this specific tool call.", Refused},
		{"bash", "Tool execution aborted", Refused},

		// pi.
		{"read", "hello world 42\n", Succeeded},
		{"read", "ENOENT: no such file or directory, access '/w/missing'", Failed},
		{"read", "EISDIR: illegal operation on a directory, read", Failed},
		{"read", "ERRATA: this book has some\n", Succeeded},
		{"read", "Offset 99 is beyond end of file (3 lines total)", Failed},
		{"read", "Error: this file begins like this\n", Succeeded},
		{"read", "Traceback (most recent call last):\n", Succeeded},
		{"read", "x\n\nCommand exited with code 3", Succeeded}, // a saved log
		{"read", `{"error":"a whole file"}`, Failed},           // nobody keeps such a file
		{"read", `{"error":"one","code":2}`, Succeeded},
		{"read", "Validation failed for tool \"read\":\n  - path: must have required properties path", Failed},
		{"no_such_tool", "Tool no_such_tool not found", Failed},
		{"edit", "Could not find the exact text in /w/a. The old text must match exactly.", Failed},
		{"edit", "Found 2 occurrences of the text in /w/a. The text must be unique.", Failed},
		{"edit", "No changes made to /w/a. The replacement produced identical content.", Failed},
		{"edit", "Successfully replaced 1 block(s) in /w/a.", Succeeded},
		{"bash", "Command aborted", Refused},
		{"bash", "some output\n\nCommand aborted", Refused},
		{"bash", "log: Command aborted", Succeeded},
		{"bash", long + "\n\nCommand aborted", Failed}, // long: it has to stay thinnable
		{"read", "Permission denied by user\n" + long, Succeeded},
		{"read", "Operation aborted", Refused},

		// codex.
		{"exec_command", "Chunk ID: eabf24\nWall time: 0.0000 seconds\nProcess exited with code 0\nOriginal token count: 4\nOutput:\nhello\n", Succeeded},
		{"exec_command", "Chunk ID: 54fcb5\nWall time: 0.0000 seconds\nProcess exited with code 1\nOriginal token count: 11\nOutput:\ncat: missing.txt: No such file\n", Failed},
		{"exec_command", "Chunk ID: 54fcb5\nWall time: 0.0000 seconds\nProcess exited with code 0\nOriginal token count: 1\nOutput:\nProcess exited with code 3\n\nCommand exited with code 3", Succeeded},
		{"exec_command", "Chunk ID: 54fcb5\nWall time: 10.0 seconds\nProcess running with session ID 7\nOriginal token count: 1\nOutput:\n", Succeeded},
		{"shell", "Exit code: 1\nWall time: 0.1 seconds\nOutput:\nno", Failed},
		{"shell", "Exit code: 0\nWall time: 0.1 seconds\nOutput:\nExit code: 1", Succeeded},
		{"no_such_tool", "unsupported call: no_such_tool", Failed},
		{"exec_command", "failed to parse function arguments: missing field `cmd`", Failed},
		{"exec_command", "exec command rejected by user", Refused},
		{"apply_patch", "patch rejected by user", Refused},
		{"apply_patch", "apply_patch verification failed: Failed to find expected lines in a.go", Failed},
		{"exec_command", "aborted by user after 3.2s", Refused},

		// qwen-code.
		{"run_shell_command", qwen + "ok\nError: (none)\nExit Code: 0\nSignal: (none)\nProcess Group PGID: (none)", Succeeded},
		{"run_shell_command", qwen + "(empty)\nError: (none)\nExit Code: 3\nSignal: (none)\nProcess Group PGID: (none)", Failed},
		{"run_shell_command", qwen + "Exit Code: 3\nSignal: (none)\nError: (none)\nExit Code: 0\nSignal: (none)\nProcess Group PGID: (none)", Succeeded},
		{"run_shell_command", qwen + "x\nError: (none)\nExit Code: (none)\nSignal: SIGKILL\nProcess Group PGID: 12", Failed},
		{"run_shell_command", qwen + "x\nError: (none)\nExit Code: (none)\nSignal: (none)\nProcess Group PGID: 12", Succeeded},
		{"run_shell_command", "Tool output was too large and has been truncated.\nThe full output has been saved to: /t/x\n...\nError: (none)\nExit Code: 2\nSignal: (none)\nProcess Group PGID: (none)", Failed},
		{"read_file", "File not found: /w/missing", Failed},
		{"read_file", "params must have required property 'file_path'", Failed},
		{"no_such_tool", "Tool \"no_such_tool\" not found in registry. Tools must use the exact names.", Failed},
		{"edit", "File /w/a has not been read in this session. Use the read_file tool first", Failed},
		{"edit", "The file: /w/a has been updated. Showing lines 1-2", Succeeded},
		{"run_shell_command", "Tool execution result was not recorded — likely interrupted by network failure.", Failed},
		{"run_shell_command", "Tool \"run_shell_command\" was canceled by the user.", Refused},
		{"run_shell_command", "This \"run_shell_command\" invocation was denied by permission rules. Matching deny rule: x", Refused},
		{"write_file", "[Operation Cancelled] Reason: no", Refused},
		{"run_shell_command", "Tool \"run_shell_command\" requires user approval but cannot execute in non-interactive mode.", Refused},

		// cline.
		{"read_files", `[{"query":"/w/a","result":"1 | hello","success":true}]`, Succeeded},
		{"read_files", `{"query": "/w/a:1-2", "result": "{\"error\":\"in the file\"}", "success": true}`, Succeeded},
		{"read_files", `[{"query":"/w/a","result":"","error":"Error reading file: ENOENT","success":false}]`, Failed},
		{"read_files", `[{"query":"/w/a","result":"x","success":true},{"query":"/w/b","result":"","error":"no","success":false}]`, Failed},
		{"read_files", `{"error":"✖ Invalid input"}`, Failed},
		{"run_commands", `[{"query":"exit 3","result":"[Command exited with code 3]","error":"Command exited with code 3","success":false}]`, Failed},
		{"run_commands", `[{"query":"true","result":"","success":true}]`, Succeeded},
		{"run_commands", `[{"query":"true","resu`, Succeeded}, // cut off
		{"editor", `{"query":"edit:/w/a","result":"","error":"Editor operation failed","success":false}`, Failed},
		{"editor", `{"query":"edit:/w/a","result":"Edited /w/a","success":true}`, Succeeded},
		{"no_such_tool", `{"error":"Tool call no_such_tool was rejected before execution: AI_NoSuchToolError"}`, Failed},
		{"run_commands", `{"error":"User rejected the tool call -- NOT a tool or system failure."}`, Refused},

		// continue.
		{"Read", "Content of /w/a:\nError: x", Succeeded},
		{"Read", "Error executing tool Read: File does not exist: /w/missing", Failed},
		{"Read", "Required parameter \"filepath\" missing for tool \"Read\"", Failed},
		{"Bash", "Error executing tool Bash: Error (exit code 127): nosuchcmd: command not found\n", Failed},
		{"Bash", "", Succeeded},
		{"Edit", "You must use the Read tool to read /w/a before editing it.", Failed},
		{"Bash", "Permission denied by user", Refused},
		{"Bash", "Error executing tool Bash: Command blocked by security policy", Refused},

		// claude.
		{"Read", "     1→package main", Succeeded},
		{"Edit", "<tool_use_error>String to replace not found in file.</tool_use_error>", Failed},
		{"Bash", "Exit code 1\nTraceback (most recent call last):", Failed},
		{"Bash", "Exit code 1", Failed},
		{"Bash", "Exit code 0\nfine", Succeeded},
		{"Bash", "Exit code 12x", Succeeded},
		{"Write", "Claude requested permissions to write to /w/a, but you haven't granted it yet.", Refused},
		{"Bash", "This command requires approval", Refused},
		{"Bash", "touch x needs approval. Ask the user.", Refused},
		{"Bash", "log\nit needs approval. Ask.", Succeeded},
		{"Bash", "The user doesn't want to proceed with this tool use. The tool use was rejected.", Refused},
		{"Bash", "Permission to use Bash has been denied.", Refused},

		// Other harnesses.
		{"bash", "<returncode>0</returncode>\n<output>\nTraceback (most recent call last):\n</output>", Succeeded},
		{"bash", "<returncode>1</returncode>\n<output>\n</output>", Failed},
		{"str_replace_editor", "Here's the result of running `cat -n` on /w/a:\n     1\tERROR:", Succeeded},
		{"str_replace_editor", "ERROR:\nNo replacement was performed, old_str `x` did not appear", Failed},
		{"str_replace_editor", "No replacement was performed. Multiple occurrences", Failed},
		{"str_replace_editor", "OBSERVATION:\nThe file /w/a has been edited.", Succeeded},
		{"str_replace_editor", "Here's the file\nThe path to wisdom", Succeeded},
		{"execute_bash", "x\n[The command completed with exit code 2.]\n[Current working directory: /w]\n[Command finished with exit code 2]", Failed},
		{"execute_bash", "x\n[The command completed with exit code 0.]\n[Current working directory: /w]", Succeeded},
		{"execute_bash", "x\n[The command completed with exit code -1.]", Succeeded}, // still running
		{"bash", "Your proposed edit has introduced new syntax error(s). Please read this", Failed},
		{"terminal", `{"output": "no", "exit_code": 126, "error": null}`, Failed},
		{"terminal", `{"output": "bash: hexdump: command not found", "exit_code": 0, "error": null}`, Succeeded},
		{"bash", `{"error": "an API's answer, printed by curl"}`, Succeeded},
		{"execute_code", `{"status": "error", "output": "--- stderr ---"}`, Failed},
		{"skill_manage", `{"success": false, "error": "no"}`, Failed},
		{"patch", `{"success": true, "diff": "", "error": null}`, Succeeded},
		{"get_user", "\n{\"error\": {\"message\":\"no\"}}", Failed},
		{"get_user", `{"error": "", "user": 1}`, Succeeded},
		{"get_user", `{"output": "{\"error\":\"inside\"}"}`, Succeeded},
		{"book", "Error: not enough seats", Failed},
		{"book", "Booked. Error: none", Succeeded},
		{"book", "Traceback (most recent call last):", Succeeded},
		{"grep", "Error: found in a file", Succeeded},
		{"webfetch", "Error: a page about errors", Succeeded},
		{"grep", "a.go:1: x\nb.go:2: No such file or directory", Succeeded},

		// The seed's harness.
		{"anything", "Denied by the user: no", Refused},
		{"anything", "Blocked by policy: no", Refused},
		{"anything", "Blocked by a hook: no", Refused},
		{"anything", "It was Blocked by policy: no", Succeeded},
	} {
		if got := Builtin().Outcome(c.name, c.text); got != c.want {
			t.Errorf("%s: %.100q: got %v, want %v", c.name, c.text, got, c.want)
		}
		if isErr, isRef := Builtin().IsError(c.name, c.text), Builtin().IsRefusal(c.name, c.text); isErr != (c.want == Failed) || isRef != (c.want == Refused) {
			t.Errorf("%s: %.100q: IsError %v, IsRefusal %v, want %v", c.name, c.text, isErr, isRef, c.want)
		}
	}
}

func TestOutcome_Configured(t *testing.T) {
	table := Builtin().Extend([]Tool{
		{Name: "kb_get", Kind: KindRead, Errors: []string{"KB-"}, Refusals: []string{"not allowed:"}},
		{Name: "deploy", Errors: []string{"FAILED"}},
	})
	for _, c := range []struct {
		name, text string
		want       Outcome
	}{
		{"kb_get", "KB-404: nothing", Failed},
		{"kb_get", "text\nKB-404: in a document", Succeeded},
		{"kb_get", "not allowed: you", Refused},
		{"deploy", "log\nlog\nFAILED in 3s\n", Failed},
		{"deploy", "log\nFAILED\nrecovered\n", Succeeded},
		{"other", "FAILED", Succeeded},
	} {
		if got := table.Outcome(c.name, c.text); got != c.want {
			t.Errorf("%s: %q: got %v, want %v", c.name, c.text, got, c.want)
		}
	}
}

// Results are untrusted: any text has an outcome, and masking it keeps that.
func FuzzOutcome(f *testing.F) {
	for _, s := range []string{
		"", "x", "Chunk ID: 1\nWall time: 2\nOutput:\n", "Command: x\nExit Code: 1\nSignal: (none)\nProcess Group PGID: 3", `[{"success":false}]`, `{"error":1}`, "<returncode>1</returncode>",
		"[Showing lines 1-2 of 3. Full output: /tmp/x.log]", "</bash_metadata>", "a\n\nCommand aborted", "OBSERVATION:\n", "{\"a\":\xff}",
	} {
		f.Add("bash", s)
		f.Add("read_files", s)
		f.Add("nobody", s)
	}
	f.Fuzz(func(t *testing.T, name, text string) {
		table := Builtin()
		before := table.Outcome(name, text)
		masked := MaskVolatile(text)
		// Masking shortens, and the length of a text can decide.
		if after := table.Outcome(name, masked); after != before && len(text) < ownMessage {
			t.Fatalf("%s: %q is %v, masked %q is %v", name, text, before, masked, after)
		}
		if again := MaskVolatile(masked); again != masked {
			t.Fatalf("%q: masked %q, masked again %q", text, masked, again)
		}
	})
}
