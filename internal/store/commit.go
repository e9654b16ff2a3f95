package store

import (
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/compactproxy/compactproxy/internal/conversation"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

// Commit implements conversation.Store. What takes time, hashing and compressing,
// is done before the transaction begins.
func (s *Store) Commit(c conversation.Commit) (id int64, err error) {
	var filed *filedRow
	if c.Checkpoint != nil {
		if filed, err = s.prepareFiled(c.Checkpoint); err != nil {
			return 0, fmt.Errorf("commit: %w", err)
		}
	}
	pins := make([][]byte, len(c.Pins))
	for i, p := range c.Pins {
		pins[i] = s.pack(p.Raw)
	}
	err = s.write("commit", func(tx *sql.Tx) error {
		state := c.State
		if filed != nil {
			if id, err = s.insertCheckpoint(tx, state.ID, filed); err != nil {
				return err
			}
			state.Checkpoint = id
		}
		row, err := stateRow(state)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(upsertState, row...); err != nil {
			return err
		}
		return insertPins(tx, c, pins)
	})
	if err != nil {
		return 0, err
	}
	s.given(id)
	s.wakeIndexer()
	return id, nil
}

// given notes that an id is in use.
func (s *Store) given(id int64) {
	for old := s.lastID.Load(); id > old && !s.lastID.CompareAndSwap(old, id); {
		old = s.lastID.Load()
	}
}

// filedRow is a checkpoint ready for the file.
type filedRow struct {
	*conversation.Filed
	at        time.Time
	summary   string
	entries   []byte
	originals []originalRow
}

// originalRow is an original ready for the file.
type originalRow struct {
	n    int
	tool string
	cutMessage
	shell []byte    // packed
	texts []textRow // as many as there are parts
}

// textRow is a literal ready for the file. Of what is stored already there is only
// the key.
type textRow struct {
	key    transcript.Hash
	hash   [sha256.Size]byte
	size   int
	packed []byte
}

func (p packer) textRow(literal []byte) textRow {
	text := decode(literal)
	return textRow{key: keyOf(literal), hash: sha256.Sum256(text), size: len(text), packed: p.pack(literal)}
}

func (s *Store) prepareFiled(c *conversation.Filed) (*filedRow, error) {
	summary, err := json.Marshal(c.Summary)
	if err != nil {
		return nil, err
	}
	f := &filedRow{Filed: c, at: c.Summary.At, summary: string(summary), entries: s.pack(c.Entries)}
	if f.at.IsZero() {
		f.at = time.Now()
	}
	if !s.archive {
		return f, nil
	}
	for i := range c.Originals {
		o := &c.Originals[i]
		f.originals = append(f.originals, originalRow{n: o.N, tool: o.Tool, cutMessage: cut(&o.Message)})
	}
	return f, s.read("look for texts", func(tx *sql.Tx) error { return s.packMissing(tx, f.originals) })
}

// packMissing packs what is not stored yet. What is deleted before the transaction
// begins is packed there.
func (s *Store) packMissing(tx *sql.Tx, originals []originalRow) error {
	findMessage, err := tx.Prepare("SELECT 1 FROM messages WHERE key = ?")
	if err != nil {
		return err
	}
	defer findMessage.Close()
	findText, err := tx.Prepare("SELECT 1 FROM texts WHERE key = ?")
	if err != nil {
		return err
	}
	defer findText.Close()
	for i := range originals {
		o := &originals[i]
		if known, err := exists(findMessage, o.key); err != nil {
			return err
		} else if known {
			continue
		}
		o.shell = s.pack(o.cutMessage.shell)
		o.texts = make([]textRow, len(o.parts))
		for i, p := range o.parts {
			o.texts[i].key = keyOf(p.literal)
			if known, err := exists(findText, o.texts[i].key); err != nil {
				return err
			} else if !known {
				o.texts[i] = s.textRow(p.literal)
			}
		}
	}
	return nil
}

func exists(find *sql.Stmt, key transcript.Hash) (bool, error) {
	var one int
	err := find.QueryRow(key[:]).Scan(&one)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

func (s *Store) insertCheckpoint(tx *sql.Tx, owner string, f *filedRow) (id int64, err error) {
	r, err := tx.Exec("INSERT INTO checkpoints (conversation, chain, n) VALUES (?, ?, ?)", owner, f.Chain[:], f.N)
	if err != nil {
		return 0, err
	}
	if id, err = r.LastInsertId(); err != nil {
		return 0, err
	}
	if _, err := tx.Exec("INSERT INTO compactions (id, parent, at, summary, entries) VALUES (?, ?, ?, ?, ?)",
		id, max(f.Parent, 0), nanos(f.at), f.summary, f.entries); err != nil {
		return 0, err
	}
	return id, s.insertOriginals(tx, id, f.originals)
}

func (s *Store) insertOriginals(tx *sql.Tx, checkpoint int64, originals []originalRow) error {
	if len(originals) == 0 {
		return nil
	}
	in, err := s.newInserter(tx)
	if err != nil {
		return err
	}
	defer in.close()
	for i := range originals {
		o := &originals[i]
		message, err := in.message(o)
		if err != nil {
			return err
		}
		// One position twice would be the caller's mistake; the first one stays.
		if _, err := in.insertOriginal.Exec(checkpoint, o.n, message, o.tool); err != nil {
			return err
		}
	}
	return nil
}

// inserter holds the statements that store messages.
type inserter struct {
	packer
	findMessage, insertMessage, findText, insertText, insertPart, insertOriginal *sql.Stmt
}

func (s *Store) newInserter(tx *sql.Tx) (in *inserter, err error) {
	in = &inserter{packer: s.packer}
	for _, p := range []struct {
		stmt **sql.Stmt
		text string
	}{
		{&in.findMessage, "SELECT id FROM messages WHERE key = ?"},
		{&in.insertMessage, "INSERT INTO messages (key, role, shell) VALUES (?, ?, ?)"},
		{&in.findText, "SELECT id FROM texts WHERE key = ?"},
		{&in.insertText, "INSERT INTO texts (key, hash, size, indexed, data) VALUES (?, ?, ?, 0, ?)"},
		{&in.insertPart, "INSERT INTO parts (message, at, text) VALUES (?, ?, ?)"},
		{&in.insertOriginal, "INSERT OR IGNORE INTO originals (checkpoint, n, message, tool) VALUES (?, ?, ?, ?)"},
	} {
		if *p.stmt, err = tx.Prepare(p.text); err != nil {
			in.close()
			return nil, err
		}
	}
	return in, nil
}

func (in *inserter) close() {
	for _, stmt := range []*sql.Stmt{in.findMessage, in.insertMessage, in.findText, in.insertText, in.insertPart, in.insertOriginal} {
		if stmt != nil {
			_ = stmt.Close()
		}
	}
}

// message returns the id of a message, which is stored if it is not yet.
func (in *inserter) message(o *originalRow) (id int64, err error) {
	err = in.findMessage.QueryRow(o.key[:]).Scan(&id)
	if !errors.Is(err, sql.ErrNoRows) {
		return id, err
	}
	if o.shell == nil { // it was stored when it was looked for
		o.shell = in.pack(o.cutMessage.shell)
		o.texts = make([]textRow, len(o.parts))
		for i, p := range o.parts {
			o.texts[i].key = keyOf(p.literal)
		}
	}
	r, err := in.insertMessage.Exec(o.key[:], o.role, o.shell)
	if err != nil {
		return 0, err
	}
	if id, err = r.LastInsertId(); err != nil {
		return 0, err
	}
	for i, p := range o.parts {
		text, err := in.text(p.literal, o.texts[i])
		if err != nil {
			return 0, err
		}
		if _, err := in.insertPart.Exec(id, p.at, text); err != nil {
			return 0, err
		}
	}
	return id, nil
}

// text returns the id of a literal, which is stored if it is not yet.
func (in *inserter) text(literal []byte, t textRow) (id int64, err error) {
	err = in.findText.QueryRow(t.key[:]).Scan(&id)
	if !errors.Is(err, sql.ErrNoRows) {
		return id, err
	}
	if t.packed == nil {
		t = in.textRow(literal)
	}
	r, err := in.insertText.Exec(t.key[:], t.hash[:], t.size, t.packed)
	if err != nil {
		return 0, err
	}
	return r.LastInsertId()
}

// insertPins stores pins, of which those that went out first count, and drops what
// a new checkpoint covers.
func insertPins(tx *sql.Tx, c conversation.Commit, raw [][]byte) error {
	for i, p := range c.Pins {
		if _, err := tx.Exec("INSERT INTO pins (conversation, chain, n, raw) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
			c.State.ID, p.Chain[:], p.N, raw[i]); err != nil {
			return err
		}
	}
	if c.Checkpoint == nil {
		return nil
	}
	_, err := tx.Exec("DELETE FROM pins WHERE conversation = ? AND n <= ?", c.State.ID, c.Checkpoint.N)
	return err
}

// Entries implements conversation.Store. Entries that cannot be read any more are
// gone as well.
func (s *Store) Entries(checkpoint int64) (entries []byte, err error) {
	err = s.read("read checkpoint", func(tx *sql.Tx) error {
		entries, err = s.entries(tx, checkpoint)
		return err
	})
	return entries, err
}

func (s *Store) entries(tx *sql.Tx, checkpoint int64) ([]byte, error) {
	var packed []byte
	err := tx.QueryRow("SELECT entries FROM compactions WHERE id = ?", checkpoint).Scan(&packed)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, conversation.ErrGone
	}
	if err != nil {
		return nil, err
	}
	entries, err := s.unpack(packed)
	if err != nil {
		return nil, fmt.Errorf("%w: entries of %d: %w", conversation.ErrGone, checkpoint, err)
	}
	return entries, nil
}

// Pins implements conversation.Store.
func (s *Store) Pins(of string) (pins []conversation.Pin, err error) {
	err = s.read("read pins", func(tx *sql.Tx) error {
		rows, err := tx.Query("SELECT n, chain, raw FROM pins WHERE conversation = ? ORDER BY n, rowid", of)
		if err != nil {
			return err
		}
		defer rows.Close()
		var chain, packed sql.RawBytes
		for rows.Next() {
			var p conversation.Pin
			if err := rows.Scan(&p.N, &chain, &packed); err != nil {
				return err
			}
			if p.Raw, err = s.unpack(packed); err != nil || !hashFrom(chain, &p.Chain) {
				s.report(fmt.Sprintf("a pin of conversation %s cannot be read", of))
				continue
			}
			pins = append(pins, p)
		}
		return rows.Err()
	})
	return pins, err
}
