package store

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

// A transaction of the indexer takes no more than this, so that a commit that
// waits for it waits for some milliseconds.
const (
	stepTexts = 20
	stepBytes = 128 << 10
)

// maxAhead bounds what the indexer reads at once, one text aside.
const maxAhead = 1 << 20

// wakeIndexer says that there are texts to be indexed.
func (s *Store) wakeIndexer() {
	select {
	case s.wake <- struct{}{}:
	default: // it is awake
	}
}

// index fills the search index until ctx ends.
func (s *Store) index(ctx context.Context) {
	for {
		if err := s.IndexAll(ctx); err != nil && ctx.Err() == nil {
			s.report(fmt.Sprintf("the search index lags behind: %v", err))
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return
		}
	}
}

// IndexAll returns when everything that was committed can be found.
func (s *Store) IndexAll(ctx context.Context) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		if more, err := s.indexSome(ctx); err != nil || !more {
			return err
		}
	}
}

// piece is what goes into the index as one row.
type piece struct {
	text    int64
	last    bool // of the text's
	content string
}

// indexSome indexes the texts that wait longest, and reports whether there were any.
func (s *Store) indexSome(ctx context.Context) (more bool, err error) {
	s.indexing.Lock()
	defer s.indexing.Unlock()
	pieces, err := s.waiting()
	if err != nil {
		return false, err
	}
	more = len(pieces) > 0
	if s.halfway && more {
		if err := s.write("index", dropPieces); err != nil {
			return false, err
		}
	}
	s.halfway = true
	for len(pieces) > 0 && ctx.Err() == nil {
		n, size := 0, 0
		for n < len(pieces) && n < stepTexts && (n == 0 || size+len(pieces[n].content) <= stepBytes) {
			size += len(pieces[n].content)
			n++
		}
		if err := s.write("index", func(tx *sql.Tx) error { return indexPieces(tx, pieces[:n]) }); err != nil {
			return false, err
		}
		pieces = pieces[n:]
	}
	s.halfway = len(pieces) > 0
	return more, nil
}

// waiting returns texts that are to be indexed, in pieces.
func (s *Store) waiting() (pieces []piece, err error) {
	err = s.read("index", func(tx *sql.Tx) error {
		rows, err := tx.Query("SELECT id, size, data FROM texts WHERE indexed = 0 ORDER BY id LIMIT ?", stepTexts)
		if err != nil {
			return err
		}
		defer rows.Close()
		var packed sql.RawBytes
		for total := 0; total < maxAhead && rows.Next(); {
			var id int64
			var size int
			if err := rows.Scan(&id, &size, &packed); err != nil {
				return err
			}
			literal, err := s.unpack(packed)
			if err != nil {
				s.report(fmt.Sprintf("text %d cannot be read: %v", id, err))
			}
			pieces = appendPieces(pieces, id, searchable(decode(literal)))
			total += size
		}
		return rows.Err()
	})
	return pieces, err
}

// indexPieces adds pieces whose texts are still there.
func indexPieces(tx *sql.Tx, pieces []piece) error {
	insertPiece, err := tx.Prepare("INSERT INTO pieces (text) SELECT id FROM texts WHERE id = ?")
	if err != nil {
		return err
	}
	defer insertPiece.Close()
	insertWords, err := tx.Prepare("INSERT INTO search (rowid, text) VALUES (?, ?)")
	if err != nil {
		return err
	}
	defer insertWords.Close()
	var whole []any
	for _, p := range pieces {
		r, err := insertPiece.Exec(p.text)
		if err != nil {
			return err
		}
		if n, err := r.RowsAffected(); err != nil {
			return err
		} else if n == 0 {
			continue // deleted meanwhile
		}
		rowid, err := r.LastInsertId()
		if err != nil {
			return err
		}
		if _, err := insertWords.Exec(rowid, p.content); err != nil {
			return err
		}
		if p.last {
			whole = append(whole, p.text)
		}
	}
	_, err = tx.Exec("UPDATE texts SET indexed = 1 WHERE id IN (0"+strings.Repeat(", ?", len(whole))+")", whole...)
	return err
}

// dropPieces takes out what an attempt has left that ended inside of a text.
func dropPieces(tx *sql.Tx) error {
	for _, q := range []string{
		"DELETE FROM search WHERE rowid IN (SELECT p.id FROM texts t JOIN pieces p ON p.text = t.id WHERE t.indexed = 0)",
		"DELETE FROM pieces WHERE text IN (SELECT id FROM texts WHERE indexed = 0)",
	} {
		if _, err := tx.Exec(q); err != nil {
			return err
		}
	}
	return nil
}

// appendPieces cuts a text into pieces, between words.
func appendPieces(pieces []piece, id int64, text []byte) []piece {
	for {
		n := len(text)
		if n > stepBytes {
			n = stepBytes
			if i := bytes.LastIndexAny(text[:n], " \n\t"); i > stepBytes/2 {
				n = i
			}
			for n > stepBytes/2 && !utf8.RuneStart(text[n]) {
				n--
			}
		}
		// SQLite takes text as UTF-8 that ends at a zero byte.
		content := strings.ReplaceAll(strings.ToValidUTF8(string(text[:n]), "\uFFFD"), "\x00", " ")
		text = text[n:]
		pieces = append(pieces, piece{text: id, last: len(text) == 0, content: content})
		if len(text) == 0 {
			return pieces
		}
	}
}

// searchable is the form in which a text is searched. Of JSON, such as a call's
// arguments, that is what its strings say: as it stands, a newline before "def"
// would make the word "ndef".
func searchable(text []byte) []byte {
	if trimmed := bytes.TrimLeft(text, " \t\r\n"); len(trimmed) == 0 ||
		trimmed[0] != '{' && trimmed[0] != '[' && trimmed[0] != '"' || !bytes.Contains(text, []byte{'\\'}) {
		return text
	}
	out := make([]byte, 0, len(text))
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	for {
		t, err := d.Token()
		if err != nil { // at the end, or where it is no JSON: from there on as it stands
			return append(out, text[d.InputOffset():]...)
		}
		switch t := t.(type) {
		case string:
			out = append(append(out, t...), '\n')
		case json.Number:
			out = append(append(out, t...), '\n')
		}
	}
}

// clearIndex empties a search index that is damaged, so that it is filled anew.
func (f *file) clearIndex() error {
	tx, err := f.write.Begin()
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	for _, q := range []string{
		"INSERT INTO search (search) VALUES ('delete-all')",
		"DELETE FROM pieces",
		"UPDATE texts SET indexed = 0",
	} {
		if _, err := tx.Exec(q); err != nil {
			return err
		}
	}
	return tx.Commit()
}
