package llamasim

import (
	"strings"
	"testing"
)

func TestCheckJSON_Wording(t *testing.T) {
	const prefix = "[json.exception.parse_error.101] parse error at line "
	for _, c := range []struct{ name, text, want string }{
		// The first three are captured.
		{"empty", ``, "1, column 1: attempting to parse an empty input; check that your input string or stream contains the expected JSON"},
		{"unfinished array", `{"messages": [`, "1, column 15: syntax error while parsing value - unexpected end of input; expected '[', '{', or a literal"},
		{"no key", `{not json`, "1, column 3: syntax error while parsing object key - invalid literal; last read: '{no'; expected string literal"},

		{"unfinished string", `{"cmd": "cat a`, "1, column 15: syntax error while parsing value - invalid string: missing closing quote; last read: '\"cat a'"},
		{"unfinished object", `{"n": 1`, "1, column 8: syntax error while parsing object - unexpected end of input; expected '}'"},
		{"unfinished list", `[1, 2`, "1, column 6: syntax error while parsing array - unexpected end of input; expected ']'"},
		{"no colon", `{"n" 1}`, "1, column 6: syntax error while parsing object separator - unexpected number literal; expected ':'"},
		{"line break in a string", "{\n\"a\": \"b\n\"}", "3, column 0: syntax error while parsing value - invalid string: control character U+000A (LF) must be escaped to \\u000A or \\n; last read: '\"b<U+000A>'"},
		{"trailing text", `{} {}`, "1, column 4: syntax error while parsing value - unexpected '{'; expected end of input"},
		{"comma before the end", `[1,]`, "1, column 4: syntax error while parsing value - unexpected ']'; expected '[', '{', or a literal"},
		{"bad escape", `"\x"`, "1, column 3: syntax error while parsing value - invalid string: forbidden character after backslash; last read: '\"\\x'"},
		{"bad number", `-x`, "1, column 2: syntax error while parsing value - invalid number; expected digit after '-'; last read: '-x'"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := checkJSON([]byte(c.text)); err == nil || err.Error() != prefix+c.want {
				t.Errorf("got  %v\nwant %s%s", err, prefix, c.want)
			}
		})
	}
	if err := checkJSON([]byte(`{"a": [1, -2.5e+3, "\u00e9\ud83d\ude00", true, null, {}], "a": {}}`)); err != nil {
		t.Error(err)
	}
}

// The parser made for wording errors agrees with the one that finds them.
func FuzzCheckJSON(f *testing.F) {
	for _, seed := range []string{`{"a":[1,2.5e-3,"\u00e9",true,false,null,{}]}`, `[[],{"b":""}]`, `-0`, `"\ud83d\ude00"`, `{"a":1,"a":2}`, `nul`, `1.`, "\"\xff\""} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if strings.Contains(string(text), "\x00") || strings.HasPrefix(string(text), "\xef\xbb\xbf") {
			return // an end of input and a byte order mark to the real parser
		}
		p := jsonParser{text: text}
		found, valid := p.parse(), isValid(text)
		if valid != (found == nil) {
			t.Errorf("%q: valid %t, found %v", text, valid, found)
		}
	})
}
