package agents

import "regexp"

// This file is the data: what was seen of each agent, and nothing else. "cap"
// marks what was captured from a running client, "src" what its source says.
//
//	goose 1.52, 1.50 and the older developer__ tools   cap, src
//	opencode 1.18   pi 0.73   codex 0.171              cap
//	qwen-code 0.24   cline 3.0   continue 1.5          cap
//	claude-code 2.1                                    cap
//	OpenHands, SWE-agent, mini-swe-agent, hermes       recorded sessions

// Names of arguments.
var (
	pathKeys    = []string{"path", "filePath", "file_path", "filepath", "absolute_path"}
	commandKeys = []string{"command", "cmd"}

	// lineKeys select a part of a file. goose counts from "line", cline and
	// copilot name both ends, the str_replace editors take a pair.
	lineKeys = []string{"offset", "limit", "line", "start_line", "end_line", "startLine", "endLine", "view_range"}
	// startKeys of lineKeys say nothing when they are zero.
	startKeys = []string{"offset", "line", "start_line", "startLine"}
	// wholeRanges are ways to ask for everything: from line 1 to the end.
	wholeRanges = []string{"[1,-1]"}

	// remarkKeys are notes that models attach to any call.
	remarkKeys = []string{"description", "explanation", "security_risk", "summary", "justification", "reason"}
	// contentKeys hold what is written.
	contentKeys = []string{"content", "contents", "text", "file_text", "line_count"}
	// dirKeys: codex and opencode, qwen-code, others.
	dirKeys = []string{"workdir", "directory", "cwd"}
	// shellKeys change when a command is given up or asked about, not what it
	// does. max_output_tokens (codex) is missing on purpose: it cuts the output.
	shellKeys = []string{"timeout", "timeout_secs", "timeout_ms", "yield_time_ms", "login", "tty", "sandbox_permissions", "with_escalated_permissions", "requires_approval"}
	// liveKeys: qwen-code, claude, hermes, copilot, OpenHands.
	liveKeys = []string{"is_background", "run_in_background", "background", "isBackground", "is_input"}
)

// toolPrefixes are put before an agent's own tools: goose before 1.50.
var toolPrefixes = []string{"developer__"}

// pagerCommands move SWE-agent's window over a file: the same words show
// something else every time.
var pagerCommands = []string{"scroll_up", "scroll_down"}

type row struct {
	names []string
	tool  Tool
}

