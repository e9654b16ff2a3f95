package upstream

import (
	"context"
	"sync"
	"time"
)

// TrackerOptions are what a Tracker needs from its surroundings. Only Probe is required.
type TrackerOptions struct {
	// Probe takes one look at the server: a Prober's.
	Probe func(context.Context) Status
	// Configured returns the window that the user set for a model, 0 for none. The model is known by the
	// name that a request asks for and by the one that the server calls it. It is asked on every call of
	// Window, so that it may follow a reloaded configuration.
	Configured func(asked, served string) int
	// OnChange is called after every look that showed something new, the first one included, from the
	// Tracker's goroutine and one at a time. It may call the Tracker, except for Close and First.
	OnChange func(old, new Status)
	// OnCapped is called, once for each, when a configured window turns out larger than what the
	// server has shown. It runs in the call of Window that found out.
	OnCapped func(Capped)
}

const (
	// A look that finds the server down or loading is repeated after a second, then two, four, five,
	// five ...
	minRetry = time.Second
	maxRetry = 5 * time.Second
	// A look is old after a minute, and is repeated when the next request comes. It is repeated without
	// a request where the server answers but cannot be read: it logs each question that lacks the key.
	maxAge = time.Minute
	// remembered bounds what is kept by model name, since clients choose those.
	remembered = 256
)

// A Tracker keeps what is known of the server and its windows. It looks at the server by itself until
// it is ready, then when told to, or when a request comes and the last look is old. It never makes a
// request wait.
type Tracker struct {
	opts   TrackerOptions
	cancel context.CancelFunc
	done   chan struct{} // closed when the goroutine has ended
	first  chan struct{} // closed after the first look
	asks   chan string   // reasons to look again; holds one

	mu      sync.Mutex
	status  Status // of the last look
	known   Status // of the last look that showed models: a server that is down has not lost them
	looking bool   // a look is under way, or a Touch has asked for one
	learned map[string]lesson
	capped  map[Capped]bool
}

// A lesson is a window that a refusal named, and what the server said of it before.
type lesson struct {
	window  int
	reading int
}

// NewTracker starts looking at once. Close ends it.
func NewTracker(opts TrackerOptions) *Tracker {
	ctx, cancel := context.WithCancel(context.Background())
	t := &Tracker{
		opts:    opts,
		cancel:  cancel,
		done:    make(chan struct{}),
		first:   make(chan struct{}),
		asks:    make(chan string, 1),
		looking: true,
		learned: map[string]lesson{},
		capped:  map[Capped]bool{},
	}
	go t.run(ctx)
	return t
}

// Close stops the Tracker and waits for its goroutine. What is known stays readable. It may be called
// more than once.
func (t *Tracker) Close() {
	t.cancel()
	<-t.done
}

// Status returns what the last look showed, without waiting for one.
func (t *Tracker) Status() Status {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.status
}

// LlamaServer tells whether the last look at the server showed a llama-server.
func (t *Tracker) LlamaServer() bool { return t.Status().LlamaServer }

// First waits for the first look and returns what is known then, or the context's error.
func (t *Tracker) First(ctx context.Context) (Status, error) {
	select {
	case <-t.first:
		return t.Status(), nil
	case <-t.done:
		if status := t.Status(); status.State != Unknown {
			return status, nil
		}
		return Status{}, context.Canceled // closed before the first look was over
	case <-ctx.Done():
		return t.Status(), ctx.Err()
	}
}

// Window returns the window of a model, by the name that a request gives it; the empty name is the
// loaded model. What is configured counts, up to what the server has shown; else what a refusal said;
// else what the server says of itself.
func (t *Tracker) Window(model string) Window {
	configured := 0
	t.mu.Lock()
	shown := t.shown(model)
	t.mu.Unlock()
	if t.opts.Configured != nil {
		configured = t.opts.Configured(model, shown.Model)
	}
	w, capped := window(configured, shown)
	if capped != nil && t.isNews(*capped) && t.opts.OnCapped != nil {
		t.opts.OnCapped(*capped)
	}
	return w
}

