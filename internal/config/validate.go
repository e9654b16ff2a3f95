package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"
)

// Validate returns everything that is wrong with the configuration as [Problems], nil where it can be used.
// It looks at the values alone: whether the server answers or the folder is writable shows later.
func (c Config) Validate() error { return c.problems().err() }

func (c Config) problems() Problems {
	var k checker

	k.address("listen", c.Listen)
	k.address("admin", c.Admin)
	if sameListener(c.Listen, c.Admin) {
		k.add("admin", "needs an address of its own, listen has this one", quote(c.Admin), "use another port")
	}
	if c.AdminToken == "" && checkAddress("admin", c.Admin) == nil && !Loopback(c.Admin) {
		k.add("admin_token", fmt.Sprintf("is required, because admin %s is not on loopback and shows transcripts", c.Admin), `""`,
			"set a token, or set admin to 127.0.0.1:8091")
	}
	k.secret("admin_token", c.AdminToken)
	for i, key := range c.APIKeys {
		name := fmt.Sprintf("api_keys[%d]", i)
		if key == "" {
			k.add(name, "must not be empty", `""`, "give it a key, or delete it: with api_keys: [] every client is let in")
		}
		k.secret(name, key)
	}
	c.Upstream.check(&k, c.Listen, c.Admin)
	checkModels(&k, c.Models)
	k.positive("limits.body", c.Limits.Body)
	k.positive("limits.conversations", c.Limits.Conversations)
	k.notNegative("shutdown", c.Shutdown, "0s stops at once")
	k.notNegative("image_tokens", c.ImageTokens, "0 learns the cost of an image")
	k.notNegative("keepalive", c.Keepalive, "0s never sends one")
	k.option("pairing", c.Pairing)
	c.Compaction.check(&k)
	c.State.check(&k)
	k.option("log.level", c.Log.Level)
	k.option("log.format", c.Log.Format)
	return k.problems
}

func (u Upstream) check(k *checker, listen, admin string) {
	if _, problem := normalise(u.URL); problem != nil {
		k.problems = append(k.problems, problem)
	} else if root, err := u.Root(); err == nil {
		for _, own := range []struct{ key, addr string }{{"listen", listen}, {"admin", admin}} {
			if reaches(root, own.addr) {
				k.add("upstream.url", fmt.Sprintf("leads back to the proxy itself: it is the %s address %s", own.key, own.addr), quote(maskURL(u.URL)),
					"give the address of the server, or move "+own.key)
			}
		}
	}
	k.secret("upstream.api_key", u.APIKey)
	k.notNegative("upstream.timeout", u.Timeout, "0s waits without end")
	k.notNegative("upstream.context_window", u.ContextWindow, "0 asks the server")
}

func checkModels(k *checker, models []Model) {
	first := map[string]int{}
	for i, m := range models {
		at := fmt.Sprintf("models[%d]", i)
		k.uniqueName(at, m.Name, first, i, "the model's name as requests spell it")
		k.notNegative(at+".context_window", m.ContextWindow, "0 stands for upstream.context_window")
		k.notNegative(at+".at_tokens", m.AtTokens, "0 stands for compaction.at_tokens")
	}
}

func (c Compaction) check(k *checker) {
	k.option("compaction.mode", c.Mode)
	if x := c.Threshold; x.Explicit && !(x.Value > 0 && x.Value <= 1) {
		k.add("compaction.threshold", "must be auto, or a fraction of the window above 0 and up to 1", x.String(), percent(x.Value, "write auto or a fraction such as 0.8"))
	}
	k.notNegative("compaction.at_tokens", c.AtTokens, "0 leaves it to compaction.threshold")
	if x := c.Settle; x.Explicit && !(x.Value >= 0 && x.Value <= 1) {
		k.add("compaction.settle", "must be auto, or a fraction of the threshold from 0 to 1", x.String(), percent(x.Value, "write auto or a fraction such as 0.8"))
	}
	if c.KeepRecent < 1 {
		k.add("compaction.keep_recent", "must be at least 1", fmt.Sprint(c.KeepRecent), "the newest turn is always kept")
	}
	tails := true
	for _, tail := range []struct {
		key   string
		value float64
	}{{"compaction.tail_min", c.TailMin}, {"compaction.tail_max", c.TailMax}} {
		if !(tail.value >= 0 && tail.value <= 1) {
			tails = false
			k.add(tail.key, "must be a fraction of the window from 0 to 1", formatNumber(tail.value), percent(tail.value, "write a fraction such as 0.15"))
		}
	}
	if tails && c.TailMin > c.TailMax {
		k.add("compaction.tail_min", "must not be above compaction.tail_max, which is "+formatNumber(c.TailMax), formatNumber(c.TailMin), "lower it, or raise compaction.tail_max")
	}
	k.positive("compaction.thin_chars", c.ThinChars)
	k.option("compaction.exact_count", c.ExactCount)
	k.option("compaction.loop_guard", c.LoopGuard)
	checkTools(k, c.Tools)

	s := c.Summary
	k.option("compaction.summary.style", s.Style)
	k.notNegative("compaction.summary.target_tokens", s.TargetTokens, "0 leaves it to the window")
	k.positive("compaction.summary.max_tokens", s.MaxTokens)
	if s.MaxTokens > 0 && s.TargetTokens > s.MaxTokens {
		k.add("compaction.summary.target_tokens", fmt.Sprintf("must not be above compaction.summary.max_tokens, which is %d", s.MaxTokens),
			fmt.Sprint(s.TargetTokens), "lower it, or raise compaction.summary.max_tokens")
	}
	k.positive("compaction.summary.timeout", s.Timeout)
}

