package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/compactproxy/compactproxy/internal/config"
	"github.com/compactproxy/compactproxy/internal/store"
)

// hostile is what a file may hold that an agent has read: colours, a new title for
// the window, the cursor moved, a bell, C1 controls, backspaces.
const hostile = "zanzibar \x1b[31mred\x1b[0m \x1b]0;pwned\x07 \x1b[2J\u009b1A\u0090q\u009c \x08\x08\x7f\x00\u202e end"

// archived is a store with a conversation in it, whose text was replaced.
type archived struct {
	*app // nil where no serve runs
	dir  string
	id   string
	hash string // of the hostile text
}

// newArchived makes one through the whole program. change is for the serve that runs on,
// if one is to.
func newArchived(t *testing.T, running bool, change func(*config.Config)) *archived {
	t.Helper()
	_, address := startSim(t)
	v := &archived{dir: t.TempDir()}
	a, _ := knowing(t, address, func(c *config.Config) {
		c.State.Path = v.dir
		if change != nil {
			change(c)
		}
	})
	body := bytes.ReplaceAll(longChat(hostile, 0), []byte(`"name":"read","arguments"`), []byte(`"name":"read\u001b[7m","arguments"`))
	action, id := chat(t, a, body, "X-Compactproxy-Session", "nightly\u009b31m")
	if !isCompaction(action) {
		t.Fatalf("action %q", action)
	}
	if err := a.store.IndexAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(hostile))
	v.app, v.id, v.hash = a, id, hex.EncodeToString(sum[:])
	if !running {
		a.Close()
		v.app = nil
	}
	t.Setenv("COMPACTPROXY_STATE_PATH", v.dir)
	t.Setenv(config.EnvFile, "")
	return v
}

// spoken is what a command line did.
type spoken struct {
	code     int
	out, err string
}

func says(args ...string) spoken {
	var out, errs bytes.Buffer
	code := run(args, &out, &errs)
	return spoken{code, out.String(), errs.String()}
}

// failsWith checks an error of a command: one line, and nothing on standard output.
func (s spoken) failsWith(t *testing.T, code int, words ...string) {
	t.Helper()
	if s.code != code || s.out != "" || strings.Count(s.err, "\n") != 1 || strings.Count(s.err, "compactproxy: ") != 1 || !strings.HasPrefix(s.err, "compactproxy: ") {
		t.Errorf("exit code %d, want %d: %q, %q", s.code, code, s.out, s.err)
	}
	for _, word := range words {
		if !strings.Contains(s.err, word) {
			t.Errorf("no %q in %s", word, s.err)
		}
	}
}

// both runs a test with a serve and without one.
func both(t *testing.T, f func(*testing.T, *archived)) {
	t.Run("a serve runs", func(t *testing.T) { f(t, newArchived(t, true, nil)) })
	t.Run("none runs", func(t *testing.T) { f(t, newArchived(t, false, nil)) })
}

