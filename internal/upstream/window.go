package upstream

// A Source says where a window was read.
type Source uint8

const (
	// Nowhere: the window is not known.
	Nowhere Source = iota
	// Configured: the user's own number.
	Configured
	// Refused: a refusal named it.
	Refused
	// Props: llama-server's /props, per slot.
	Props
	// Models: the list of models.
	Models
)

var sourceNames = [...]string{"nowhere", "configuration", "refusal", "props", "models"}

// String returns the source in the form used in logs.
func (s Source) String() string {
	if int(s) < len(sourceNames) {
		return sourceNames[s]
	}
	return "source"
}

// A Window is how many tokens input and output share, for one model and one slot.
type Window struct {
	Model  string // as the server calls it; as it was asked for where the server does not list it
	Tokens int    // 0: not known
	Source Source
}

// Capped says that a configured window was not believed, because the server has shown a smaller one.
type Capped struct {
	Model      string
	Configured int
	Shown      int
	Source     Source // of Shown
}

// window decides between what is configured and what was shown. Whatever is configured, the server
// refuses beyond what it has.
func window(configured int, shown Window) (Window, *Capped) {
	switch {
	case configured <= 0:
		return shown, nil
	case shown.Tokens > 0 && configured > shown.Tokens:
		return shown, &Capped{Model: shown.Model, Configured: configured, Shown: shown.Tokens, Source: shown.Source}
	}
	return Window{Model: shown.Model, Tokens: configured, Source: Configured}, nil
}
