package main

import (
	"context"
	"errors"

	"go.uber.org/zap"

	"github.com/compactproxy/compactproxy/internal/config"
	"github.com/compactproxy/compactproxy/internal/conversation"
	"github.com/compactproxy/compactproxy/internal/proxy"
	"github.com/compactproxy/compactproxy/internal/store"
)

// entriesBytes bounds what is kept of checkpoints in memory.
const entriesBytes = 256 << 20

// openState opens the store and reads what it keeps. A store of another serve, or
// of a newer program, is an error; with one that cannot be opened for any other
// reason the proxy serves from memory.
func (a *app) openState() error {
	o := conversation.Options{Conversations: a.cfg.Limits.Conversations, Bytes: entriesBytes, Retention: a.cfg.State.Retention, OnHealth: a.health}
	dir, err := a.cfg.State.Dir()
	if err == nil {
		a.store, err = openStore(a.cfg, dir, func(event string) { a.log.Warn(event, zap.String("folder", dir)) })
	}
	var locked *store.LockedError
	var newer *store.NewerError
	switch {
	case errors.As(err, &locked), errors.As(err, &newer):
		return err
	case err != nil:
		a.broken = err
		a.health(err)
	default:
		o.Store = a.store
		if err := a.store.SetAdmin(a.admin.Addr().String()); err != nil {
			a.log.Warn("other commands will not find this serve", zap.Error(err))
		}
	}
	index, err := conversation.NewIndex(o)
	if err != nil {
		a.health(err)
	}
	a.index = index
	ctx, stop := context.WithCancel(context.Background())
	a.stop, a.keeper = stop, make(chan struct{})
	go func() { // ends with closeState
		defer close(a.keeper)
		a.index.Run(ctx)
	}()
	if a.store != nil {
		stats := a.index.Stats()
		a.log.Info("opened the store", zap.String("folder", dir), zap.Int("conversations", stats.Conversations),
			zap.Int("checkpoints", stats.Checkpoints), zap.Int64("bytes", a.store.Size()))
	}
	return nil
}

// health says when the store begins to fail, and when it is well again.
func (a *app) health(err error) {
	if err == nil {
		a.metrics.StateDegraded.Set(0)
		a.log.Info("the store works again")
		return
	}
	a.metrics.StateDegraded.Set(1)
	a.log.Warn("the store does not work: serving on from memory, what is compacted from now on does not survive a restart; look at the disk and at state.path",
		zap.Error(err))
}

// storeState is what /readyz says of the store.
func (a *app) storeState() string {
	err := a.broken
	if err == nil {
		err = a.index.Health()
	}
	switch {
	case err != nil:
		return "degraded: " + err.Error()
	case a.cfg.State.Path == config.InMemory:
		return "memory"
	}
	return "open"
}

// archive is nil, and not a nil store, where there is none.
func (a *app) archive() proxy.Archive {
	if a.store == nil {
		return nil
	}
	return a.store
}

func (a *app) closeState() {
	a.stop()
	<-a.keeper
	if a.store == nil {
		return
	}
	if err := a.store.Close(); err != nil {
		a.log.Warn("the store was not closed cleanly", zap.Error(err))
	}
}