// What the commands say does not depend on whether a serve runs.
func TestRecall(t *testing.T) {
	both(t, func(t *testing.T, v *archived) {
		got := says("recall", "zanzibar")
		if got.code != exitDone || got.err != "" {
			t.Fatalf("%+v", got)
		}
		first, rest, _ := strings.Cut(got.out, "\n")
		second, rest, _ := strings.Cut(rest, "\n")
		if !strings.HasPrefix(first, v.id+" (nightly") || !strings.Contains(first, "message 3, result of read") || !strings.Contains(first, fmt.Sprintf(", %d bytes, archived 20", len(hostile))) {
			t.Errorf("the first line: %s", first)
		}
		if second != "sha256:"+v.hash {
			t.Errorf("the second line: %s", second)
		}
		if !strings.HasPrefix(rest, "    zanzibar ") || !strings.HasSuffix(rest, " end\n") {
			t.Errorf("the excerpt: %q", rest)
		}

		var answer struct{ Hits []store.Hit }
		got = says("recall", "--json", "zanzibar")
		if err := json.Unmarshal([]byte(got.out), &answer); err != nil || got.code != exitDone || len(answer.Hits) != 1 {
			t.Fatalf("%v: %+v", err, got)
		}
		if h := answer.Hits[0]; h.Conversation != v.id || h.Hash != v.hash || h.N != 3 || h.Role != "tool" || h.Bytes != len(hostile) || h.Times != 1 {
			t.Errorf("%+v", h)
		}

		for _, hash := range []string{v.hash, "sha256:" + v.hash, strings.ToUpper(v.hash)} {
			if diff := cmp.Diff(spoken{exitDone, hostile, ""}, says("recall", "--full", hash), cmp.AllowUnexported(spoken{})); diff != "" {
				t.Errorf("--full %s: -want +got\n%s", hash, diff)
			}
		}

		for _, c := range []struct {
			args []string
			hits int
		}{
			{[]string{"store.py"}, 1},
			{[]string{"src/store.py"}, 1},
			{[]string{"of", "file", "7"}, 1},
			{[]string{`"line of file 7"`}, 1},
			{[]string{`"file line"`}, 0},
			{[]string{"zanz*"}, 1},
			{[]string{v.hash}, 1},
			{[]string{"--conversation", v.id, "zanzibar"}, 1},
			{[]string{"--conversation", "nope", "zanzibar"}, 0},
			{[]string{"--conversation", "' OR 1=1 --", "zanzibar"}, 0},
			{[]string{"--limit", "2", "line"}, 2},
			{[]string{"--limit", "1", "line"}, 1},
			{[]string{"--", "-zanzibar", "--limit"}, 1},
			{[]string{"xyzzy"}, 0},
			{[]string{`" * ( ^ %s &limit=0 ?q=zanzibar`}, 0},
			{[]string{"zanzibar&conversation=nope"}, 0},
			{[]string{strings.Repeat("xyzzy ", 10_000)}, 0},
			{[]string{"xyzzy\x00\xff\n"}, 0},
		} {
			var answer struct{ Hits []store.Hit }
			got := says(append([]string{"recall", "--json"}, c.args...)...)
			if err := json.Unmarshal([]byte(got.out), &answer); err != nil || got.code != exitDone || got.err != "" || len(answer.Hits) != c.hits || !strings.Contains(got.out, `"hits": [`) {
				t.Errorf("%.60q: %v: exit code %d, %d hits, want %d: %.300s%s", c.args, err, got.code, len(answer.Hits), c.hits, got.out, got.err)
			}
			got = says(append([]string{"recall"}, c.args...)...)
			if n := strings.Count(got.out, "sha256:"); got.code != exitDone || n != c.hits || (n == 0) != (got.out == "nothing found\n") {
				t.Errorf("%.60q: %+v", c.args, got)
			}
		}
		says("recall", "--full", strings.Repeat("0", 64)).failsWith(t, exitFailed, "it is not here")
		says("recall", "--full", "zanzibar").failsWith(t, exitFailed)
		says("recall", "--full", "../conversations").failsWith(t, exitFailed)
	})
}

func TestForget(t *testing.T) {
	both(t, func(t *testing.T, v *archived) {
		for _, id := range []string{"nope", v.id + "x", strings.ToUpper(v.id), "../conversations/" + v.id, v.id + "/", v.id + "%00", "%", "..", ".", "?", "#" + v.id, " " + v.id, "a/b", strings.Repeat("x", 20_000), "'; DROP TABLE conversations; --", "\x1b[31m", "\xff"} {
			s := says("forget", id)
			s.failsWith(t, exitFailed, "it is not here")
			if strings.ContainsRune(s.err, '\x1b') {
				t.Errorf("%q reaches the terminal: %q", id, s.err)
			}
		}
		says("forget", "").failsWith(t, exitFailed)
		if got := says("recall", "zanzibar"); !strings.Contains(got.out, v.id) {
			t.Errorf("after failures: %+v", got)
		}
		if diff := cmp.Diff(spoken{exitDone, "forgot " + v.id + "\n", ""}, says("forget", v.id), cmp.AllowUnexported(spoken{})); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
		says("forget", v.id).failsWith(t, exitFailed, "it is not here")
		says("recall", "--full", v.hash).failsWith(t, exitFailed, "it is not here")
		for _, query := range []string{"zanzibar", "store.py", v.hash} {
			if diff := cmp.Diff(spoken{exitDone, "nothing found\n", ""}, says("recall", query), cmp.AllowUnexported(spoken{})); diff != "" {
				t.Errorf("%s: -want +got\n%s", query, diff)
			}
		}
		if v.app == nil {
			return
		}
		if action, id := chat(t, v.app, longChat(hostile, 1)); id == v.id || strings.Contains(action, "replay") {
			t.Errorf("it goes on as %s with action %q", id, action)
		}
		if diff := cmp.Diff(well, healthOf(t, v.app)); diff != "" {
			t.Errorf("health: -want +got\n%s", diff)
		}
	})
}

