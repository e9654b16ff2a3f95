package proxy

import (
	"context"
	"sync"
)

// pool knows which requests are at the server, for the one refusal that
// waiting cures: parallel requests share a KV pool by default, and when it is
// exhausted all of them fail, small ones too.
type pool struct {
	mu      sync.Mutex
	running map[*exchange]chan struct{}
	turn    chan struct{} // held by the one that retries alone
}

func newPool() *pool {
	return &pool{running: map[*exchange]chan struct{}{}, turn: make(chan struct{}, 1)}
}

func (p *pool) enter(ex *exchange) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running[ex] == nil {
		p.running[ex] = make(chan struct{})
	}
}

func (p *pool) leave(ex *exchange) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if done := p.running[ex]; done != nil {
		close(done)
		delete(p.running, ex)
	}
}

// alone waits until every request that is running now is done, one waiter at a
// time: two that were refused together would only exhaust the pool again. The
// caller enters again and calls release when its retry is over.
func (p *pool) alone(ctx context.Context, ex *exchange) (release func(), err error) {
	p.leave(ex)
	select {
	case p.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	release = func() { <-p.turn }
	p.mu.Lock()
	var others []chan struct{}
	for _, done := range p.running {
		others = append(others, done)
	}
	p.mu.Unlock()
	for _, done := range others {
		select {
		case <-done:
		case <-ctx.Done():
			release()
			return nil, ctx.Err()
		}
	}
	return release, nil
}