func builtinRows() []row {
	names := func(n ...string) []string { return n }
	editor := func(create string) Tool {
		return Tool{
			Switch: "command",
			Cases: map[string]Kind{
				"view": KindRead, create: KindWrite,
				"str_replace": KindEdit, "insert": KindEdit, "undo_edit": KindEdit, "edit_file": KindEdit,
			},
			// One name for reads and edits, so its results are judged like a
			// read's; what follows is its own wording, with OpenHands' head.
			Kind: KindRead, Ignore: contentKeys,
			Errors: []string{"ERROR:\n", "No replacement was performed", "Invalid `", "Parameter `", "The path "},
		}
	}
	shell := Tool{Kind: KindShell, Dir: dirKeys, Ignore: shellKeys, Live: liveKeys}
	clineShell := Tool{Kind: KindShell, Items: "commands", Ignore: shellKeys, Live: liveKeys, Enveloped: true}

	return []row{
		// Reads. pi, opencode and goose's editor protocol say read, qwen-code
		// and copilot read_file, claude and continue Read, crush view.
		{names("read", "Read", "read_file", "view", "view_file"), Tool{Kind: KindRead}},
		{names("read_files"), Tool{Kind: KindRead, Items: "files", Enveloped: true}},

		// Writes of whole files.
		{names("write", "Write", "write_file", "create_file", "write_to_file"), Tool{Kind: KindWrite, Ignore: contentKeys}},

		// Edits.
		{names("edit", "Edit", "MultiEdit", "multiedit", "edit_file", "replace", "patch", "replace_in_file", "apply_diff", "search_replace", "replace_string_in_file", "insert_edit_into_file"), Tool{Kind: KindEdit}},
		{names("apply_patch"), Tool{Kind: KindEdit, Patch: []string{"input", "patch", "patchText"}}},
		// cline's editor writes a new file unless it is given something to find.
		{names("editor"), Tool{Kind: KindWrite, Ignore: []string{"new_text"}, EditIf: []string{"old_text", "insert_line"}, Enveloped: true}},

		// Editors with sub-commands: Anthropic's and its heirs, goose's own.
		{names("str_replace_editor", "str_replace_based_edit_tool", "file_editor"), editor("create")},
		{names("text_editor"), editor("write")},

		// Shells. The first line is goose, pi, opencode, claude and continue;
		// then codex, qwen-code, OpenHands, hermes, editors.
		{names("shell", "bash", "Bash"), shell},
		{names("exec_command", "shell_command", "local_shell", "container.exec"), shell},
		{names("run_shell_command", "execute_bash", "terminal", "execute_command", "run_terminal_cmd", "run_in_terminal"), shell},
		{names("run_commands"), clineShell},

		// Tools that return only what is new: codex, claude, terminus (which
		// prints a terminal), copilot, hermes, crush, SWE-agent.
		{names("write_stdin", "BashOutput", "bash_output", "TaskOutput", "AgentOutputTool", "bash_command", "get_terminal_output", "process", "job_output", "command_status", "wait", "wait_agent", "scroll_up", "scroll_down"), Tool{Kind: KindIncremental}},

		// Plans. goose's result says only how long the text was; the text
		// itself is in the call.
		{names("todo__todo_write", "todo__write"), Tool{Kind: KindState, State: "content"}},
		{names("todowrite", "TodoWrite", "todo_write", "write_todos", "update_todo_list"), Tool{Kind: KindState, State: "todos"}},
		{names("Checklist"), Tool{Kind: KindState, State: "checklist"}},
		{names("update_plan"), Tool{Kind: KindState, State: "plan"}},
		{names("manage_todo_list"), Tool{Kind: KindState, State: "todoList"}},
		{names("task_tracker"), Tool{Kind: KindState, State: "task_list"}},

		// Searches, listings, pages and pictures.
		{names("grep", "Grep", "glob", "Glob", "ls", "LS", "list", "find", "tree", "analyze", "list_directory", "list_files", "list_dir", "search_files", "search_file_content", "grep_search", "file_search", "codebase_search", "read_many_files"), Tool{Kind: KindList}},
		{names("search_codebase", "fetch_web_content"), Tool{Kind: KindList, Enveloped: true}},
		{names("webfetch", "WebFetch", "web_fetch", "websearch", "WebSearch", "web_search", "read_image", "view_image"), Tool{Kind: KindList}},
	}
}

// What a client says when a call did not get as far as its tool.
var (
	callErrors = []string{
		"Error executing tool ",                              // continue
		"Error (exit code ",                                  // continue
		"Required parameter \"",                              // continue
		"<tool_use_error>",                                   // claude
		"The tool call returned the following error:",        // goose
		"Error: Failed to parse arguments",                   // goose
		"failed to parse function arguments:",                // codex
		"unsupported call: ",                                 // codex
		"Validation failed for tool \"",                      // pi
		"params must have required property",                 // qwen-code
		"Tool execution result was not recorded",             // qwen-code
		"The arguments provided to the tool are invalid:",    // opencode
		"MCP error -32",                                      // the MCP SDKs
		"Please always provide EXACTLY ONE action",           // mini-swe-agent
		"Your proposed edit has introduced new syntax error", // SWE-agent, also through its shell
	}
	callRejected = regexp.MustCompile(`^(?:` +
		`Tool \S+ not found\s*$` + // pi, continue
		`|Tool "[^"\n]*" not found in registry` + // qwen-code
		`|The \S+ tool was called with invalid arguments:` + // opencode
		`)`)
)

