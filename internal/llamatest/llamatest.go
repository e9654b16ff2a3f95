// Package llamatest starts a real llama-server inside a test.
//
// A simulated server answers what its author believed; the tests that use this
// package find out whether that is still what llama-server does. The model is
// one of package tinymodel's, so the words are nonsense while tokens, caches,
// refusals, templates and streams are real, and a server is up in a fraction of
// a second:
//
//	srv := llamatest.Start(t)
//	res, err := http.Get(srv.URL + "/props")
//
//	srv = llamatest.Options{
//		Model: tinymodel.Options{Arch: tinymodel.LFM2, Template: tinymodel.TemplateStrict},
//		Slots: 2,
//	}.Start(t, "--cache-ram", "0")
//
// The server is whatever scripts/llama-server finds: the one that LLAMA_SERVER
// names, the one on PATH, or the one that its install command unpacked. Where
// there is none, the tests are skipped, unless COMPACTPROXY_REQUIRE_LLAMA=1 says
// that a machine is meant to have one; then they fail.
package llamatest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/compactproxy/compactproxy/internal/tinymodel"
)

const (
	// attempts bounds how often a server is started on a new port because the
	// one before was taken in the moment between choosing and using it.
	attempts = 5
	// loading is how long a server may take until it is healthy. It needs a
	// tenth of a second; the rest is for machines that do many other things.
	loading = 2 * time.Minute
	// grace is how long a server may take to stop by itself. An idle one needs a
	// few milliseconds; one with an unfinished answer waits until the client has
	// gone, and so perhaps for ever.
	grace = 2 * time.Second
)

// Options describe the server to start. The zero value is what Start uses.
type Options struct {
	// Model is the model to serve. Its Template is the server's chat template.
	Model tinymodel.Options
	// Context is the total context size, divided among the slots; 4096 when
	// zero.
	Context int
	// Slots is the number of requests served at a time; 1 when zero.
	Slots int
}

// Server is a running llama-server.
type Server struct {
	// URL is where it listens, without a trailing slash.
	URL string

	child *exec.Cmd
	log   *tail
	done  chan struct{} // closed when the process has ended
	exit  error         // how it ended, once done is closed
}

// Start starts a server with the default options and stops it at the end of the
// test. It fails the test if the server does not come up, and skips it if this
// machine has none. The arguments are added to the server's command line, where
// they take precedence. A file that one of them names, as after
// --chat-template-file, may lie anywhere. They must not turn the log off, since
// that is where the server says that it has come up.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	return Options{}.Start(t, args...)
}

// Start is like the function Start, for a server as o describes it.
func (o Options) Start(t testing.TB, args ...string) *Server {
	t.Helper()
	script, err := find()
	if err != nil {
		unavailable(t, err)
	}
	model, err := cachedModel(t, o.Model)
	if err != nil {
		t.Fatal("llamatest: ", err)
	}
	if o.Context == 0 {
		o.Context = 4096
	}
	if o.Slots == 0 {
		o.Slots = 1
	}
	args = append([]string{
		"-c", strconv.Itoa(o.Context), "-np", strconv.Itoa(o.Slots),
		// One thread that sleeps while it waits: tests share the machine.
		"-t", "1", "-tb", "1", "--poll", "0",
		"--metrics", "--props",
	}, args...)

	for range attempts {
		port, err := freePort()
		if err != nil {
			t.Fatal("llamatest: ", err)
		}
		s, err := launch(t.Context(), script, port, model, args)
		if errors.Is(err, errPortTaken) {
			t.Log("llamatest: ", err, "; trying another")
			continue
		}
		if err != nil {
			t.Fatal("llamatest: ", err)
		}
		t.Cleanup(func() {
			s.Stop()
			if t.Failed() {
				t.Logf("llamatest: end of the log of %s:\n%s", s.URL, s.log.last(4000))
			}
		})
		return s
	}
	t.Fatalf("llamatest: no free port in %d attempts", attempts)
	return nil
}

// Log returns what the server has written so far. Of a very long log only the
// end is kept.
func (s *Server) Log() string { return s.log.String() }

// Stop stops the server as an operator would, and by force if that does not
// help. It returns when the process has ended. Start sees to it at the end of
// the test; a test calls it to see what happens without the server. Calling it
// twice is harmless.
func (s *Server) Stop() {
	if !s.signal(syscall.SIGTERM, grace) {
		s.Kill()
	}
}

