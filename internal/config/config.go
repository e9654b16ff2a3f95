package config

import "time"

// Config is the whole configuration. The zero value is not valid: start from [Default].
//
// Tokens are counted by the server's tokenizer, sizes are bytes, times are durations. A field whose
// comment gives 0 a meaning of its own accepts 0; the rules are in validate.go.
type Config struct {
	Listen     string        `mapstructure:"listen" doc:"Address that agents talk to: OPENAI_BASE_URL=http://ADDRESS/v1."`
	Admin      string        `mapstructure:"admin" doc:"Address of metrics, health, API and page."`
	AdminToken Secret        `mapstructure:"admin_token" doc:"Token that the admin address asks for; required where it is not on loopback."`
	APIKeys    []Secret      `mapstructure:"api_keys" doc:"Keys of which a client must present one; none lets every client in."`
	Upstream   Upstream      `mapstructure:"upstream" doc:"The server behind the proxy."`
	Models     []Model       `mapstructure:"models" doc:"Settings for single models, for servers that have several."`
	Limits     Limits        `mapstructure:"limits" doc:"Bounds on what the proxy takes in and remembers."`
	Shutdown   time.Duration `mapstructure:"shutdown" doc:"How long running streams may finish after a signal to stop."`
	// ImageTokens is the cost of one image part in tokens, 0 for a learned one.
	ImageTokens int `mapstructure:"image_tokens" doc:"Tokens per image part; 0 learns them from what the server reports."`
	// Keepalive is the silence after which a waiting streaming client gets a chunk, 0 for never.
	Keepalive  time.Duration `mapstructure:"keepalive" doc:"Silence after which a waiting streaming client gets an empty chunk; 0s for never."`
	Pin        bool          `mapstructure:"pin" doc:"Keep a message as it was forwarded while the client only moves a date in it or drops its reasoning."`
	Pairing    Pairing       `mapstructure:"pairing" doc:"What happens to a history whose tool calls and results do not match."`
	Compaction Compaction    `mapstructure:"compaction" doc:"When and how a conversation is made to fit."`
	State      State         `mapstructure:"state" doc:"What is kept on disk: checkpoints and the archive of originals."`
	Log        Log           `mapstructure:"log" doc:"The log on standard error."`
}

// Upstream is the server behind the proxy.
type Upstream struct {
	// URL is the server's root. Load stores it normalised: without /v1, without a slash at the end, any
	// other path kept. Root parses it.
	URL    string `mapstructure:"url" doc:"Address of the server, with or without /v1."`
	APIKey Secret `mapstructure:"api_key" doc:"Key for the server, sent where the client presents none."`
	// Timeout is measured from the end of the request to the first byte of the answer.
	Timeout time.Duration `mapstructure:"timeout" doc:"Longest wait for the first byte of an answer; 0s for none, a prefill takes what it takes."`
	// ContextWindow is in tokens per slot, 0 to ask the server.
	ContextWindow    int  `mapstructure:"context_window" doc:"Context window in tokens per slot; 0 asks the server."`
	SendConversation bool `mapstructure:"send_conversation" doc:"Tell the server the conversation's id, for a balancer that keeps conversations together."`
}

// Model overrides the window and the threshold for the model of that name.
type Model struct {
	// Name is compared with the request's model as it is: case, dots and slashes count.
	Name string `mapstructure:"name" doc:"The model's name, exactly as requests spell it."`
	// ContextWindow is in tokens per slot, 0 for upstream.context_window.
	ContextWindow int `mapstructure:"context_window" doc:"Its context window in tokens per slot; 0 for upstream.context_window."`
	// AtTokens is in tokens, 0 for compaction.at_tokens.
	AtTokens int `mapstructure:"at_tokens" doc:"Its threshold in tokens; 0 for compaction.at_tokens."`
}

// Limits bounds memory.
type Limits struct {
	Body ByteSize `mapstructure:"body" doc:"Largest request body; more is answered with 413."`
	// Conversations is a number of conversations.
	Conversations int `mapstructure:"conversations" doc:"Conversations kept in memory; the longest unused goes first."`
}

