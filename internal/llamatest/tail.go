package llamatest

import (
	"bytes"
	"strings"
	"sync"
)

// tailSize bounds what is kept of a server's log: a verbose server under a long
// test writes without end, and the interesting part is the last.
const tailSize = 1 << 20

// tail is a writer that remembers the end of what was written to it. The
// server's output arrives from another goroutine than the one that reads it.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

func (l *tail) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf = append(l.buf, p...)
	if len(l.buf) > 2*tailSize { // rarely, so that writing stays cheap
		l.buf = append([]byte(nil), l.buf[len(l.buf)-tailSize:]...)
	}
	return len(p), nil
}

func (l *tail) String() string { return l.last(tailSize) }

// last returns the last lines, up to n bytes.
func (l *tail) last(n int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.buf) <= n {
		return string(l.buf)
	}
	text := string(l.buf[len(l.buf)-n:])
	if _, whole, ok := strings.Cut(text, "\n"); ok {
		return whole
	}
	return text
}

func (l *tail) contains(s string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Contains(l.buf, []byte(s))
}
