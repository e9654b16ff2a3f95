package store

import (
	"database/sql"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/compactproxy/compactproxy/internal/conversation"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

// numbers is what a row keeps of a state in JSON: a new one needs no migration.
// The names are those in the file, whatever becomes of the fields' names.
type numbers struct {
	Prompt int      `json:"prompt,omitempty"`
	Anchor [4]int   `json:"anchor"` // tokens and bytes of the last report, and of the one before
	Full   int      `json:"full,omitempty"`
	Mark   *mark    `json:"mark,omitempty"`
	Taint  []string `json:"taint,omitempty"`
	Totals totals   `json:"totals"`
}

type mark struct {
	N      int    `json:"n"`
	Chain  []byte `json:"chain"`
	Tokens int    `json:"tokens"`
}

type totals struct {
	Requests    int `json:"requests"`
	Compactions int `json:"compactions"`
	Prompt      int `json:"prompt"`
	Cached      int `json:"cached"`
	Completion  int `json:"completion"`
	Misses      int `json:"misses"`
	Rereads     int `json:"rereads"`
}

const upsertState = `INSERT INTO conversations
	(id, parent, session, model, started, used, first, last, system, tools, prints, checkpoint, numbers)
	VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
	ON CONFLICT (id) DO UPDATE SET parent = excluded.parent, session = excluded.session, model = excluded.model,
		started = excluded.started, used = excluded.used, first = excluded.first, last = excluded.last,
		system = excluded.system, tools = excluded.tools, prints = excluded.prints,
		checkpoint = excluded.checkpoint, numbers = excluded.numbers`

const selectState = `SELECT
	id, parent, session, model, started, used, first, last, system, tools, prints, checkpoint, numbers
	FROM conversations `

// stateRow is what upsertState takes.
func stateRow(s conversation.State) ([]any, error) {
	n := numbers{
		Prompt: s.Prompt, Full: s.Full, Taint: s.Taint, Totals: totals(s.Totals),
		Anchor: [4]int{s.Anchor.Last.Tokens, s.Anchor.Last.Bytes, s.Anchor.Before.Tokens, s.Anchor.Before.Bytes},
	}
	if s.Mark != (conversation.Mark{}) {
		n.Mark = &mark{s.Mark.N, s.Mark.Chain[:], s.Mark.Tokens}
	}
	b, err := json.Marshal(n)
	if err != nil {
		return nil, err
	}
	prints := make([]byte, 0, 8*len(s.Prints))
	for _, p := range s.Prints {
		prints = binary.LittleEndian.AppendUint64(prints, p)
	}
	return []any{
		s.ID, s.Parent, s.Session, s.Model, nanos(s.Started), nanos(s.Used),
		s.First[:], s.Last[:], s.System[:], s.Tools[:], prints, max(s.Checkpoint, 0), string(b),
	}, nil
}

var errRow = errors.New("not a row that was written here")

// scanState reads one row of selectState.
func scanState(scan func(...any) error) (s conversation.State, err error) {
	var started, used int64
	var first, last, system, tools, prints, data sql.RawBytes
	err = scan(&s.ID, &s.Parent, &s.Session, &s.Model, &started, &used,
		&first, &last, &system, &tools, &prints, &s.Checkpoint, &data)
	if err != nil {
		return s, err
	}
	var n numbers
	if err := json.Unmarshal(data, &n); err != nil {
		return s, fmt.Errorf("%w: %w", errRow, err)
	}
	s.Started, s.Used = fromNanos(started), fromNanos(used)
	s.Prompt, s.Full, s.Taint, s.Totals = n.Prompt, n.Full, n.Taint, conversation.Totals(n.Totals)
	s.Anchor.Last.Tokens, s.Anchor.Last.Bytes = n.Anchor[0], n.Anchor[1]
	s.Anchor.Before.Tokens, s.Anchor.Before.Bytes = n.Anchor[2], n.Anchor[3]
	ok := hashFrom(first, &s.First) && hashFrom(last, &s.Last) && hashFrom(system, &s.System) && hashFrom(tools, &s.Tools)
	if n.Mark != nil {
		s.Mark.N, s.Mark.Tokens = n.Mark.N, n.Mark.Tokens
		ok = ok && hashFrom(n.Mark.Chain, &s.Mark.Chain)
	}
	if !ok || len(prints)%8 != 0 {
		return s, errRow
	}
	if len(prints) > 0 {
		s.Prints = make([]uint64, len(prints)/8)
		for i := range s.Prints {
			s.Prints[i] = binary.LittleEndian.Uint64(prints[8*i:])
		}
	}
	return s, nil
}

func hashFrom(b []byte, h *transcript.Hash) bool { return copy(h[:], b) == len(h) && len(b) == len(h) }

// nanos is a time as a number, 0 for the zero time.
func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func fromNanos(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n).UTC()
}