// Text of other people's cannot steer the terminal that it is listed on.
func TestRecall_Terminal(t *testing.T) {
	both(t, func(t *testing.T, v *archived) {
		for _, query := range []string{"zanzibar", "store.py", "line", v.hash} {
			got := says("recall", query)
			if got.code != exitDone || !strings.Contains(got.out, v.id) {
				t.Errorf("%s: %+v", query, got)
			}
			for _, r := range got.out {
				if unicode.IsControl(r) && r != '\n' || r == '\u202e' {
					t.Errorf("%s: %U reaches the terminal: %q", query, r, got.out)
					break
				}
			}
		}
		// JSON escapes what steers: as a terminal shows it, it is text.
		got := says("recall", "--json", "zanzibar")
		for _, r := range got.out {
			if r < ' ' && r != '\n' {
				t.Errorf("--json: %U reaches the terminal: %q", r, got.out)
				break
			}
		}
	})
}

// A serve that wants a token gets the one of the configuration, wherever that is.
func TestRecall_Token(t *testing.T) {
	const secret = "s3cr3t-t0ken"
	v := newArchived(t, true, func(c *config.Config) { c.AdminToken = secret })
	says("recall", "zanzibar").failsWith(t, exitFailed, "admin_token")
	says("forget", v.id).failsWith(t, exitFailed, "admin_token")
	t.Setenv("COMPACTPROXY_ADMIN_TOKEN", "another")
	for _, args := range [][]string{{"recall", "zanzibar"}, {"recall", "--full", v.hash}, {"forget", v.id}} {
		s := says(args...)
		s.failsWith(t, exitFailed, "admin_token")
		if strings.Contains(s.err, "another") || strings.Contains(s.err, secret) {
			t.Errorf("%s: the message has a token: %s", args[0], s.err)
		}
	}
	t.Setenv("COMPACTPROXY_ADMIN_TOKEN", "")
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("admin_token: "+secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := says("recall", "--config", file, "zanzibar"); got.code != exitDone || !strings.Contains(got.out, v.hash) {
		t.Errorf("from the file: %+v", got)
	}
	t.Setenv("COMPACTPROXY_ADMIN_TOKEN", secret)
	if got := says("recall", "--full", v.hash); got.code != exitDone || got.out != hostile {
		t.Errorf("from the environment: %+v", got)
	}
	if got := says("forget", v.id); got.code != exitDone {
		t.Errorf("forget: %+v", got)
	}
}

// The token and what is archived go to the serve and to nobody between: a proxy
// that the environment names is for the web.
func TestRecall_NoProxyBetween(t *testing.T) {
	const secret = "s3cr3t-t0ken"
	v := newArchived(t, true, func(c *config.Config) { c.Admin, c.AdminToken = "0.0.0.0:0", secret })
	var asked atomic.Int32
	spy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		asked.Add(1)
		if req.Header.Get("Authorization") != "" {
			t.Errorf("the proxy was given the token, for %s", req.URL)
		}
		w.WriteHeader(http.StatusBadGateway)
	}))
	defer spy.Close()
	// In a process of its own: net/http reads the environment once.
	cmd := exec.CommandContext(t.Context(), "compactproxy", "recall", "zanzibar")
	cmd.Env = append(os.Environ(), "COMPACTPROXY_ADMIN_TOKEN="+secret, "HTTP_PROXY="+spy.URL, "http_proxy="+spy.URL, "NO_PROXY=", "no_proxy=")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), v.hash) || asked.Load() != 0 {
		t.Errorf("%v, the proxy was asked %d times: %s", err, asked.Load(), out)
	}
}

// A serve that keeps its store elsewhere, or in memory, is asked by its address.
func TestRecall_AdminAddress(t *testing.T) {
	_, address := startSim(t)
	a, _ := knowing(t, address, in(config.InMemory))
	_, id := chat(t, a, longChat("zanzibar", 0))
	if err := a.store.IndexAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "state")
	t.Setenv("COMPACTPROXY_STATE_PATH", dir)
	admin := a.admin.Addr().String()
	if got := says("recall", "--admin", admin, "zanzibar"); got.code != exitDone || !strings.Contains(got.out, id) {
		t.Errorf("%+v", got)
	}
	if got := says("forget", "--admin", admin, id); got.code != exitDone {
		t.Errorf("%+v", got)
	}
	if got := says("recall", "--admin", admin, "zanzibar"); got.out != "nothing found\n" {
		t.Errorf("%+v", got)
	}
	says("recall", "--admin", "nonsense", "x").failsWith(t, exitUsage, "admin")
	a.Close()
	says("recall", "--admin", admin, "zanzibar").failsWith(t, exitFailed, admin)
	if _, err := os.Stat(dir); err == nil {
		t.Error("a store was made that nobody asked for")
	}
}

