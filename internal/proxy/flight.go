package proxy

import (
	"context"
	"sync"
	"time"

	"github.com/compactproxy/compactproxy/internal/conversation"
)

// flightGrace is how long a compaction runs on after the last client that waits
// for it has gone: an agent that timed out sends the same prefix again.
const flightGrace = 30 * time.Second

// flights are the compactions under way, at most one of a conversation: requests
// with one beginning share it.
type flights struct {
	ctx  context.Context // of the proxy
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu sync.Mutex
	of map[*conversation.Conversation]*flight
}

type flight struct {
	done    chan struct{}
	cancel  context.CancelFunc
	waiters int
	grace   *time.Timer // runs while nobody waits
}

func newFlights() *flights {
	f := &flights{of: map[*conversation.Conversation]*flight{}}
	f.ctx, f.stop = context.WithCancel(context.Background())
	return f
}

// close ends every flight and waits for them.
func (f *flights) close() {
	f.mu.Lock()
	f.stop()
	f.mu.Unlock()
	f.wg.Wait()
}

// join waits for the compaction of a conversation that is under way, or begins
// one: do runs in a goroutine of its own then, and mine is true. The error is the
// context's, where its end came first; do may go on for a while all the same.
func (f *flights) join(ctx context.Context, c *conversation.Conversation, do func(context.Context)) (mine bool, err error) {
	f.mu.Lock()
	if f.ctx.Err() != nil { // the proxy is closing
		f.mu.Unlock()
		return true, f.ctx.Err()
	}
	fl, under := f.of[c]
	if !under {
		fl = &flight{done: make(chan struct{})}
		var work context.Context
		work, fl.cancel = context.WithCancel(f.ctx)
		f.of[c] = fl
		f.wg.Add(1)
		go func() { // ends with do, which ends with its context
			defer f.wg.Done()
			defer f.land(c, fl)
			do(work)
		}()
	}
	fl.waiters++
	if fl.grace != nil {
		fl.grace.Stop()
		fl.grace = nil
	}
	f.mu.Unlock()

	select {
	case <-fl.done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if fl.waiters--; fl.waiters == 0 && err != nil {
		fl.grace = time.AfterFunc(flightGrace, fl.cancel)
	}
	return !under, err
}

func (f *flights) land(c *conversation.Conversation, fl *flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.of, c)
	if fl.grace != nil {
		fl.grace.Stop()
	}
	fl.cancel()
	close(fl.done)
}
