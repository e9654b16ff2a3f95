package store

import (
	"bytes"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/compactproxy/compactproxy/internal/conversation"
	"github.com/compactproxy/compactproxy/internal/recording"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

// nasty are messages that are easily stored as something else.
var nasty = []string{
	`{}`,
	`{ }`,
	`{"role":"user"}`,
	`{"role":"user","content":null}`,
	`{"role":"user","content":""}`,
	`{"role":"user","content":[]}`,
	"{\n\t\"role\" : \"user\" ,\r\n \"content\" : \"spaced  out\" \n}",
	`{"role":"user","content":"\u00e9\u0041\ud83d\ude00\"\\\/\b\f\n\r\t\u0000"}`,
	`{"role":"user","content":"lone \ud800 surrogate"}`,
	"{\"role\":\"user\",\"content\":\"not \xff\xfe UTF-8\"}",
	"{\"role\":\"user\",\"content\":\"not \\n \xff UTF-8\"}",
	`{"r\u006fle":"user","c\u006fntent":"escaped keys"}`,
	`{"content":"first","content":"second","role":"user","role":"assistant"}`,
	`{"role":"assistant","content":"a","content":[{"type":"text","text":"b","text":"c"}]}`,
	`{"role":"user","content":[{"type":"text","text":"one"},{"type":"text","text":""},{"type":"text","text":"one"}]}`,
	`{"role":"user","content":[{"type":"text","text":"see"},{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo="}}]}`,
	`{"role":"user","content":["bare",1,null,{"type":"odd","text":"x"}]}`,
	`{"role":"assistant","reasoning_content":"think","content":"say","reasoning":"more"}`,
	`{"role":"assistant","reasoning":"a","reasoning":"b","content":"c"}`,
	`{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"write","arguments":"{\"path\":\"a.go\",\"content\":\"package a\\n\\nfunc b() {}\\n\"}"}}]}`,
	`{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f","arguments":{"bare":["object","\n"]}}},{"id":"2","function":{"name":"f","arguments":"{\"cut off"}}]}`,
	`{"role":"assistant","tool_calls":[{"id":"1","type":"custom","custom":{"name":"x","input":"y"}}],"function_call":{"name":"old","arguments":"{}"}}`,
	`{"role":"tool","tool_call_id":"1","content":"{\"json\":[1,2.50,true,null,\"\\u00e9\"]}"}`,
	`{"role":"critic","content":"unknown role","n":1e400,"n":-0.0}`,
	`{"role":3,"content":4}`,
	`{"role":"tool","tool_call_id":"1","content":"` + strings.Repeat("long ", 20_000) + `"}`,
}

// recorded are the messages of our own sessions.
func recorded(t testing.TB) (messages []transcript.Message) {
	t.Helper()
	for _, name := range recording.Sessions() {
		session, err := recording.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		body, err := transcript.Parse(session.Request(session.Turns()-1, recording.Options{Model: "m"}))
		if err != nil {
			t.Fatal(err)
		}
		messages = append(messages, body.Messages...)
	}
	return messages
}

func TestCommit_OriginalsComeBackByteForByte(t *testing.T) {
	kinds(t, func(t *testing.T, dir string) {
		s := openStore(t, Options{Dir: dir, Archive: true, Report: func(e string) { t.Error(e) }})
		var messages []transcript.Message
		if dir != memory {
			messages = recorded(t)
		}
		for _, raw := range nasty {
			messages = append(messages, message(t, raw))
		}
		id := commit(t, s, "a", epoch, filed("a", 0, len(messages), "e", messages...))
		indexAll(t, s) // must cope with all of them
		detail, err := s.Compaction(id)
		if err != nil {
			t.Fatal(err)
		}
		if len(detail.Originals) != len(messages) {
			t.Fatalf("%d originals of %d", len(detail.Originals), len(messages))
		}
		for i := range messages {
			if want := messages[i].Raw(); !bytes.Equal(detail.Originals[i], want) {
				t.Errorf("message %d:\nwant %.300q\n got %.300q", i, want, detail.Originals[i])
			}
		}
		check(t, s)
	})
}

// What a text says is what package transcript says it says.
func TestDecode_AgreesWithTranscript(t *testing.T) {
	for _, raw := range nasty {
		m := message(t, raw)
		var texts []string
		for literal := range m.Literals {
			texts = append(texts, string(decode(literal)))
		}
		if len(m.Parts) == 1 && len(m.Calls) == 0 && m.Reasoning() == "" && m.Parts[0].Kind == transcript.TextPart {
			if got := strings.Join(texts, "\n"); got != m.Text() {
				t.Errorf("%.100s: decoded %.100q, transcript has %.100q", raw, got, m.Text())
			}
		}
		for i, c := range m.Calls {
			if c.Name != "" && string(c.Arguments) != texts[len(texts)-len(m.Calls)+i] {
				t.Errorf("%.100s: decoded %q, transcript has %q", raw, texts, c.Arguments)
			}
		}
	}
}

func TestCommit_TextsAreStoredOnce(t *testing.T) {
	s := archiveIn(t)
	text := strings.Repeat("what the file says\n", 100)
	var messages []transcript.Message
	for i := range 10 {
		messages = append(messages, result(t, fmt.Sprint("call-", i), text))
	}
	first := commit(t, s, "a", epoch, filed("a", 0, 10, "e", messages...))
	// Once more in another conversation, with one message that is new.
	second := commit(t, s, "b", epoch, filed("b", 0, 11, "e", append(messages, result(t, "call-10", text))...))
	for query, want := range map[string]int{
		"SELECT count(*) FROM texts": 1, "SELECT count(*) FROM messages": 11, "SELECT count(*) FROM originals": 21,
	} {
		if n := count(t, s, query); n != want {
			t.Errorf("%s = %d, want %d", query, n, want)
		}
	}
	for id, want := range map[int64]int{first: 10, second: 11} {
		if d, err := s.Compaction(id); err != nil || len(d.Originals) != want {
			t.Errorf("%d: %d originals, %v", id, len(d.Originals), err)
		}
	}
	sum := sha256.Sum256([]byte(text))
	if got, err := s.Text(hex.EncodeToString(sum[:])); err != nil || got != text {
		t.Errorf("Text = %.40q, %v", got, err)
	}
}

// A text that is deleted between the look for it and the transaction is stored all
// the same.
func TestCommit_TextGoesMeanwhile(t *testing.T) {
	s := archiveIn(t)
	m := result(t, "1", "text")
	commit(t, s, "a", epoch, filed("a", 0, 1, "e", m))
	row, err := s.prepareFiled(filed("b", 0, 2, "e", m, result(t, "2", "text")))
	if err != nil {
		t.Fatal(err)
	}
	if row.originals[0].shell != nil || row.originals[1].texts[0].packed != nil {
		t.Fatal("what is stored was packed")
	}
	if err := s.Forget("a"); err != nil {
		t.Fatal(err)
	}
	commit(t, s, "b", epoch, nil)
	var id int64
	tx, err := s.file.write.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if id, err = s.insertCheckpoint(tx, "b", row); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if d, err := s.Compaction(id); err != nil || len(d.Originals) != 2 || !bytes.Equal(d.Originals[0], m.Raw()) {
		t.Errorf("%q, %v", d.Originals, err)
	}
}

func FuzzCut(f *testing.F) {
	for _, raw := range nasty[:len(nasty)-1] {
		f.Add([]byte(raw))
	}
	p := newPacker()
	f.Cleanup(p.close)
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := transcript.ParseMessage(raw)
		if err != nil {
			return
		}
		c := cut(&m)
		parts := make([]part, len(c.parts))
		for i, part := range c.parts {
			literal, err := p.unpack(p.pack(part.literal))
			if err != nil {
				t.Fatal(err)
			}
			_ = searchable(decode(literal))
			parts[i] = part
			parts[i].literal = literal
		}
		got, err := join(c.shell, parts)
		if err != nil || !bytes.Equal(got, m.Raw()) {
			t.Errorf("%q became %q, %v", m.Raw(), got, err)
		}
	})
}

