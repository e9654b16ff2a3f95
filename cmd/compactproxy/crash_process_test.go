package main

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// process is a running "compactproxy serve". TestMain has put the program, which
// is this test binary under another name, on the PATH.
type process struct {
	cmd         *exec.Cmd
	base, admin string
	done        chan struct{} // closed when it is gone and its log is read to the end

	mu    sync.Mutex
	log   []logLine
	other []string      // that is no log: what the runtime says of a panic or a race
	news  chan struct{} // closed with the next line
}

type logLine struct {
	Level, Msg, Admin string
	Conversations     int
	Covered           int `json:"messages_covered"`
}

// stuck is when a test gives up on what should take a moment.
const stuck = 2 * time.Minute

// startProcess starts it on a state folder before a server, and returns when it
// listens.
func startProcess(t *testing.T, state, upstream string, env ...string) *process {
	t.Helper()
	p := &process{done: make(chan struct{}), news: make(chan struct{})}
	p.cmd = exec.Command("compactproxy", "serve")
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "COMPACTPROXY_") {
			p.cmd.Env = append(p.cmd.Env, v)
		}
	}
	p.cmd.Env = append(p.cmd.Env, "COMPACTPROXY_LISTEN=127.0.0.1:0", "COMPACTPROXY_ADMIN=127.0.0.1:0", "COMPACTPROXY_LOG_FORMAT=json",
		"COMPACTPROXY_STATE_PATH="+state, "COMPACTPROXY_UPSTREAM_URL="+upstream)
	p.cmd.Env = append(p.cmd.Env, env...)
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { // ends with the process
		defer close(p.done)
		lines := bufio.NewScanner(stderr)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			p.read(lines.Bytes())
		}
		_ = p.cmd.Wait() // it was killed
	}()
	t.Cleanup(p.end)
	running := p.await(t, " is running; ")
	_, p.base, _ = strings.Cut(running.Msg, "OPENAI_BASE_URL=")
	p.admin = running.Admin
	return p
}

func (p *process) read(line []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var l logLine
	if json.Unmarshal(line, &l) != nil {
		p.other = append(p.other, string(line))
	} else {
		p.log = append(p.log, l)
	}
	close(p.news)
	p.news = make(chan struct{})
}

// await returns the first line that says this, once there is one.
func (p *process) await(t *testing.T, text string) logLine {
	t.Helper()
	limit := time.After(stuck)
	for {
		p.mu.Lock()
		log, other, news := p.log, p.other, p.news
		p.mu.Unlock()
		for _, l := range log {
			if strings.Contains(l.Msg, text) {
				return l
			}
		}
		select {
		case <-news:
			continue
		case <-p.done:
		case <-limit:
		}
		t.Fatalf("the log never said %q: %+v %q", text, log, other)
	}
}

// kill is kill -9. It does not wait.
func (p *process) kill() { _ = p.cmd.Process.Kill() } // an error is that it is gone

// end kills it and waits until it is gone.
func (p *process) end() {
	p.kill()
	<-p.done
}

// check looks for what a process must never say that was killed, or started after
// a kill, and returns how many compactions it tells of. It must be gone.
func (p *process) check(t *testing.T) (compactions int) {
	t.Helper()
	for _, line := range p.other {
		t.Errorf("on standard error: %s", line)
	}
	for _, l := range p.log {
		switch {
		case l.Msg == "compacted" && l.Covered > 0:
			compactions++
		case l.Msg == "no summary", l.Msg == "the request could not be made shorter": // not of the store
		case l.Level != "info" && l.Level != "debug":
			t.Errorf("in the log: %s: %s", l.Level, l.Msg)
		}
	}
	return compactions
}