// What a serve that was killed has left does not lead anyone astray.
func TestRecall_AddressOfADeadServe(t *testing.T) {
	v := newArchived(t, false, nil)
	var asked atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer other.Close()
	left := fmt.Sprintf(`{"pid":1,"admin":%q}`, strings.TrimPrefix(other.URL, "http://"))
	if err := os.WriteFile(filepath.Join(v.dir, "serve.json"), []byte(left), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("COMPACTPROXY_ADMIN_TOKEN", "s3cr3t")
	if got := says("recall", "zanzibar"); got.code != exitDone || !strings.Contains(got.out, v.hash) || asked.Load() != 0 {
		t.Errorf("%+v, another program was asked %d times", got, asked.Load())
	}
}

// Another command that has the store open for a moment is named.
func TestRecall_StoreInUse(t *testing.T) {
	v := newArchived(t, false, nil)
	s, err := store.Open(store.Options{Dir: v.dir, Archive: true})
	if err != nil {
		t.Fatal(err)
	}
	says("recall", "zanzibar").failsWith(t, exitFailed, v.dir, "in use", fmt.Sprint(os.Getpid()))
	says("forget", v.id).failsWith(t, exitFailed, v.dir, "in use")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got := says("recall", "zanzibar"); got.code != exitDone || !strings.Contains(got.out, v.hash) {
		t.Errorf("%+v", got)
	}
}

// A command that finds the file damaged, and so moves it aside, says so: "nothing
// found" alone would be a lie.
func TestRecall_DamagedFile(t *testing.T) {
	v := newArchived(t, false, nil)
	path := filepath.Join(v.dir, "state.db")
	if err := os.WriteFile(path, bytes.Repeat([]byte("This is something else. "), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	got := says("recall", "zanzibar")
	aside, err := filepath.Glob(path + ".corrupt-*")
	if err != nil {
		t.Fatal(err)
	}
	if len(aside) > 0 && !strings.Contains(got.err, aside[0]) {
		t.Errorf("it was moved to %s, and all that was said is %+v", aside[0], got)
	}
	if len(aside) == 0 && got.code == exitDone {
		t.Errorf("the file is damaged, and all that was said is %+v", got)
	}
}

// full is a terminal that takes so many bytes.
type full struct{ left int }

func (f *full) Write(b []byte) (int, error) {
	if f.left -= len(b); f.left < 0 {
		return 0, fmt.Errorf("no space left on device")
	}
	return len(b), nil
}

// What cannot be printed is no success.
func TestRecall_OutputThatCannotBeWritten(t *testing.T) {
	v := newArchived(t, false, nil)
	for _, args := range [][]string{{"recall", "zanzibar"}, {"recall", "xyzzy"}, {"recall", "--json", "zanzibar"}, {"recall", "--full", v.hash}, {"recall", "line"}} {
		for _, left := range []int{0, 20} {
			if left > 0 && args[1] == "xyzzy" {
				continue
			}
			var errs bytes.Buffer
			if code := run(args, &full{left}, &errs); code != exitFailed || !strings.HasSuffix(errs.String(), "no space left on device\n") {
				t.Errorf("%q, %d bytes: exit code %d: %s", args, left, code, errs.String())
			}
		}
	}
}

// The examples of the help can be typed as they stand.
func TestRecall_Examples(t *testing.T) {
	dir := t.TempDir()
	examples := 0
	for _, cmd := range []*cobra.Command{newRecall(), newForget()} {
		if cmd.Short == "" || cmd.Long == "" || cmd.Example == "" {
			t.Errorf("%s has no help", cmd.Name())
		}
		for line := range strings.Lines(cmd.Example) {
			if !strings.HasPrefix(line, "  compactproxy "+cmd.Name()+" ") {
				t.Errorf("an example of %s: %q", cmd.Name(), line)
			}
			examples++
			sh := exec.CommandContext(t.Context(), "sh", "-c", line)
			sh.Env = append(os.Environ(), "COMPACTPROXY_STATE_PATH="+dir)
			var out, errs bytes.Buffer
			sh.Stdout, sh.Stderr = &out, &errs
			err := sh.Run()
			switch code := sh.ProcessState.ExitCode(); {
			case code == exitDone && strings.Contains(line, "--json") && json.Valid(out.Bytes()):
			case code == exitDone && out.String() == "nothing found\n":
			case code == exitFailed && strings.Contains(errs.String(), "it is not here"):
			default:
				t.Errorf("%s%v: %s%s", line, err, out.String(), errs.String())
			}
		}
	}
	if examples < 5 {
		t.Errorf("%d examples", examples)
	}
}