// Whatever is in the file, reading it gives a value or an error.
func FuzzStoredBytes(f *testing.F) {
	p := newPacker()
	f.Add([]byte{})
	f.Add([]byte{plain})
	f.Add([]byte{zipped})
	f.Add(p.pack([]byte(strings.Repeat("text ", 1000))))
	f.Add(p.pack([]byte(`"\ud800\"`)))
	f.Add([]byte("\x01\x28\xb5\x2f\xfd\xe0\xff\xff\xff\xff\xff\xff\xff\x00"))
	f.Add([]byte(`{"anchor":[1],"mark":{"chain":"AA=="},"totals":{}}`))
	p.close()
	s, err := Open(Options{Dir: memory, Archive: true})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = s.Close() })
	m := result(f, "1", "findable text")
	id := commit(f, s, "a", epoch, filed("a", 0, 1, "e", m))
	if _, err := s.Commit(conversation.Commit{State: fullState("b"), Pins: []conversation.Pin{{N: 1, Raw: []byte("pin")}}}); err != nil {
		f.Fatal(err)
	}
	indexAll(f, s)
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, q := range []string{
			"UPDATE conversations SET numbers = ?1, first = ?1, prints = ?1",
			"UPDATE compactions SET summary = ?1, entries = ?1",
			"UPDATE pins SET raw = ?1, chain = ?1",
			"UPDATE messages SET shell = ?1",
			"UPDATE parts SET at = length(?1)",
			"UPDATE texts SET data = ?1, indexed = 0",
		} {
			if _, err := s.file.write.Exec(q, b); err != nil {
				t.Fatal(err)
			}
		}
		_, _ = s.Load(10)
		_, _ = s.Entries(id)
		_, _ = s.Pins("b")
		_, _, _, _ = s.Conversation("a")
		_, _ = s.Compaction(id)
		_ = s.read("test", func(tx *sql.Tx) error { _, err := s.originals(tx, id); return err })
		_, _ = s.Recall(Query{Text: "findable"})
		indexAll(t, s)
		if s.Moved() != "" || s.file == nil {
			t.Error("garbage in a row is not damage of the file")
		}
	})
}