// shown is what the server has shown of a model, by a refusal or by itself. t.mu is held.
func (t *Tracker) shown(model string) Window {
	m, listed := t.known.Find(model)
	if !listed {
		m = Model{Name: model}
	}
	if lesson, ok := t.learned[m.Name]; ok {
		return Window{Model: m.Name, Tokens: lesson.window, Source: Refused}
	}
	return Window{Model: m.Name, Tokens: m.Window, Source: m.Source}
}

func (t *Tracker) isNews(c Capped) bool {
	c.Source = Nowhere // the same number from elsewhere is no news
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.capped[c] || len(t.capped) >= remembered {
		return false
	}
	t.capped[c] = true
	return true
}

// Learn takes in the window that a refusal named for a model. It counts until the server says
// something else than it said before, or was away. Learn reports whether that changed what the server
// is known to have, and has it looked at again where it contradicts what it said of itself.
func (t *Tracker) Learn(model string, window int) (changed bool) {
	if window <= 0 {
		return false
	}
	t.mu.Lock()
	before := t.shown(model)
	reading := 0
	if m, ok := t.known.Find(model); ok {
		reading = m.Window
	}
	if _, ok := t.learned[before.Model]; !ok && len(t.learned) >= remembered {
		for name := range t.learned { // any: a client that makes up names loses by it
			delete(t.learned, name)
			break
		}
	}
	t.learned[before.Model] = lesson{window, reading}
	t.mu.Unlock()
	if window == before.Tokens {
		return false
	}
	if reading > 0 && reading != window {
		t.Invalidate("a refusal named another window")
	}
	return true
}

// Invalidate says that the server may not be what it was: a connection failed, an answer named another
// model. It is looked at again soon, and at most once a second however often this is called.
func (t *Tracker) Invalidate(reason string) {
	select {
	case t.asks <- reason:
	default: // it is going to be looked at
	}
}

// Touch says that a request came. The server is looked at again where the last look is old; the request
// need not wait for that.
func (t *Tracker) Touch() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.looking && time.Since(t.status.At) >= maxAge {
		t.looking = true // so that the requests that come with this one ask for no second look
		t.Invalidate("the last look was old")
	}
}

func (t *Tracker) run(ctx context.Context) {
	defer close(t.done)
	reason, failures := "start", 0
	for {
		status := t.opts.Probe(ctx)
		if ctx.Err() != nil {
			return
		}
		status.Reason, status.At = reason, time.Now()
		t.store(status)

		var again <-chan time.Time
		switch status.State {
		case Ready:
			failures = 0
		case Down, Loading, Busy, Unknown:
			again = time.After(min(minRetry<<min(failures, 8), maxRetry))
			failures++
		default:
			again = time.After(maxAge)
			failures = 0
		}
		select {
		case <-ctx.Done():
			return
		case <-again:
			reason = "it was " + status.State.String()
		case reason = <-t.asks:
			// A server that refuses connections has many requests fail at once: one look a second.
			select {
			case <-ctx.Done():
				return
			case <-time.After(minRetry - time.Since(status.At)):
			}
		}
		t.mu.Lock()
		t.looking = true
		t.mu.Unlock()
		select {
		case <-t.asks: // this look answers it
		default:
		}
	}
}

// store takes in what a look showed.
func (t *Tracker) store(status Status) {
	t.mu.Lock()
	old := t.status
	wasAway := old.State == Down || old.State == Loading
	t.status, t.looking = status, false
	if status.State == Ready || len(status.Models) > 0 {
		t.known = status
		learned := map[string]lesson{}
		for name, l := range t.learned {
			m, listed := status.Find(name)
			if !listed {
				m.Name = name
			}
			if !wasAway && m.Window == l.reading {
				learned[m.Name] = l
			}
		}
		t.learned = learned
	}
	t.mu.Unlock()
	if t.opts.OnChange != nil && (old.State == Unknown || !status.Same(old)) {
		t.opts.OnChange(old, status)
	}
	select {
	case <-t.first:
	default:
		close(t.first)
	}
}
