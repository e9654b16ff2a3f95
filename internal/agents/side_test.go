package agents

import "testing"

func TestSideRequest(t *testing.T) {
	const agent = "You are a general-purpose AI agent called goose"
	for _, c := range []struct {
		why, system, user string
		tools             bool
		want              SideKind
	}{
		{"ordinary", agent, "fix the bug", true, SideNone},
		{"goose's tool shim has no tools either", agent, "fix the bug", false, SideNone},
		{"a subagent is a conversation", "You are a specialized subagent within the goose AI framework", "List the files", true, SideNone},
		{"nothing", "", "", false, SideNone},

		{"goose title", "Generate a short title (four words or less) for this conversation.\n", "---BEGIN USER MESSAGES---\nx", false, SideTitle},
		{"opencode title", "You are a title generator. You output ONLY a thread title.", "fix it", false, SideTitle},
		{"an agent that was told it is one", "You are a title generator. You output ONLY a thread title.", "fix it", true, SideNone},

		{"goose pair", "Your task is to summarize a tool call & response pair to save tokens.", "x", false, SideToolPair},

		{"qwen-code classifier", "You are a security classifier for an AI coding agent", "## Pending tool call", true, SideClassifier},
		{"qwen-code memory", "You are now acting as the managed memory extraction subagent for", "", true, SideMemory},
		{"qwen-code memory by its user message", agent, "Managed memory has TWO directories. Choose", true, SideMemory},
		{"qwen-code suggestion", "You are Qwen Code", "[SUGGESTION MODE: Suggest what the user might type next.]", true, SideSuggestion},

		{"goose compaction", "## Task Context\n- An llm context limit was reached when", "Please summarize the conversation history provided in the system prompt.", false, SideCompaction},
		{"opencode compaction", "You are a context summarization agent. You are given", "Here is the conversation so far", false, SideCompaction},
		{"pi compaction", "You are a context summarization assistant. Your task", "<conversation>", false, SideCompaction},
		{"codex compaction", "", "You are performing a CONTEXT CHECKPOINT COMPACTION. Create", false, SideCompaction},
		{"qwen-code compaction", "You are the component that summarizes a conversation when its context window is about to overflow.", "First, reason in your <analysis> block. Then, produce the <state_snapshot> XML.", false, SideCompaction},
		{"qwen-code compaction, first try", "You are Qwen Code", "You are the component that summarizes a conversation when its context window is about to overflow.", true, SideCompaction},
		{"qwen-code behind a reminder", "You are Qwen Code", "<system-reminder>\nthe date\n</system-reminder>\n<system-reminder>x</system-reminder>First, reason in your <analysis> block. Then, produce the <state_snapshot> XML.", true, SideCompaction},
		{"cline compaction", "Summarize the provided coding session into a concise continuation note with", "x", false, SideCompaction},
		{"continue compaction", "You are an agent in the Continue CLI.", "Please provide a concise summary of our conversation so far, capturing the key context", true, SideCompaction},
		{"claude compaction", "You are Claude Code", "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.\n", true, SideCompaction},

		{"talk about it", agent, "why does it say: You are performing a CONTEXT CHECKPOINT COMPACTION?", false, SideNone},
		{"an open reminder", agent, "<system-reminder>First, reason in your <analysis> block. Then, produce the <state_snapshot>", true, SideNone},
		{"what follows goose's compaction", agent, "Your context was compacted. The previous message contains a summary", true, SideNone},
		{"what follows codex's compaction", "", "Another language model started to solve this problem and produced a summary", true, SideNone},
		{"what follows qwen-code's compaction", "You are Qwen Code", "Recently accessed file (full current content embedded)", true, SideNone},
	} {
		if got := SideRequest(c.system, c.user, c.tools); got != c.want {
			t.Errorf("%s: got %v, want %v", c.why, got, c.want)
		}
	}
}

func TestNames(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{SideNone.String(), "none"}, {SideSuggestion.String(), "suggestion"}, {SideKind(99).String(), "unknown"}, {SideKind(-1).String(), "unknown"},
		{None.String(), "none"}, {Incremental.String(), "incremental"}, {TargetKind(99).String(), "unknown"}, {TargetKind(-1).String(), "unknown"},
		{Succeeded.String(), "succeeded"}, {Failed.String(), "failed"}, {Refused.String(), "refused"}, {Outcome(9).String(), "unknown"},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
}
