package config

// enum is what the types with a fixed set of values have in common: the schema, the help and
// [Config.Validate] learn the set from it.
type enum interface{ options() []string }

// Mode says whether conversations are compacted.
type Mode string

// Values of [Mode].
const (
	ModeOn      Mode = "on"
	ModeObserve Mode = "observe" // decide and report, but forward what the client sent
	ModeOff     Mode = "off"     // no proxy at all: every byte as it came
)

func (Mode) options() []string { return list(ModeOn, ModeObserve, ModeOff) }

// Pairing says what happens to a history whose tool calls and results do not match.
type Pairing string

// Values of [Pairing].
const (
	PairingRepair Pairing = "repair"
	PairingReject Pairing = "reject" // answer 400 invalid_tool_pairing
	PairingOff    Pairing = "off"    // forward it as it is
)

func (Pairing) options() []string { return list(PairingRepair, PairingReject, PairingOff) }

// ExactCount says whether the server is asked to count tokens.
type ExactCount string

// Values of [ExactCount].
const (
	ExactCountAuto  ExactCount = "auto" // where it can and where arithmetic will not do
	ExactCountNever ExactCount = "never"
)

func (ExactCount) options() []string { return list(ExactCountAuto, ExactCountNever) }

// LoopGuard says what happens when a model repeats itself after a compaction.
type LoopGuard string

// Values of [LoopGuard].
const (
	LoopGuardOn     LoopGuard = "on"     // a notice first, then 400 loop_detected
	LoopGuardStrict LoopGuard = "strict" // 400 loop_detected at once
	LoopGuardNotice LoopGuard = "notice" // a notice, never stopped
	LoopGuardOff    LoopGuard = "off"
)

func (LoopGuard) options() []string {
	return list(LoopGuardOn, LoopGuardStrict, LoopGuardNotice, LoopGuardOff)
}

// SummaryStyle says how a summary is asked for.
type SummaryStyle string

// Values of [SummaryStyle].
const (
	SummaryAuto   SummaryStyle = "auto"   // extend, and prose where that does not work
	SummaryExtend SummaryStyle = "extend" // on top of the prompt that the server has cached
	SummaryProse  SummaryStyle = "prose"  // of the old turns written out as text
)

func (SummaryStyle) options() []string { return list(SummaryAuto, SummaryExtend, SummaryProse) }

// LogLevel is the least severe level that is logged, by zap's names.
type LogLevel string

// Values of [LogLevel].
const (
	LogDebug LogLevel = "debug"
	LogInfo  LogLevel = "info"
	LogWarn  LogLevel = "warn"
	LogError LogLevel = "error"
)

func (LogLevel) options() []string { return list(LogDebug, LogInfo, LogWarn, LogError) }

// LogFormat is the form of a log line.
type LogFormat string

// Values of [LogFormat].
const (
	LogConsole LogFormat = "console"
	LogJSON    LogFormat = "json"
)

func (LogFormat) options() []string { return list(LogConsole, LogJSON) }

func list[T ~string](values ...T) []string {
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i] = string(v)
	}
	return texts
}
