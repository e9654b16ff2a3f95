package store

import (
	"cmp"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Query asks the archive. Its text is words, all of which must occur, or any of them
// where no text holds all. A word of several parts, such as a file name, is found
// as these parts in a row; so are words in double quotes. A star at the end of
// a word finds what begins like it. "sha256:" and 64 hex digits, or these alone,
// find the text with that hash.
type Query struct {
	Text         string
	Conversation string // "" for all
	Limit        int    // of hits, 0 for 20
}

// Hit is a text in a conversation.
type Hit struct {
	Conversation string    `json:"conversation"`
	Session      string    `json:"session,omitempty"`
	N            int       `json:"message"` // its newest position there
	Role         string    `json:"role"`
	Tool         string    `json:"tool,omitempty"` // whose result it is
	Hash         string    `json:"sha256"`         // of the text
	Bytes        int       `json:"bytes"`
	Times        int       `json:"times"` // that it occurs in the conversation
	At           time.Time `json:"at"`    // when it was archived there
	Excerpt      string    `json:"excerpt"`
}

const (
	defaultLimit = 20
	maxLimit     = 200
	// maxFound bounds the texts that are looked at for one query.
	maxFound = 1000
)

// found is a text that matches.
type found struct {
	id   int64
	rank float64 // smaller is better
}

// Recall searches the archive. The best hit comes first, among equals the newest.
func (s *Store) Recall(q Query) (hits []Hit, err error) {
	if q.Limit <= 0 {
		q.Limit = defaultLimit
	}
	q.Limit = min(q.Limit, maxLimit)
	err = s.read("recall", func(tx *sql.Tx) error {
		if hash, ok := parseHash(q.Text); ok {
			ids, err := column[int64](tx, "SELECT id FROM texts WHERE hash = ? ORDER BY id LIMIT ?", hash, maxFound)
			if err != nil {
				return err
			}
			var list []found
			for _, id := range ids {
				list = append(list, found{id: id})
			}
			hits, err = s.hits(tx, q, nil, list)
			return err
		}
		phrases := parseQuery(q.Text)
		if len(phrases) == 0 {
			return nil
		}
		for _, operator := range []string{" AND ", " OR "} {
			list, err := search(tx, match(phrases, operator), q.Conversation)
			if err != nil {
				return err
			}
			if hits, err = s.hits(tx, q, phrases, list); err != nil || len(hits) > 0 {
				return err
			}
		}
		return nil
	})
	return hits, err
}

// parseHash reads a query for a text by its hash.
func parseHash(text string) ([]byte, bool) {
	b, err := hex.DecodeString(strings.TrimPrefix(strings.TrimSpace(text), "sha256:"))
	return b, err == nil && len(b) == 32
}

// search asks the index, best first.
func search(tx *sql.Tx, match, conversation string) (list []found, err error) {
	rows, err := tx.Query(`SELECT pieces.text, search.rank FROM search JOIN pieces ON pieces.id = search.rowid
		WHERE search MATCH ?1 AND (?2 = '' OR EXISTS (
			SELECT 1 FROM parts p JOIN originals o ON o.message = p.message JOIN checkpoints c ON c.id = o.checkpoint
			WHERE p.text = pieces.text AND c.conversation = ?2))
		ORDER BY search.rank LIMIT ?3`, match, conversation, maxFound)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	seen := map[int64]bool{}
	for rows.Next() {
		var f found
		if err := rows.Scan(&f.id, &f.rank); err != nil {
			return nil, err
		}
		if !seen[f.id] { // another piece of it was better
			seen[f.id] = true
			list = append(list, f)
		}
	}
	return list, rows.Err()
}

// hits says where texts occur, as many as the query wants.
func (s *Store) hits(tx *sql.Tx, q Query, phrases []phrase, list []found) ([]Hit, error) {
	// Among equals the newest first, as far as the order of storing tells.
	slices.SortStableFunc(list, func(a, b found) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(b.id, a.id))
	})
	// The newest occurrence in each conversation: where there is one max(), SQLite takes
	// the other columns from the row that has it.
	where, err := tx.Prepare(`SELECT c.conversation, v.session, o.n, m.role, o.tool, k.at, count(DISTINCT o.n),
			max(o.checkpoint * 4294967296 + o.n) AS newest
		FROM parts p JOIN messages m ON m.id = p.message JOIN originals o ON o.message = m.id
			JOIN checkpoints c ON c.id = o.checkpoint JOIN compactions k ON k.id = c.id
			JOIN conversations v ON v.id = c.conversation
		WHERE p.text IN (SELECT id FROM texts WHERE hash = ?1) AND (?2 = '' OR c.conversation = ?2)
		GROUP BY c.conversation ORDER BY newest DESC LIMIT ?3`)
	if err != nil {
		return nil, err
	}
	defer where.Close()
	seen := map[string]bool{}
	var hits []Hit
	for _, f := range list {
		if len(hits) >= q.Limit {
			break
		}
		h, text, err := s.text(tx, f.id)
		if errors.Is(err, errPacked) {
			s.report(fmt.Sprintf("text %d cannot be read: %v", f.id, err))
			continue
		}
		if err != nil {
			return nil, err
		}
		if seen[h.Hash] { // the same text in other escapes
			continue
		}
		seen[h.Hash] = true
		h.Excerpt = excerpt(searchable(text), phrases)
		if hits, err = appendPlaces(hits, h, where, q); err != nil {
			return nil, err
		}
	}
	return hits[:min(len(hits), q.Limit)], nil
}

// text reads a text and what a hit says of it.
func (s *Store) text(tx *sql.Tx, id int64) (h Hit, text []byte, err error) {
	var hash, packed []byte
	if err := tx.QueryRow("SELECT hash, size, data FROM texts WHERE id = ?", id).Scan(&hash, &h.Bytes, &packed); err != nil {
		return h, nil, err
	}
	h.Hash = hex.EncodeToString(hash)
	literal, err := s.unpack(packed)
	return h, decode(literal), err
}

// appendPlaces adds a hit for each conversation that has a text.
func appendPlaces(hits []Hit, h Hit, where *sql.Stmt, q Query) ([]Hit, error) {
	hash, err := hex.DecodeString(h.Hash)
	if err != nil {
		return nil, err
	}
	rows, err := where.Query(hash, q.Conversation, q.Limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var at, newest int64
		if err := rows.Scan(&h.Conversation, &h.Session, &h.N, &h.Role, &h.Tool, &at, &h.Times, &newest); err != nil {
			return nil, err
		}
		h.At = fromNanos(at)
		hits = append(hits, h)
	}
	return hits, rows.Err()
}

// Text returns the text that has this SHA-256, in hex, or [ErrNotFound].
func (s *Store) Text(hash string) (text string, err error) {
	want, ok := parseHash(hash)
	if !ok {
		return "", fmt.Errorf("read text: %w: %q is no SHA-256 in hex", ErrNotFound, hash)
	}
	err = s.read("read text", func(tx *sql.Tx) error {
		var packed []byte
		err := tx.QueryRow("SELECT data FROM texts WHERE hash = ? LIMIT 1", want).Scan(&packed)
		if errors.Is(err, sql.ErrNoRows) {
			return ErrNotFound
		}
		if err != nil {
			return err
		}
		literal, err := s.unpack(packed)
		text = string(decode(literal))
		return err
	})
	return text, err
}
