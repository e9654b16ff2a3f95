package store

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/compactproxy/compactproxy/internal/conversation"
)

// ErrNotFound says that there is no such conversation, compaction or text.
var ErrNotFound = errors.New("not in the archive")

// Compaction is a checkpoint, for people.
type Compaction struct {
	ID           int64                `json:"id"`
	Conversation string               `json:"conversation"`
	Parent       int64                `json:"parent,omitempty"` // the checkpoint that was replayed before, 0 for none
	N            int                  `json:"messages"`         // that it covers
	Summary      conversation.Summary `json:"summary"`
}

// CompactionDetail is a checkpoint with what it replaced.
type CompactionDetail struct {
	Compaction
	Entries       []byte
	ParentEntries []byte // nil where there is no parent any more
	// Originals are the client's messages that it covers and its parent does not,
	// in order.
	Originals [][]byte
}

// Conversations returns the states of at most limit conversations, the most
// recently used first.
func (s *Store) Conversations(limit int) (states []conversation.State, err error) {
	err = s.read("list conversations", func(tx *sql.Tx) error {
		states, err = s.states(tx, limit)
		return err
	})
	return states, err
}

// Conversation returns a conversation, its compactions, the newest first, and its
// turns, the oldest first.
func (s *Store) Conversation(id string) (state conversation.State, list []Compaction, turns []conversation.Turn, err error) {
	err = s.read("read conversation", func(tx *sql.Tx) error {
		rows, err := tx.Query(selectState+"WHERE id = ?", id)
		if err != nil {
			return err
		}
		defer rows.Close()
		if !rows.Next() {
			return errors.Join(rows.Err(), ErrNotFound)
		}
		if state, err = scanState(rows.Scan); err != nil {
			return err
		}
		if err := rows.Close(); err != nil {
			return err
		}
		if list, err = compactions(tx, "WHERE c.conversation = ? ORDER BY c.id DESC", id); err != nil {
			return err
		}
		turns, err = turnsOf(tx, id)
		return err
	})
	return state, list, turns, err
}

func compactions(tx *sql.Tx, where string, args ...any) ([]Compaction, error) {
	rows, err := tx.Query("SELECT c.id, c.conversation, k.parent, c.n, k.summary FROM checkpoints c JOIN compactions k ON k.id = c.id "+where, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []Compaction
	for rows.Next() {
		var c Compaction
		var summary sql.RawBytes
		if err := rows.Scan(&c.ID, &c.Conversation, &c.Parent, &c.N, &summary); err != nil {
			return nil, err
		}
		if err := json.Unmarshal(summary, &c.Summary); err != nil {
			return nil, fmt.Errorf("summary of %d: %w: %w", c.ID, errRow, err)
		}
		out = append(out, c)
	}
	return out, rows.Err()
}

func turnsOf(tx *sql.Tx, id string) ([]conversation.Turn, error) {
	rows, err := tx.Query(`SELECT at, action, client, forecast, prompt, cached, completion, expected, miss, message
		FROM turns WHERE conversation = ? ORDER BY id`, id)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []conversation.Turn
	for rows.Next() {
		t := conversation.Turn{Conversation: id}
		var at int64
		if err := rows.Scan(&at, &t.Action, &t.Client, &t.Forecast, &t.Prompt, &t.Cached, &t.Completion, &t.Expected, &t.Miss, &t.Message); err != nil {
			return nil, err
		}
		t.At = fromNanos(at)
		out = append(out, t)
	}
	return out, rows.Err()
}

// Compaction returns a checkpoint with what it replaced, or [ErrNotFound].
func (s *Store) Compaction(id int64) (d CompactionDetail, err error) {
	err = s.read("read compaction", func(tx *sql.Tx) error {
		list, err := compactions(tx, "WHERE c.id = ?", id)
		if err != nil {
			return err
		}
		if len(list) == 0 {
			return ErrNotFound
		}
		d.Compaction = list[0]
		if d.Entries, err = s.entries(tx, id); err != nil {
			return err
		}
		if d.Parent != 0 {
			d.ParentEntries, err = s.entries(tx, d.Parent)
			if err != nil && !errors.Is(err, conversation.ErrGone) {
				return err
			}
		}
		d.Originals, err = s.originals(tx, id)
		return err
	})
	return d, err
}

// originals puts the messages of a checkpoint together again.
func (s *Store) originals(tx *sql.Tx, checkpoint int64) ([][]byte, error) {
	ids, err := column[int64](tx, "SELECT message FROM originals WHERE checkpoint = ? ORDER BY n", checkpoint)
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	getShell, err := tx.Prepare("SELECT shell FROM messages WHERE id = ?")
	if err != nil {
		return nil, err
	}
	defer getShell.Close()
	getParts, err := tx.Prepare("SELECT p.at, t.data FROM parts p JOIN texts t ON t.id = p.text WHERE p.message = ? ORDER BY p.at")
	if err != nil {
		return nil, err
	}
	defer getParts.Close()
	out := make([][]byte, 0, len(ids))
	for _, id := range ids {
		raw, err := s.message(getShell, getParts, id)
		if err != nil {
			return nil, fmt.Errorf("message %d: %w", id, err)
		}
		out = append(out, raw)
	}
	return out, nil
}

func (s *Store) message(getShell, getParts *sql.Stmt, id int64) ([]byte, error) {
	var packed []byte
	if err := getShell.QueryRow(id).Scan(&packed); err != nil {
		return nil, err
	}
	shell, err := s.unpack(packed)
	if err != nil {
		return nil, err
	}
	rows, err := getParts.Query(id)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var parts []part
	var data sql.RawBytes
	for rows.Next() {
		var p part
		if err := rows.Scan(&p.at, &data); err != nil {
			return nil, err
		}
		if p.literal, err = s.unpack(data); err != nil {
			return nil, err
		}
		parts = append(parts, p)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	return join(shell, parts)
}
