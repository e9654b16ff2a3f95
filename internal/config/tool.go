package config

// Tool is what the user tells the proxy about one tool, on top of the built-in table.
//
// An entry for a tool that the table knows changes what it says: what is left out stays, Path, Range and
// Command replace, Errors and Refusals are added. A kind says what the tool is from scratch. A tool that the
// table does not know is [ToolOther] unless its entry says more.
//
// Path, Range and Command are names of arguments of the tool's call. Where they are left out and the table has
// none, the usual names are tried (path, file_path, offset, limit, command and the like).
type Tool struct {
	// Name is compared with a call's tool name as it is: case counts, and there are no patterns.
	Name string   `mapstructure:"name" doc:"The tool's name, exactly as calls spell it."`
	Kind ToolKind `mapstructure:"kind" doc:"What the tool does; left out, the built-in table decides."`
	// Path is for the kinds read, write and edit. Several names allow for several versions of a client;
	// where a call has more than one of them they must agree.
	Path []string `mapstructure:"path" doc:"Arguments that hold the file's path; for read, write and edit."`
	// Range is for the kind read: a call with any of these arguments reads a part of the file, and
	// only the same part again supersedes it.
	Range []string `mapstructure:"range" doc:"Arguments that select a part of the file; for read."`
	// Command is for the kind shell: the argument with the command line.
	Command string `mapstructure:"command" doc:"Argument that holds the command line; for shell."`
	// Errors are plain texts, no patterns, compared with the start of a result and of its last
	// line. A result that matches is a failure.
	Errors []string `mapstructure:"errors" doc:"Texts at the start of a failed result, or of its last line."`
	// Refusals are plain texts, compared like Errors. A result that matches was declined by a person or a policy: it
	// is never rewritten and never counts as a failure.
	Refusals []string `mapstructure:"refusals" doc:"Texts at the start of a declined call's result, or of its last line."`
}

// ToolKind says what a tool does, and so what may supersede its results.
type ToolKind string

// Values of [ToolKind]. The empty kind leaves it to the built-in table.
const (
	ToolRead        ToolKind = "read"        // the result is the file at Path, or the part that Range selects
	ToolWrite       ToolKind = "write"       // the call replaces the whole file at Path
	ToolEdit        ToolKind = "edit"        // the call changes a part of the file at Path
	ToolShell       ToolKind = "shell"       // the result is the output of Command; simple reads are recognised in it
	ToolState       ToolKind = "state"       // the newest call is a plan or todo list, carried over a compaction
	ToolIncremental ToolKind = "incremental" // the result is what is new since the last call: supersedes nothing
	ToolList        ToolKind = "list"        // the result is matches, names or pages, not one file
	ToolUntrusted   ToolKind = "untrusted"   // the result is other people's text: taints; its kind is left to the table
	ToolOther       ToolKind = "other"       // only the same call with the same arguments supersedes
)

func (ToolKind) options() []string {
	return list(ToolRead, ToolWrite, ToolEdit, ToolShell, ToolState, ToolIncremental, ToolList, ToolUntrusted, ToolOther)
}
