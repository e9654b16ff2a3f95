package store

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestSearchable(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"plain", `a\nb`, `a\nb`},
		{"JSON without escapes", `{"a":"b"}`, `{"a":"b"}`},
		{"arguments", `{"path":"a.go","n":[1.50,true,null],"content":"x\n\ty"}`, "path\na.go\nn\n1.50\ncontent\nx\n\ty\n"},
		{"cut off", `{"path":"a\tb","content":"x\n`, "path\na\tb\ncontent\n" + `"x\n`},
		{"no JSON", `[INFO] C:\new`, `INFO] C:\new`},
		{"two values", ` ["a\nb"] {"c":1} `, "a\nb\nc\n1\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := string(searchable([]byte(test.text)))
			if strings.TrimSpace(got) != strings.TrimSpace(test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func FuzzSearchable(f *testing.F) {
	for _, s := range []string{``, `{`, `[1,"\u0000"`, `{"a":"\n"}x`, "\"\\n\xff\"", `[[[["\\`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, p := range appendPieces(nil, 1, searchable(text)) {
			if !utf8.ValidString(p.content) || strings.Contains(p.content, "\x00") {
				t.Errorf("%q", p.content)
			}
		}
	})
}
