package store

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"time"
)

// Forget implements conversation.Store. When it returns, what was forgotten cannot
// be read in the file either.
func (s *Store) Forget(id string) error {
	err := s.write("forget", func(tx *sql.Tx) error { return remove(tx, id) })
	if err != nil {
		return err
	}
	if err := s.purgeIndex(); err != nil {
		return err
	}
	return s.reclaim()
}

// remove deletes a conversation. A checkpoint that another one replays is handed
// to that one.
func remove(tx *sql.Tx, id string) error {
	if _, err := tx.Exec(`UPDATE checkpoints SET conversation =
			(SELECT v.id FROM conversations v WHERE v.checkpoint = checkpoints.id AND v.id <> ?1 ORDER BY v.used DESC LIMIT 1)
		WHERE conversation = ?1
			AND EXISTS (SELECT 1 FROM conversations v WHERE v.checkpoint = checkpoints.id AND v.id <> ?1)`, id); err != nil {
		return err
	}
	if err := dropCheckpoints(tx, "SELECT id FROM checkpoints WHERE conversation = ? ORDER BY id DESC", id); err != nil {
		return err
	}
	_, err := tx.Exec("DELETE FROM conversations WHERE id = ?", id)
	return err
}

// dropCheckpoints deletes the checkpoints that a query yields, newest first. The
// originals of each go to those that were made from it and stay, which then cover
// what it did.
func dropCheckpoints(tx *sql.Tx, query, conversation string) error {
	ids, err := column[int64](tx, query, conversation)
	if err != nil {
		return err
	}
	for _, id := range ids {
		for _, q := range []string{
			`INSERT OR IGNORE INTO originals (checkpoint, n, message, tool)
				SELECT k.id, o.n, o.message, o.tool FROM compactions k, originals o WHERE k.parent = ?1 AND o.checkpoint = ?1`,
			"UPDATE compactions SET parent = (SELECT parent FROM compactions WHERE id = ?1) WHERE parent = ?1",
			"DELETE FROM checkpoints WHERE id = ?1",
		} {
			if _, err := tx.Exec(q, id); err != nil {
				return err
			}
		}
	}
	return nil
}

// column reads all of a query's one column.
func column[T any](tx *sql.Tx, query string, args ...any) (out []T, err error) {
	rows, err := tx.Query(query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var v T
		if err := rows.Scan(&v); err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, rows.Err()
}

// Prune implements conversation.Store. Of the live ones it removes the checkpoints
// that no conversation replays before it removes originals. What it has removed it
// says with an error as well.
func (s *Store) Prune(live []string) (removed []string, err error) {
	all, err := s.byUse()
	if err != nil {
		return nil, err
	}
	keep := make(map[string]bool, len(live))
	for _, id := range live {
		keep[id] = true
	}
	changed := false
	if s.maxBytes > 0 && s.Size() > s.maxBytes {
		changed = true // free pages and the log may be all there is too much
	}
	defer func() {
		if changed && err == nil {
			err = s.reclaim()
		}
	}()
	expired := nanos(time.Now().Add(-s.retention))
	for _, c := range all { // the expired ones come first
		if keep[c.id] {
			continue
		}
		if s.retention <= 0 || c.used >= expired {
			fits, err := s.fits()
			if err != nil {
				return removed, err
			}
			if fits {
				break
			}
		}
		if err := s.write("prune", func(tx *sql.Tx) error { return remove(tx, c.id) }); err != nil {
			return removed, err
		}
		removed = append(removed, c.id)
		changed = true
	}
	for _, shrink := range []func(tx *sql.Tx, conversation string) error{dropSuperseded, dropOriginals} {
		for _, c := range all {
			if !keep[c.id] {
				continue
			}
			if fits, err := s.fits(); fits || err != nil {
				return removed, err
			}
			if err := s.write("prune", func(tx *sql.Tx) error { return shrink(tx, c.id) }); err != nil {
				return removed, err
			}
			changed = true
		}
	}
	return removed, nil
}

// dropSuperseded deletes the checkpoints of a conversation that none replays.
func dropSuperseded(tx *sql.Tx, conversation string) error {
	return dropCheckpoints(tx, `SELECT id FROM checkpoints c WHERE conversation = ?
		AND NOT EXISTS (SELECT 1 FROM conversations v WHERE v.checkpoint = c.id) ORDER BY id DESC`, conversation)
}

func dropOriginals(tx *sql.Tx, conversation string) error {
	_, err := tx.Exec("DELETE FROM originals WHERE checkpoint IN (SELECT id FROM checkpoints WHERE conversation = ?)", conversation)
	return err
}

// usedAt is when a conversation was used.
type usedAt struct {
	id   string
	used int64
}

// byUse returns all conversations, the longest unused ones first.
func (s *Store) byUse() (out []usedAt, err error) {
	err = s.read("prune", func(tx *sql.Tx) error {
		rows, err := tx.Query("SELECT id, used FROM conversations ORDER BY used, id")
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var c usedAt
			if err := rows.Scan(&c.id, &c.used); err != nil {
				return err
			}
			out = append(out, c)
		}
		return rows.Err()
	})
	return out, err
}