func checkTools(k *checker, tools []Tool) {
	first := map[string]int{}
	for i, t := range tools {
		at := fmt.Sprintf("compaction.tools[%d]", i)
		k.uniqueName(at, t.Name, first, i, "the tool's name as calls spell it")
		if t.Kind != "" {
			k.option(at+".kind", t.Kind)
		}
		t.check(k, at)
	}
}

func (t Tool) check(k *checker, at string) {
	if strings.Contains(t.Name, "*") {
		k.add(at+".name", "is a pattern", quote(t.Name), "write one entry for each tool")
	}
	if says := len(t.Path) + len(t.Range) + len(t.Errors) + len(t.Refusals) + len(t.Kind) + len(t.Command); says == 0 {
		k.add(at, "says nothing about the tool", quote(t.Name), "give it a kind, errors or refusals")
	}
	for _, arg := range []struct {
		key   string
		names []string
		kinds []ToolKind // that have a use for it
	}{
		{"path", t.Path, []ToolKind{ToolRead, ToolWrite, ToolEdit}},
		{"range", t.Range, []ToolKind{ToolRead}},
		{"command", nonEmpty(t.Command), []ToolKind{ToolShell}},
	} {
		decided := t.Kind != "" && t.Kind != ToolUntrusted
		if decided && len(arg.names) > 0 && !slices.Contains(arg.kinds, t.Kind) {
			k.add(at+"."+arg.key, "has a meaning only for kind "+choice(list(arg.kinds...)), quote(strings.Join(arg.names, ", ")), "delete it, or set that kind")
		}
		for i, name := range arg.names {
			if strings.TrimSpace(name) != name || name == "" {
				key := fmt.Sprintf("%s.%s[%d]", at, arg.key, i)
				if arg.key == "command" {
					key = at + ".command"
				}
				k.add(key, "is not the name of an argument", quote(name), "write it as the tool's schema spells it")
			}
		}
	}
	k.wordings(at+".errors", t.Errors)
	k.wordings(at+".refusals", t.Refusals)
}

func nonEmpty(text string) []string {
	if text == "" {
		return nil
	}
	return []string{text}
}

func (s State) check(k *checker) {
	if s.Path == "~" || strings.HasPrefix(s.Path, "~/") {
		k.add("state.path", "begins with ~, which is not expanded here", quote(s.Path), "write the whole path, or leave it empty for the user's state directory")
	}
	if strings.ContainsRune(s.Path, 0) {
		k.add("state.path", "holds a zero byte", quote(s.Path), "delete it")
	}
	k.positive("state.retention", s.Retention)
	k.positive("state.max_bytes", s.MaxBytes)
}

// checker collects problems.
type checker struct{ problems Problems }

func (k *checker) add(key, text, got, fix string) {
	k.problems = append(k.problems, &Problem{Key: key, Text: text, Got: got, Fix: fix})
}

func (k *checker) address(key, addr string) {
	if problem := checkAddress(key, addr); problem != nil {
		k.problems = append(k.problems, problem)
	}
}

// secret refuses what cannot be sent in an Authorization header, such as the line break at the end of a
// secret that was read from a file, and a mask copied from the effective configuration.
func (k *checker) secret(key string, s Secret) {
	text := s.Reveal()
	switch {
	case text == secretMask:
		k.add(key, "is the mask that stands for a secret", quote(secretMask), "put the secret itself there")
	case strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }):
		k.add(key, "holds a space, a line break or a character that is not ASCII, which a header cannot carry", secretMask, "delete it; a secret read from a file often ends in a line break")
	}
}

func (k *checker) option(key string, value enum) {
	text := reflect.ValueOf(value).String()
	for _, o := range value.options() {
		if text == o {
			return
		}
	}
	fix := ""
	if near := Nearest(text, value.options()); near != "" {
		fix = "did you mean " + near + "?"
	}
	k.add(key, "must be "+choice(value.options()), quote(text), fix)
}

func (k *checker) positive(key string, value any) {
	if number(value) <= 0 {
		k.add(key, "must be above 0", show(value), "the default is "+defaultOf(key))
	}
}

func (k *checker) notNegative(key string, value any, zero string) {
	if number(value) < 0 {
		k.add(key, "must not be negative", show(value), zero)
	}
}

func (k *checker) uniqueName(at, name string, first map[string]int, i int, what string) {
	if strings.TrimSpace(name) == "" {
		k.add(at+".name", "must not be empty", quote(name), "write "+what)
		return
	}
	if strings.TrimSpace(name) != name || strings.ContainsFunc(name, unicode.IsControl) {
		k.add(at+".name", "has spaces around it or a control character in it", quote(name), "write "+what)
	}
	if earlier, twice := first[name]; twice {
		k.add(at+".name", fmt.Sprintf("is the name of entry [%d] already", earlier), quote(name), "put both into one entry")
		return
	}
	first[name] = i
}

func (k *checker) wordings(key string, texts []string) {
	for i, text := range texts {
		if strings.TrimSpace(text) == "" {
			k.add(fmt.Sprintf("%s[%d]", key, i), "must not be empty, it would match every result", quote(text), "write the words such a result begins with")
		}
	}
}

func number(value any) int64 { return reflect.ValueOf(value).Int() }

func show(value any) string { return scalar(reflect.ValueOf(value)) }

func defaultOf(key string) string {
	k, _ := Lookup(key)
	return k.Default
}

// percent replaces a fix where a fraction was probably meant as a percentage.
func percent(x float64, fix string) string {
	if x >= 2 && x <= 100 {
		return "for " + formatNumber(x) + " percent write " + formatNumber(x/100)
	}
	return fix
}

// formatDuration writes a duration without the zero units that Go puts at its end: 168h for 168h0m0s.
func formatDuration(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