// states reads conversations, the most recently used first. A row that cannot be
// read is left out.
func (s *Store) states(tx *sql.Tx, limit int) ([]conversation.State, error) {
	rows, err := tx.Query(selectState+"ORDER BY used DESC, rowid DESC LIMIT ?", limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []conversation.State
	for rows.Next() {
		state, err := scanState(rows.Scan)
		if errors.Is(err, errRow) {
			s.report(fmt.Sprintf("conversation %q cannot be read: %v", state.ID, err))
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, state)
	}
	return out, rows.Err()
}

// Load implements conversation.Store. The states come newest first.
func (s *Store) Load(conversations int) (kept conversation.Kept, err error) {
	err = s.read("load conversations", func(tx *sql.Tx) error {
		kept = conversation.Kept{} // a second try begins anew
		var err error
		if kept.Conversations, err = s.states(tx, conversations); err != nil {
			return err
		}
		kept.Checkpoints, err = s.refs(tx)
		return err
	})
	if n := len(kept.Checkpoints); n > 0 {
		s.given(kept.Checkpoints[n-1].ID)
	}
	return kept, err
}

func (s *Store) refs(tx *sql.Tx) ([]conversation.Ref, error) {
	rows, err := tx.Query("SELECT id, conversation, chain, n FROM checkpoints ORDER BY id")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []conversation.Ref
	var owner, chain sql.RawBytes
	owners := map[string]string{} // so that each name is in memory once
	for rows.Next() {
		var r conversation.Ref
		if err := rows.Scan(&r.ID, &owner, &chain, &r.N); err != nil {
			return nil, err
		}
		if !hashFrom(chain, &r.Chain) {
			s.report(fmt.Sprintf("checkpoint %d cannot be read: its chain is no hash", r.ID))
			continue
		}
		name, ok := owners[string(owner)]
		if !ok {
			name = string(owner)
			owners[name] = name
		}
		r.Conversation = name
		out = append(out, r)
	}
	return out, rows.Err()
}

// maxTurns bounds the turns that are kept of a conversation: a chart shows no more.
const maxTurns = 500

// Note implements conversation.Store.
func (s *Store) Note(n conversation.Notes) error {
	states := make([][]any, len(n.States))
	for i, state := range n.States {
		var err error
		if states[i], err = stateRow(state); err != nil {
			return fmt.Errorf("note: %w", err)
		}
	}
	return s.write("note", func(tx *sql.Tx) error {
		upsert, err := tx.Prepare(upsertState)
		if err != nil {
			return err
		}
		defer upsert.Close()
		for _, row := range states {
			if _, err := upsert.Exec(row...); err != nil {
				return err
			}
		}
		return addTurns(tx, n.Turns)
	})
}

func addTurns(tx *sql.Tx, turns []conversation.Turn) error {
	if len(turns) == 0 {
		return nil
	}
	// A conversation that was forgotten meanwhile stays so.
	insert, err := tx.Prepare(`INSERT INTO turns
		(conversation, at, action, client, forecast, prompt, cached, completion, expected, miss, message)
		SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11 WHERE EXISTS (SELECT 1 FROM conversations WHERE id = ?1)`)
	if err != nil {
		return err
	}
	defer insert.Close()
	touched := map[string]bool{}
	for _, t := range turns {
		touched[t.Conversation] = true
		if _, err := insert.Exec(t.Conversation, nanos(t.At), t.Action, t.Client, t.Forecast, t.Prompt,
			t.Cached, t.Completion, t.Expected, t.Miss, t.Message); err != nil {
			return err
		}
	}
	trim, err := tx.Prepare(`DELETE FROM turns WHERE conversation = ?1 AND id <=
		(SELECT id FROM turns WHERE conversation = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)`)
	if err != nil {
		return err
	}
	defer trim.Close()
	for id := range touched {
		if _, err := trim.Exec(id, maxTurns); err != nil {
			return err
		}
	}
	return nil
}