// What a read says when it has nothing to return: opencode and qwen-code, the
// runtime's own words (pi), goose, claude and continue, OpenHands.
var readFailed = regexp.MustCompile(`^(?:` +
	`File not found: ` +
	`|E(?:NOENT|ACCES|PERM|ISDIR|NOTDIR|LOOP|INVAL|NAMETOOLONG|BUSY|IO|MFILE): ` +
	`|Failed to read ` +
	`|File does not exist` +
	`|Cannot read binary file: ` +
	`|Offset \d+ is (?:beyond end of file|out of range)` +
	`|ERROR:\r?\n` +
	`)`)

// What an edit or a write says when it did nothing.
var (
	editErrors = []string{
		"No match found for the specified text.",                  // goose
		"Failed to write ", "Failed to create ", "Failed to edit", // goose, qwen-code
		"Could not find the exact text", "Could not find edits", "No changes made to ", "No changes would be made ", // pi
		"Could not find oldString", "Found multiple matches for oldString", "No changes to apply: ", // opencode
		"Refusing replacement because", "You must read file ", // opencode
		"You must use the Read tool to read ",                 // continue
		"File already exists, cannot create",                  // qwen-code
		"apply_patch verification failed", "patch rejected: ", // codex, opencode
		"No replacement was performed", "String to replace not found", // the str_replace editors, claude
		"File has not been read yet.", "File has been modified since ", // claude
	}
	editFailed = regexp.MustCompile(`^(?:` +
		`Found \d+ (?:matches|occurrences)` + // goose, pi
		`|File \S.* has (?:not been read in this session|been modified since)` + // qwen-code, opencode
		`)`)
)

// messageErrors count where the whole text is the tool's own message.
var messageErrors = []string{"Error: ", "Error executing ", "ERROR: ", "ERROR:\n", "error: "}

// Exit codes.
var (
	// mini-swe-agent wraps everything.
	returnCode = regexp.MustCompile(`^<returncode>(-?\d+)</returncode>`)
	// claude puts a code other than zero before the output.
	exitCodeHead = regexp.MustCompile(`^Exit code:? (-?\d+)(?:\r?\n(.{0,10})|\s*$)`)
	// goose and pi put it behind, and nothing where it is zero.
	exitCodeTail = regexp.MustCompile(`^Command exited with code (-?\d+)$`)
	// codex.
	codexHeads = []string{"Chunk ID: ", "Wall time: ", "Exit code: "}
	codexExit  = regexp.MustCompile(`(?m)^(?:Process exited with code|Exit code:) (-?\d+)$`)
	// qwen-code, also where it cut the block's head away.
	qwenHeads = []string{"Command: ", "Tool output was too large and has been truncated"}
	qwenTail  = regexp.MustCompile(`(?m)^Exit Code: (-?\d+|\(none\))\r?\nSignal: (.*?)\r?$`)
	// OpenHands.
	openHandsTail = regexp.MustCompile(`(?m)^\[(?:The command completed|Command finished) with exit code (-?\d+)\.?\]\r?$`)
	// hermes and other tools that answer in JSON.
	exitCodeKeys = []string{"exit_code", "exitCode", "returncode"}
	// opencode says only that it gave up.
	terminated = regexp.MustCompile(`(?m)^(?:bash|shell) tool terminated command`)
)

// shellComplaint is an output of one line in which the shell or a file tool
// says that what it was given is not there.
var shellComplaint = regexp.MustCompile(`^(?:/[\w./-]*/)?[\w.+-]+: (?:line \d+: |\d+: )?[^\n]*(?:` +
	`: No such file or directory|: command not found|: not found|: Permission denied|: Is a directory|: Not a directory` +
	`)$`)

