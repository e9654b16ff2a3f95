package llamasim

import "sync"

// pool is a number of tokens that running requests share. When they outgrow
// it, all of them fail at once, as with a unified KV cache.
type pool struct {
	mu      sync.Mutex
	limit   int // 0 is no limit
	used    int
	running map[*lease]bool
}

// lease is a running request's part of the pool.
type lease struct {
	held int
	fail func() // called when the pool is exhausted
}

func newPool(limit int) *pool { return &pool{limit: limit, running: map[*lease]bool{}} }

// enter makes l a running request that holds nothing yet.
func (p *pool) enter(l *lease) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running[l] = true
}

// take adds n tokens to what l holds. If there are not enough, every running
// request fails, l among them.
func (p *pool) take(l *lease, n int) {
	if p.limit == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running[l] {
		return
	}
	l.held += n
	p.used += n
	if p.used <= p.limit {
		return
	}
	for other := range p.running {
		other.fail()
	}
	clear(p.running)
	p.used = 0
}

func (p *pool) leave(l *lease) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running[l] {
		delete(p.running, l)
		p.used -= l.held
	}
}
