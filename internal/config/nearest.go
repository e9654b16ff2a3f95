package config

import (
	"slices"
	"strings"
)

// Nearest returns the candidate that word is most likely a misspelling of, "" where none is close. Case,
// hyphens, underscores and dots do not count.
func Nearest(word string, candidates []string) string {
	word = bare(word)
	limit := (len(word) + 2) / 3
	best, bestCost := "", 2*limit+1
	for _, c := range candidates {
		cost := 2 * distance(word, bare(c))
		if cost > 0 && strings.HasPrefix(bare(c), word) {
			cost-- // of two that are equally far, the one that was only broken off
		}
		if cost < bestCost {
			best, bestCost = c, cost
		}
	}
	return best
}

var separators = strings.NewReplacer("-", "", "_", "", ".", "")

func bare(word string) string { return strings.ToLower(separators.Replace(word)) }

// distance counts the letters to insert, delete, replace or swap with a neighbour to turn a into b.
func distance(a, b string) int {
	x, y := []rune(a), []rune(b)
	before, row, next := make([]int, len(y)+1), make([]int, len(y)+1), make([]int, len(y)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(x); i++ {
		next[0] = i
		for j := 1; j <= len(y); j++ {
			replace := row[j-1]
			if x[i-1] != y[j-1] {
				replace++
			}
			next[j] = min(replace, row[j]+1, next[j-1]+1)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				next[j] = min(next[j], before[j-2]+1)
			}
		}
		before, row, next = row, next, before
	}
	return row[len(y)]
}

// suggest returns the keys that an unknown name in a section may have meant. Prefix is the section as
// messages spell it, "" or ending in a dot.
func suggest(name, prefix string, section []*field) []string {
	var found, siblings []string
	for _, f := range section {
		siblings = append(siblings, f.name)
	}
	if near := Nearest(name, siblings); near != "" {
		found = append(found, prefix+near)
		if bare(near) == bare(name) {
			return found // only its spelling differs
		}
	}
	var all, last []string
	for _, key := range keys() {
		if strings.Contains(key.Name, "[]") {
			continue
		}
		all = append(all, key.Name)
		last = append(last, key.Name[strings.LastIndexByte(key.Name, '.')+1:])
	}
	for i, l := range last {
		if bare(l) == bare(name) && !slices.Contains(found, all[i]) {
			found = append(found, all[i])
		}
	}
	if len(found) == 0 {
		if near := Nearest(prefix+name, all); near != "" {
			found = append(found, near)
		} else if near := Nearest(name, last); near != "" {
			found = append(found, all[slices.Index(last, near)])
		}
	}
	return found
}
