package agents

import "strings"

// patchTargets reads the file headers of a patch in the form that codex made
// common: a file that is added is written whole, every other one is edited. A
// patch without a header that we know touches nothing that we can name.
func patchTargets(patch string) []Target {
	var out []Target
	for line := range strings.Lines(patch) {
		line = strings.TrimRight(line, "\r\n")
		for _, h := range patchHeaders {
			rest, ok := strings.CutPrefix(line, h.prefix)
			if !ok {
				continue
			}
			path, ok := cleanPath(strings.TrimSpace(rest))
			if !ok {
				return nil
			}
			t := Target{Kind: h.kind, Path: path}
			if h.kind == FullWrite {
				t.Key = fileKey(path, "")
			}
			out = append(out, t)
		}
	}
	return out
}

var patchHeaders = []struct {
	prefix string
	kind   TargetKind
}{
	{"*** Add File: ", FullWrite},
	{"*** Update File: ", Edit},
	{"*** Delete File: ", Edit},
	{"*** Move to: ", Edit},
}