// fits tells whether what the file holds, free pages aside, is within the bound.
func (s *Store) fits() (bool, error) {
	if s.maxBytes <= 0 {
		return true, nil
	}
	var used int64
	err := s.read("measure", func(tx *sql.Tx) error {
		return tx.QueryRow(`SELECT (page_count - freelist_count) * page_size
			FROM pragma_page_count, pragma_freelist_count, pragma_page_size`).Scan(&used)
	})
	return used <= s.maxBytes, err
}

// Size implements conversation.Store.
func (s *Store) Size() int64 {
	var size int64
	if s.dir == memory {
		_ = s.read("measure", func(tx *sql.Tx) error {
			return tx.QueryRow("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size").Scan(&size)
		})
		return size
	}
	for _, suffix := range suffixes {
		if info, err := os.Stat(s.path() + suffix); err == nil {
			size += info.Size()
		}
	}
	return size
}

// stepPages bounds how much of the file one transaction of housekeeping rewrites.
const stepPages = 500

// purgeIndex takes the words of deleted texts out of the search index, which only
// marks them as deleted until it merges what it holds.
func (s *Store) purgeIndex() error {
	for pages := -stepPages; ; pages = stepPages { // the first step chooses everything to be merged
		done := false
		err := s.write("purge the search index", func(tx *sql.Tx) error {
			var before, after int64
			if err := tx.QueryRow("SELECT total_changes()").Scan(&before); err != nil {
				return err
			}
			if _, err := tx.Exec("INSERT INTO search (search, rank) VALUES ('merge', ?)", pages); err != nil {
				return err
			}
			err := tx.QueryRow("SELECT total_changes()").Scan(&after)
			done = after-before < 2 // as the manual of FTS5 has it
			return err
		})
		if err != nil || done {
			return err
		}
	}
}

var errBusy = errors.New("the log is in use")

// reclaim gives free pages back, in small steps, and empties the log.
func (s *Store) reclaim() error {
	return s.use("reclaim", func(f *file) error {
		for last := int64(-1); ; {
			var free int64
			if err := f.write.QueryRow("PRAGMA freelist_count").Scan(&free); err != nil {
				return err
			}
			if free == 0 || free == last {
				break
			}
			if _, err := f.write.Exec(fmt.Sprintf("PRAGMA incremental_vacuum(%d)", stepPages)); err != nil {
				return err
			}
			last = free
		}
		var busy, log, done int
		err := f.write.QueryRow("PRAGMA wal_checkpoint(truncate)").Scan(&busy, &log, &done)
		if err == nil && busy != 0 {
			err = errBusy
		}
		return err
	})
}
