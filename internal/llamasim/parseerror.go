package llamasim

import (
	"bytes"
	"fmt"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// checkJSON is nil for valid JSON, otherwise an error in the words of the
// parser that llama-server is built with (nlohmann::json).
func checkJSON(text []byte) error {
	if jsontext.Value(text).IsValid(lenient) {
		return nil
	}
	p := jsonParser{text: text}
	if err := p.parse(); err != nil {
		return err
	}
	return p.failure("syntax error while parsing value - invalid literal")
}

// jsonParser walks broken JSON in the order the real parser does, to find the
// same first fault and name it the same way. It builds nothing.
type jsonParser struct {
	text []byte
	next int // index of the byte to read next

	line   int // lines before the current one
	column int // bytes read of the current line, an end of input counted as one

	// What was read since the last string or number began: the "last read" of
	// error messages, faithfully odd.
	lastRead []byte
	token    jsonToken
	problem  string // what is wrong with a tokenBroken
}

// jsonToken is a lexical token; its text is how error messages call it.
type jsonToken string

const (
	tokenBroken      jsonToken = "<parse error>"
	tokenEnd         jsonToken = "end of input"
	tokenString      jsonToken = "string literal"
	tokenNumber      jsonToken = "number literal"
	tokenTrue        jsonToken = "true literal"
	tokenFalse       jsonToken = "false literal"
	tokenNull        jsonToken = "null literal"
	tokenBeginArray  jsonToken = "'['"
	tokenBeginObject jsonToken = "'{'"
	tokenEndArray    jsonToken = "']'"
	tokenEndObject   jsonToken = "'}'"
	tokenColon       jsonToken = "':'"
	tokenComma       jsonToken = "','"
	anyValue         jsonToken = "'[', '{', or a literal"
)

// parse returns the first fault, or nil.
func (p *jsonParser) parse() error {
	var inArray []bool // one for each open array (true) or object
	p.scan()
	for {
		switch p.token {
		case tokenBeginObject:
			if p.scan(); p.token == tokenEndObject {
				break
			}
			if err := p.memberName(); err != nil {
				return err
			}
			inArray = append(inArray, false)
			p.scan()
			continue
		case tokenBeginArray:
			if p.scan(); p.token == tokenEndArray {
				break
			}
			inArray = append(inArray, true)
			continue
		case tokenString, tokenNumber, tokenTrue, tokenFalse, tokenNull:
		case tokenBroken:
			return p.syntaxError("value", "")
		case tokenEnd:
			if len(p.text) == 0 {
				return p.failure("attempting to parse an empty input; check that your input string or stream contains the expected JSON")
			}
			return p.syntaxError("value", anyValue)
		default:
			return p.syntaxError("value", anyValue)
		}
		for valueFollows := false; !valueFollows; {
			if len(inArray) == 0 {
				if p.scan(); p.token != tokenEnd {
					return p.syntaxError("value", tokenEnd)
				}
				return nil
			}
			p.scan()
			switch array := inArray[len(inArray)-1]; {
			case p.token == tokenComma && array:
				p.scan()
				valueFollows = true
			case p.token == tokenComma:
				p.scan()
				if err := p.memberName(); err != nil {
					return err
				}
				p.scan()
				valueFollows = true
			case array && p.token == tokenEndArray, !array && p.token == tokenEndObject:
				inArray = inArray[:len(inArray)-1]
			case array:
				return p.syntaxError("array", tokenEndArray)
			default:
				return p.syntaxError("object", tokenEndObject)
			}
		}
	}
}

// memberName checks for a name, the current token, and the colon after it.
func (p *jsonParser) memberName() error {
	if p.token != tokenString {
		return p.syntaxError("object key", tokenString)
	}
	if p.scan(); p.token != tokenColon {
		return p.syntaxError("object separator", tokenColon)
	}
	return nil
}

func (p *jsonParser) syntaxError(context string, expected jsonToken) error {
	what := "unexpected " + string(p.token)
	if p.token == tokenBroken {
		what = p.problem + "; last read: '" + printable(p.lastRead) + "'"
	}
	if expected != "" {
		what += "; expected " + string(expected)
	}
	return p.failure("syntax error while parsing " + context + " - " + what)
}

func (p *jsonParser) failure(what string) error {
	return fmt.Errorf("[json.exception.parse_error.101] parse error at line %d, column %d: %s", p.line+1, p.column, what)
}

// printable writes control characters as the real parser does.
func printable(text []byte) string {
	var b bytes.Buffer
	for _, c := range text {
		if c < 0x20 {
			fmt.Fprintf(&b, "<U+%04X>", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

const endOfInput = -1

// get reads a byte, or endOfInput.
func (p *jsonParser) get() int {
	p.column++
	if p.next >= len(p.text) {
		p.next++
		return endOfInput
	}
	c := p.text[p.next]
	p.next++
	p.lastRead = append(p.lastRead, c)
	if c == '\n' {
		p.line++
		p.column = 0
	}
	return int(c)
}

// unget takes back the byte that get returned last.
func (p *jsonParser) unget() {
	p.next--
	if p.column > 0 {
		p.column--
	} else if p.line > 0 {
		p.line--
	}
	if p.next < len(p.text) && len(p.lastRead) > 0 {
		p.lastRead = p.lastRead[:len(p.lastRead)-1]
	}
}

// restart makes c, just read, the first of what was last read.
func (p *jsonParser) restart(c int) { p.lastRead = append(p.lastRead[:0], byte(c)) }

// scan reads the next token.
func (p *jsonParser) scan() {
	if p.next == 0 {
		p.text = bytes.TrimPrefix(p.text, []byte("\xef\xbb\xbf"))
	}
	c := p.get()
	for c == ' ' || c == '\t' || c == '\n' || c == '\r' {
		c = p.get()
	}
	switch c {
	case '[':
		p.token = tokenBeginArray
	case ']':
		p.token = tokenEndArray
	case '{':
		p.token = tokenBeginObject
	case '}':
		p.token = tokenEndObject
	case ':':
		p.token = tokenColon
	case ',':
		p.token = tokenComma
	case 't':
		p.literal("true", tokenTrue)
	case 'f':
		p.literal("false", tokenFalse)
	case 'n':
		p.literal("null", tokenNull)
	case '"':
		p.restart(c)
		p.str()
	case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		p.restart(c)
		p.number(c)
	case 0, endOfInput:
		p.token = tokenEnd
	default:
		p.broken("invalid literal")
	}
}

func (p *jsonParser) broken(problem string) {
	p.token, p.problem = tokenBroken, problem
}

func (p *jsonParser) literal(word string, token jsonToken) {
	for i := 1; i < len(word); i++ {
		if p.get() != int(word[i]) {
			p.broken("invalid literal")
			return
		}
	}
	p.token = token
}

// str reads a string whose opening quote was read.
func (p *jsonParser) str() {
	for {
		c := p.get()
		switch {
		case c == endOfInput:
			p.broken("invalid string: missing closing quote")
			return
		case c == '"':
			p.token = tokenString
			return
		case c == '\\':
			if problem := p.escape(); problem != "" {
				p.broken("invalid string: " + problem)
				return
			}
		case c < 0x20:
			p.broken("invalid string: " + controlProblem(c))
			return
		case c >= utf8.RuneSelf:
			if !p.restOfRune(c) {
				p.broken("invalid string: ill-formed UTF-8 byte")
				return
			}
		}
	}
}

var controlNames = [...]string{
	"NUL", "SOH", "STX", "ETX", "EOT", "ENQ", "ACK", "BEL", "BS", "HT", "LF", "VT", "FF", "CR", "SO", "SI",
	"DLE", "DC1", "DC2", "DC3", "DC4", "NAK", "SYN", "ETB", "CAN", "EM", "SUB", "ESC", "FS", "GS", "RS", "US",
}

var shortEscapes = map[int]string{'\b': `\b`, '\t': `\t`, '\n': `\n`, '\f': `\f`, '\r': `\r`}

func controlProblem(c int) string {
	problem := fmt.Sprintf("control character U+%04X (%s) must be escaped to \\u%04X", c, controlNames[c], c)
	if short, ok := shortEscapes[c]; ok {
		problem += " or " + short
	}
	return problem
}

// escape reads what follows a backslash and says what is wrong with it.
func (p *jsonParser) escape() string {
	const (
		badHex       = `'\u' must be followed by 4 hex digits`
		badSurrogate = `surrogate U+D800..U+DBFF must be followed by U+DC00..U+DFFF`
	)
	switch p.get() {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return ""
	case 'u':
	default:
		return "forbidden character after backslash"
	}
	r := p.hex4()
	switch {
	case r < 0:
		return badHex
	case r >= 0xDC00 && r <= 0xDFFF:
		return "surrogate U+DC00..U+DFFF must follow U+D800..U+DBFF"
	case r < 0xD800 || r > 0xDBFF:
		return ""
	}
	if p.get() != '\\' || p.get() != 'u' {
		return badSurrogate
	}
	switch low := p.hex4(); {
	case low < 0:
		return badHex
	case low < 0xDC00 || low > 0xDFFF:
		return badSurrogate
	}
	return ""
}

func (p *jsonParser) hex4() int {
	r := 0
	for range 4 {
		c := p.get()
		switch {
		case c >= '0' && c <= '9':
			r = r<<4 | (c - '0')
		case c >= 'a' && c <= 'f':
			r = r<<4 | (c - 'a' + 10)
		case c >= 'A' && c <= 'F':
			r = r<<4 | (c - 'A' + 10)
		default:
			return -1
		}
	}
	return r
}

// restOfRune reads the bytes that must follow the first of a rune.
func (p *jsonParser) restOfRune(first int) bool {
	encoded := []byte{byte(first)}
	for !utf8.FullRune(encoded) {
		c := p.get()
		if c == endOfInput {
			return false
		}
		encoded = append(encoded, byte(c))
	}
	r, size := utf8.DecodeRune(encoded)
	return size == len(encoded) && r != utf8.RuneError
}

// number reads a number whose first byte was read.
func (p *jsonParser) number(c int) {
	if c == '-' {
		if c = p.get(); !isDigit(c) {
			p.broken("invalid number; expected digit after '-'")
			return
		}
	}
	if c == '0' {
		c = p.get()
	} else {
		c = p.digits()
	}
	if c == '.' {
		if c = p.get(); !isDigit(c) {
			p.broken("invalid number; expected digit after '.'")
			return
		}
		c = p.digits()
	}
	if c == 'e' || c == 'E' {
		signed := false
		if c = p.get(); c == '+' || c == '-' {
			signed = true
			c = p.get()
		}
		switch {
		case isDigit(c):
			p.digits()
		case signed:
			p.broken("invalid number; expected digit after exponent sign")
			return
		default:
			p.broken("invalid number; expected '+', '-', or digit after exponent")
			return
		}
	}
	p.unget()
	p.token = tokenNumber
}

// digits reads to the first byte that is none, and returns that.
func (p *jsonParser) digits() int {
	c := p.get()
	for isDigit(c) {
		c = p.get()
	}
	return c
}

func isDigit(c int) bool { return c >= '0' && c <= '9' }
