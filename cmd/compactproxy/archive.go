package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/compactproxy/compactproxy/internal/config"
	"github.com/compactproxy/compactproxy/internal/store"
)

// archive is the store as the commands beside serve see it: through the running
// serve, which has it open, or opened here where there is none.
type archive struct {
	store *store.Store // nil where a serve is asked
	admin string       // its address
	token string
}

// openArchive asks the serve at the admin address if that was given on the command
// line, else whoever has the store of the configuration, or the store itself.
func openArchive(cfg config.Config, asked bool) (*archive, error) {
	if asked {
		return &archive{admin: cfg.Admin, token: cfg.AdminToken.Reveal()}, nil
	}
	dir, err := cfg.State.Dir()
	if err != nil {
		return nil, err
	}
	if dir == config.InMemory {
		return nil, errors.New("state.path is :memory:, so nothing is kept that could be opened here; name the running serve with --admin ADDRESS")
	}
	s, err := openStore(cfg, dir, func(string) {})
	var locked *store.LockedError
	switch {
	case err == nil:
		return &archive{store: s}, nil
	case errors.As(err, &locked) && locked.Admin != "":
		return &archive{admin: locked.Admin, token: cfg.AdminToken.Reveal()}, nil
	}
	return nil, err
}

// openStore opens the store in that folder as the configuration wants it.
func openStore(cfg config.Config, dir string, report func(string)) (*store.Store, error) {
	return store.Open(store.Options{
		Dir: dir, Archive: cfg.State.Archive, Retention: cfg.State.Retention, MaxBytes: int64(cfg.State.MaxBytes), Report: report,
	})
}

func (a *archive) Close() {
	if a.store != nil {
		_ = a.store.Close()
	}
}

func (a *archive) recall(ctx context.Context, q store.Query) ([]store.Hit, error) {
	if a.store == nil {
		var answer struct {
			Hits []store.Hit `json:"hits"`
		}
		body, err := a.ask(ctx, http.MethodGet, "/api/v1/recall?"+query(q).Encode())
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(body, &answer); err != nil {
			return nil, fmt.Errorf("ask the running serve: %w", err)
		}
		return answer.Hits, nil
	}
	if err := a.store.IndexAll(ctx); err != nil {
		return nil, err
	}
	return a.store.Recall(q)
}

func (a *archive) text(ctx context.Context, hash string) (string, error) {
	if a.store == nil {
		body, err := a.ask(ctx, http.MethodGet, "/api/v1/texts/"+url.PathEscape(hash))
		return string(body), err
	}
	text, err := a.store.Text(hash)
	if errors.Is(err, store.ErrNotFound) {
		return "", errNothing
	}
	return text, err
}

func (a *archive) forget(ctx context.Context, id string) error {
	if a.store == nil {
		_, err := a.ask(ctx, http.MethodDelete, "/api/v1/conversations/"+url.PathEscape(id))
		return err
	}
	if _, _, _, err := a.store.Conversation(id); err != nil {
		if errors.Is(err, store.ErrNotFound) {
			return errNothing
		}
		return err
	}
	return a.store.Forget(id)
}

var errNothing = errors.New("it is not here: never was, or was pruned or forgotten")

// ask sends a request to the running serve.
func (a *archive) ask(ctx context.Context, method, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+a.admin+path, nil)
	if err != nil {
		return nil, fmt.Errorf("ask the running serve: %w", err)
	}
	if a.token != "" {
		req.Header.Set("Authorization", "Bearer "+a.token)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("no serve answers at the admin address %s: %w", a.admin, err)
	}
	defer res.Body.Close()
	const limit = 256 << 20
	body, err := io.ReadAll(io.LimitReader(res.Body, limit))
	if err != nil {
		return nil, fmt.Errorf("ask the running serve: %w", err)
	}
	if res.StatusCode >= 300 {
		var refusal struct {
			Error struct {
				Message string `json:"message"`
			} `json:"error"`
		}
		if json.Unmarshal(body, &refusal) == nil && refusal.Error.Message != "" {
			return nil, fmt.Errorf("the serve at %s answers: %s", a.admin, strings.TrimPrefix(refusal.Error.Message, "compactproxy: "))
		}
		return nil, fmt.Errorf("the running serve answers with status %d", res.StatusCode)
	}
	return body, nil
}