// What a person, a hook or a policy says.
var (
	refusals = []string{
		"Denied by the user:", "Blocked by policy:", "Blocked by a hook:", // the seed's own harness
		"The user has declined to run this tool",             // goose cap; also its repetition inspector
		"Let the user know the tool call was skipped",        // goose src, chat mode
		"The user rejected permission",                       // opencode cap
		"The user has specified a rule which prevents you ",  // opencode src
		"[Tool execution was interrupted]",                   // opencode src
		"Tool execution aborted",                             // opencode src
		"exec command rejected by user",                      // codex src
		"patch rejected by user",                             // codex src
		"aborted by user",                                    // codex src
		"user rejected MCP tool call",                        // codex src
		"[Operation Cancelled]",                              // qwen-code src
		"User rejected the tool call",                        // cline cap
		"Permission denied by user",                          // continue src
		"Command blocked by security policy",                 // continue src
		"Claude requested permissions to ",                   // claude cap
		"The user doesn't want to ",                          // claude src
		"This command requires approval",                     // claude src
		"Operation aborted", "Tool execution was blocked by", // pi src
	}
	refused = regexp.MustCompile(`^(?:` +
		`Tool "[^"\n]*" was canceled by the user` + // qwen-code cap
		`|This "[^"\n]*" invocation was denied by permission rules` + // qwen-code cap
		`|Tool "[^"\n]*" requires user approval` + // qwen-code src
		`|Permission to use \S+ has been denied` + // claude src
		`)`)
	// needsApproval stands in claude's first line, behind the command: cap.
	needsApproval = " needs approval."
	// abortTails stand behind what a command had printed: pi src.
	abortTails = []string{"Command aborted"}
	// errorWrapper is what some clients put around the words of a refusal:
	// continue, cline, claude, opencode's transcripts.
	errorWrapper = regexp.MustCompile(`^(?:Error executing tool \S+: |Error: |\{\s*"error":\s*"|<tool_use_error>)`)
)

// sideOpenings are how agents' own prompts begin, each cut to what tells it
// apart. All were captured, except where marked.
var sideOpenings = []struct {
	kind    SideKind
	user    bool // the last user message, not the system message
	tools   withTools
	opening string
}{
	{SideTitle, false, never, "Generate a short title (four words or less)"}, // goose
	{SideTitle, false, never, "You are a title generator"},                   // opencode

	{SideToolPair, false, never, "Your task is to summarize a tool call & response pair"}, // goose

	{SideClassifier, false, always, "You are a security classifier"},                                          // qwen-code
	{SideMemory, false, always, "You are now acting as the managed memory extraction subagent"},               // qwen-code
	{SideMemory, true, always, "Managed memory has TWO directories"},                                          // qwen-code
	{SideSuggestion, true, either, "[SUGGESTION MODE:"},                                                       // qwen-code
	{SideCompaction, false, never, "## Task Context\n- An llm context limit was reached"},                     // goose
	{SideCompaction, true, never, "Please summarize the conversation history provided in the system prompt."}, // goose
	{SideCompaction, false, never, "You are a context summarization agent"},                                   // opencode
	{SideCompaction, false, never, "You are a context summarization assistant"},                               // pi
	{SideCompaction, true, never, "You are performing a CONTEXT CHECKPOINT COMPACTION"},                       // codex
	// qwen-code tries with the original system message and tools first.
	{SideCompaction, false, never, "You are the component that summarizes a conversation when its context window"},
	{SideCompaction, true, either, "You are the component that summarizes a conversation when its context window"},
	{SideCompaction, true, either, "First, reason in your <analysis> block. Then, produce the <state_snapshot>"},
	{SideCompaction, false, never, "Summarize the provided coding session into a concise continuation note"}, // cline src
	{SideCompaction, true, either, "Please provide a concise summary of our conversation so far, capturing"}, // continue
	{SideCompaction, true, either, "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools."},               // claude
	{SideCompaction, true, either, "Your task is to create a detailed summary of the conversation so far"},   // claude
}
