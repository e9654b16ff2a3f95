package store

import (
	"database/sql"
	"embed"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

//go:embed migrations/*.sql
var migrations embed.FS

// NewerError says that the file was written by a newer compactproxy. It was not
// changed.
type NewerError struct {
	Path string
	Have int // version of the file
	Want int // newest version that this program knows
}

func (e *NewerError) Error() string {
	return fmt.Sprintf("open state: %s has version %d and this compactproxy knows versions up to %d: a newer one wrote it; upgrade, or set state.path to another folder",
		e.Path, e.Have, e.Want)
}

// migration is one step of the schema, from the version before it.
type migration struct {
	version int
	sql     string
}

// readMigrations returns the steps in order. They are numbered from 1 without a gap.
func readMigrations(files fs.FS) ([]migration, error) {
	names, err := fs.Glob(files, "migrations/*.sql") // sorted
	if err != nil {
		return nil, err
	}
	var out []migration
	for _, name := range names {
		b, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, err
		}
		number, _, _ := strings.Cut(path.Base(name), "_")
		version, err := strconv.Atoi(number)
		if err != nil || version != len(out)+1 {
			return nil, fmt.Errorf("%s is not migration %d", name, len(out)+1)
		}
		out = append(out, migration{version, string(b)})
	}
	return out, nil
}

func version(db *sql.DB) (v int, err error) {
	err = db.QueryRow("PRAGMA user_version").Scan(&v)
	return v, err
}

// migrate brings the schema up to the newest version, each step in a transaction.
func migrate(db *sql.DB, steps []migration) error {
	have, err := version(db)
	if err != nil {
		return err
	}
	for _, m := range steps[min(have, len(steps)):] {
		if err := m.apply(db); err != nil {
			return fmt.Errorf("migration %d: %w", m.version, err)
		}
	}
	return nil
}

func (m migration) apply(db *sql.DB) error {
	tx, err := db.Begin()
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.Exec(m.sql); err != nil {
		return err
	}
	if _, err := tx.Exec("PRAGMA user_version = " + strconv.Itoa(m.version)); err != nil {
		return err
	}
	return tx.Commit()
}