// Compaction says when a conversation is compacted, and how.
type Compaction struct {
	Mode Mode `mapstructure:"mode" doc:"Whether conversations are compacted."`
	// Threshold is a fraction of the window, greater than 0 and at most 1.
	Threshold Ratio `mapstructure:"threshold" doc:"Size at which compaction fires: auto, or a fraction of the window."`
	// AtTokens is in tokens, 0 for Threshold.
	AtTokens int `mapstructure:"at_tokens" doc:"Size at which compaction fires in tokens, instead of threshold; 0 for threshold."`
	// Settle is a fraction of the threshold from 0 to 1.
	Settle Ratio `mapstructure:"settle" doc:"Where the cheap passes alone are enough: auto, or a fraction of the threshold."`
	// KeepRecent is a number of turns, at least 1.
	KeepRecent int `mapstructure:"keep_recent" doc:"Turns at the end that are kept word for word."`
	// TailMin and TailMax are fractions of the window from 0 to 1, TailMin the smaller.
	TailMin float64 `mapstructure:"tail_min" doc:"Keep more turns while they stay under this fraction of the window."`
	TailMax float64 `mapstructure:"tail_max" doc:"Keep fewer turns while they exceed this fraction of the window."`
	// ThinChars is a number of characters, not bytes.
	ThinChars    int           `mapstructure:"thin_chars" doc:"Characters that an old tool result keeps at its start, and at most of its last line."`
	Predictive   bool          `mapstructure:"predictive" doc:"Forecast a request's size; false goes by what the server reported for the last one."`
	ExactCount   ExactCount    `mapstructure:"exact_count" doc:"Whether the server is asked to count tokens."`
	CarriedState bool          `mapstructure:"carried_state" doc:"Carry the newest plan or todo list of known tools over a compaction word for word."`
	LoopGuard    LoopGuard     `mapstructure:"loop_guard" doc:"What happens when a model repeats a call with the same result after a compaction."`
	CompactTool  bool          `mapstructure:"compact_tool" doc:"Offer the model a tool that compacts; it changes the prompt."`
	Tools        []Tool        `mapstructure:"tools" doc:"What the proxy should know about tools, added to its built-in table."`
	Summary      SummaryConfig `mapstructure:"summary" doc:"The summary that replaces old turns."`
}

// SummaryConfig says how a summary is asked for.
type SummaryConfig struct {
	Enabled  bool         `mapstructure:"enabled" doc:"Summarise where the cheap passes do not free enough."`
	Style    SummaryStyle `mapstructure:"style" doc:"How the summary is asked for."`
	Validate bool         `mapstructure:"validate" doc:"Let the model check each summary for omissions; costs a second short call."`
	// TargetTokens is in tokens, 0 for a 32nd of the window between 500 and 1,000.
	TargetTokens int `mapstructure:"target_tokens" doc:"Length in tokens that the summary is asked to have; 0 for a 32nd of the window between 500 and 1000."`
	// MaxTokens is in tokens.
	MaxTokens int           `mapstructure:"max_tokens" doc:"Most tokens that the summary call may generate."`
	Timeout   time.Duration `mapstructure:"timeout" doc:"Longest time for one summary, from its request to its last token."`
	Model     string        `mapstructure:"model" doc:"Model that writes the summary; empty for the conversation's own."`
}

// State is the store on disk.
type State struct {
	// Path is a folder, "" for compactproxy's folder in the user's state directory.
	Path      string        `mapstructure:"path" doc:"Folder of the store; empty for the user's state directory."`
	Archive   bool          `mapstructure:"archive" doc:"Keep the originals that a compaction replaced, for recall."`
	Retention time.Duration `mapstructure:"retention" doc:"How long a conversation that is not used any more is kept."`
	MaxBytes  ByteSize      `mapstructure:"max_bytes" doc:"Size of the store above which the longest unused conversations go."`
}

// Log is the program's own log.
type Log struct {
	Level  LogLevel  `mapstructure:"level" doc:"Least severe messages that are logged."`
	Format LogFormat `mapstructure:"format" doc:"How a log line is written."`
}

// Default returns the configuration of a program started without any setting. It is valid.
// configs/compactproxy.yaml says for each value why it is the default.
func Default() Config {
	return Config{
		Listen: "127.0.0.1:8090",
		Admin:  "127.0.0.1:8091",
		Upstream: Upstream{
			URL: "http://127.0.0.1:8080",
		},
		Limits:    Limits{Body: 256 * MiB, Conversations: 10_000},
		Shutdown:  30 * time.Second,
		Keepalive: 60 * time.Second,
		Pin:       true,
		Pairing:   PairingRepair,
		Compaction: Compaction{
			Mode:         ModeOn,
			KeepRecent:   3,
			TailMin:      0.10,
			TailMax:      0.15,
			ThinChars:    240,
			Predictive:   true,
			ExactCount:   ExactCountAuto,
			CarriedState: true,
			LoopGuard:    LoopGuardOn,
			Summary: SummaryConfig{
				Enabled:   true,
				Style:     SummaryAuto,
				Validate:  true,
				MaxTokens: 8192,
				Timeout:   15 * time.Minute,
			},
		},
		State: State{Archive: true, Retention: 168 * time.Hour, MaxBytes: 2 * GiB},
		Log:   Log{Level: LogInfo, Format: LogConsole},
	}
}