// Kill ends the server at once, as a crash in the middle of an answer would. It
// returns when the process has ended.
func (s *Server) Kill() { s.signal(syscall.SIGKILL, 0) }

// signal sends sig to the server's process group and waits for the process to
// end, for ever if limit is zero. It reports whether the process has ended.
func (s *Server) signal(sig syscall.Signal, limit time.Duration) bool {
	select {
	case <-s.done:
		return true // and its number may belong to another process by now
	default:
	}
	// The error says that the process is gone already, which is the aim.
	_ = syscall.Kill(-s.child.Process.Pid, sig)
	var late <-chan time.Time
	if limit > 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-s.done:
		return true
	case <-late:
		return false
	}
}

var errPortTaken = errors.New("the port was taken before the server could use it")

// bindFailure is how llama-server's log says so.
var bindFailure = regexp.MustCompile(`(?i)(couldn't|could not|can't|cannot) bind|address already in use`)

// launch starts one server process and returns when it serves.
func launch(ctx context.Context, script, port, model string, args []string) (*Server, error) {
	s := &Server{
		URL:  "http://127.0.0.1:" + port,
		log:  new(tail),
		done: make(chan struct{}),
	}
	s.child = exec.Command(script, append([]string{"run", port, model}, args...)...)
	s.child.Stdout, s.child.Stderr = s.log, s.log
	s.child.SysProcAttr = ownGroup()
	s.child.Env = environment()
	s.child.WaitDelay = grace // for whoever else may have inherited the pipes

	started := make(chan error)
	go func() {
		// Linux ends the child when the thread that started it ends, so this
		// thread has to live as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := s.child.Start()
		started <- err
		if err == nil {
			s.exit = s.child.Wait()
			close(s.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start llama-server: %w", err)
	}
	if err := s.await(ctx, port); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// await returns when the server is healthy.
func (s *Server) await(ctx context.Context, port string) error {
	ctx, cancel := context.WithTimeout(ctx, loading)
	defer cancel()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		// A healthy answer alone could come from another test's server that won
		// the race for the port. The log says that it is this one.
		if s.log.contains("127.0.0.1:"+port) && healthy(ctx, s.URL) {
			return nil
		}
		select {
		case <-s.done:
			log := s.log.last(4000)
			if bindFailure.MatchString(log) {
				return fmt.Errorf("%s: %w", s.URL, errPortTaken)
			}
			return fmt.Errorf("llama-server ended at once (%v); its log ends:\n%s", s.exit, log)
		case <-ctx.Done():
			return fmt.Errorf("llama-server not healthy within %v (%w); its log ends:\n%s", loading, ctx.Err(), s.log.last(4000))
		case <-poll.C:
		}
	}
}

func healthy(ctx context.Context, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/health", nil)
	if err != nil {
		return false
	}
	req.Close = true // leaves no idle connection for a leak test to find
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	res.Body.Close()
	return res.StatusCode == http.StatusOK
}

// environment is the test's own without llama-server's settings, which would
// make the same test behave differently for a developer who has some.
func environment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "LLAMA_ARG_") || strings.HasPrefix(v, "LLAMA_API_KEY=")
	})
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("choose a port: %w", err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

// packageDir is where the test began: the folder of its package. A test may
// change the directory before it starts a server.
var packageDir, errPackageDir = os.Getwd()

// find returns the repository's script after it has confirmed that there is a
// server to run.
var find = sync.OnceValues(func() (string, error) {
	dir, err := packageDir, errPackageDir
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no go.mod above the package, so no scripts/llama-server")
		}
		dir = parent
	}
	script := filepath.Join(dir, "scripts", "llama-server")
	if out, err := exec.Command(script, "which").CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
	}
	return script, nil
})

// unavailable ends a test that cannot have a server.
func unavailable(t testing.TB, err error) {
	t.Helper()
	const required = "COMPACTPROXY_REQUIRE_LLAMA"
	if os.Getenv(required) == "1" {
		t.Fatalf("llamatest: %s=1, but there is no llama-server here: %v", required, err)
	}
	t.Skipf("\n"+
		"*** NOT TESTED: %s checks compactproxy against a real llama-server, and this machine has none.\n"+
		"*** %v\n"+
		"*** To get one: scripts/llama-server install (Linux, as root), or brew install llama.cpp (macOS),\n"+
		"*** or any build on PATH or named by LLAMA_SERVER. With %s=1 this is a failure.",
		t.Name(), err, required)
}
