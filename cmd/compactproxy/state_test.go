package main

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/compactproxy/compactproxy/internal/config"
	"github.com/compactproxy/compactproxy/internal/llamasim"
	"github.com/compactproxy/compactproxy/internal/store"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

// simWindow is outgrown by longChat.
const simWindow = 8192

func startSim(t *testing.T) (*llamasim.Server, string) {
	t.Helper()
	sim := llamasim.New(llamasim.Options{Window: simWindow, Seed: 1})
	server := httptest.NewServer(sim)
	t.Cleanup(server.Close)
	return sim, server.URL
}

// withoutSummary compacts by the steps that need no model, which are the same each
// time.
func withoutSummary(c *config.Config) { c.Compaction.Summary.Enabled = false }

// knowing starts the whole program and waits until it knows the server.
func knowing(t *testing.T, address string, change func(*config.Config)) (*app, *observer.ObservedLogs) {
	t.Helper()
	a, logs := startApp(t, address, func(c *config.Config) {
		withoutSummary(c)
		if change != nil {
			change(c)
		}
	})
	if _, err := a.tracker.First(t.Context()); err != nil {
		t.Fatal(err)
	}
	return a, logs
}

func in(dir string) func(*config.Config) { return func(c *config.Config) { c.State.Path = dir } }

func jsonText(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// longChat is a body that outgrows the window: something is read first, then many
// files, then a little more for each turn that followed.
func longChat(text string, more int) []byte {
	var b strings.Builder
	b.WriteString(`{"model":"m","max_tokens":4,"messages":[{"role":"system","content":"You are an agent."},{"role":"user","content":"Task: find the fault."}`)
	read := func(id, tool, path, text string) {
		fmt.Fprintf(&b, `,{"role":"assistant","content":null,"tool_calls":[{"id":%q,"type":"function","function":{"name":%s,"arguments":%s}}]},{"role":"tool","tool_call_id":%q,"content":%s}`,
			id, jsonText(tool), jsonText(`{"path":`+jsonText(path)+`}`), id, jsonText(text))
	}
	read("a", "read", "src/store.py", text)
	for i := range 13 {
		read(fmt.Sprint("b", i), "read", fmt.Sprintf("/%d.go", i), strings.Repeat(fmt.Sprintf("line of file %d and so on\n", i), 90))
	}
	for i := range more {
		read(fmt.Sprint("c", i), "read", fmt.Sprintf("/more/%d.go", i), fmt.Sprintf("a little of %d", i))
	}
	b.WriteString(`],"tools":[{"type":"function","function":{"name":"read","parameters":{"type":"object"}}}]}`)
	return []byte(b.String())
}

// chat sends a body, which must be answered, and returns what the proxy did.
func chat(t *testing.T, a *app, body []byte, header ...string) (action, id string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, a.base()+"/chat/completions", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := oneShot.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("status %d, %v: %.300s", res.StatusCode, err, answer)
	}
	return res.Header.Get("X-Compactproxy-Action"), res.Header.Get("X-Compactproxy-Conversation")
}

func isCompaction(action string) bool {
	return slices.ContainsFunc(strings.Split(action, ", "), func(a string) bool { return a == "passes" || a == "summary" || a == "recovery" })
}

// health is what /readyz and the gauge say of the store.
type health struct {
	Code     int
	Store    string
	Degraded string
}

func healthOf(t *testing.T, a *app) health {
	t.Helper()
	var state struct {
		Ready bool
		Store string
	}
	admin := "http://" + a.admin.Addr().String()
	h := health{Code: getJSON(t, admin+"/readyz", &state)}
	if h.Store = state.Store; state.Ready != (h.Code == http.StatusOK) {
		t.Errorf("ready %v with status %d", state.Ready, h.Code)
	}
	res, err := http.Get(admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(body)) {
		if value, ok := strings.CutPrefix(line, "compactproxy_state_degraded "); ok {
			h.Degraded = strings.TrimSpace(value)
		}
	}
	return h
}

var well = health{Code: http.StatusOK, Store: "open", Degraded: "0"}

// warnings are what the log says above info.
func warnings(logs *observer.ObservedLogs) (out []string) {
	for _, e := range logs.All() {
		if e.Level > zap.InfoLevel {
			out = append(out, fmt.Sprint(e.Message, " ", e.ContextMap()))
		}
	}
	return out
}

// modes are the permissions of everything in a folder, by name.
func modes(t *testing.T, dir string) map[string]fs.FileMode {
	t.Helper()
	out := map[string]fs.FileMode{}
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		out[name] = info.Mode().Perm()
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

// Without a setting the store is in the user's state directory, and nobody else can
// read it, whatever the umask lets others do.
func TestState_DefaultPath(t *testing.T) {
	_, address := startSim(t)
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_STATE_HOME", filepath.Join(home, "xdg"))
	t.Setenv("LocalAppData", filepath.Join(home, "local"))
	defer syscall.Umask(syscall.Umask(0))
	a, logs := knowing(t, address, in(""))
	chat(t, a, longChat("some text", 0))
	want := map[string]string{
		"linux":  filepath.Join(home, "xdg", "compactproxy"),
		"darwin": filepath.Join(home, "Library", "Application Support", "compactproxy"),
	}[runtime.GOOS]
	if want == "" {
		t.Skip("where the state directory is here, no test says")
	}
	got := modes(t, want)
	for _, name := range []string{"state.db", "state.db-wal", "serve.lock", "serve.json"} {
		if _, ok := got[name]; !ok {
			t.Errorf("there is no %s in %v", name, got)
		}
	}
	for name, mode := range got {
		if want := fs.FileMode(0o600); name == "." && mode != 0o700 || name != "." && mode != want {
			t.Errorf("%s: mode %o", name, mode)
		}
	}
	opened := logs.FilterMessage("opened the store").All()
	if len(opened) != 1 || opened[0].ContextMap()["folder"] != want {
		t.Errorf("the log: %v", opened)
	}
	if diff := cmp.Diff(well, healthOf(t, a)); diff != "" {
		t.Errorf("health: -want +got\n%s", diff)
	}
	a.Close()
	if _, err := os.Stat(filepath.Join(want, "serve.json")); err == nil {
		t.Error("the address of a serve that has ended is still there")
	}
	if w := warnings(logs); w != nil {
		t.Errorf("warnings: %q", w)
	}
}

// The files of a store that others could read are closed to them.
func TestState_OldPermissions(t *testing.T) {
	_, address := startSim(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "state.db"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "state.db"), 0o666); err != nil {
		t.Fatal(err)
	}
	a, _ := knowing(t, address, in(dir))
	chat(t, a, longChat("some text", 0))
	for name, mode := range modes(t, dir) {
		if name != "." && mode != 0o600 {
			t.Errorf("%s: mode %o", name, mode)
		}
	}
}

// serves runs the command and returns its exit code and what it says. It must end
// by itself.
func serves(t *testing.T, args ...string) (code int, said string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(append([]string{"serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, args...), &out, &errs)
	if out.Len() > 0 {
		t.Errorf("on standard output: %s", out.String())
	}
	return code, errs.String()
}

// A second serve on a folder is refused with what to do, and does the first one no
// harm.
func TestState_SecondServe(t *testing.T) {
	_, address := startSim(t)
	dir := t.TempDir()
	a, logs := knowing(t, address, in(dir))
	t.Setenv("COMPACTPROXY_STATE_PATH", dir)
	before := modes(t, dir)
	code, said := serves(t)
	if code != exitFailed || strings.Count(said, "\n") != 1 || !strings.HasPrefix(said, "compactproxy: ") {
		t.Errorf("exit code %d: %s", code, said)
	}
	for _, want := range []string{dir, "state.path", "in use", fmt.Sprint(os.Getpid()), a.admin.Addr().String()} {
		if !strings.Contains(said, want) {
			t.Errorf("no %q in %s", want, said)
		}
	}
	if diff := cmp.Diff(before, modes(t, dir)); diff != "" {
		t.Errorf("it left something: -before +after\n%s", diff)
	}
	if admin, ok := store.Running(dir); !ok || admin != a.admin.Addr().String() {
		t.Errorf("the first one is found as %q, %v", admin, ok)
	}
	if action, _ := chat(t, a, longChat("some text", 0)); !isCompaction(action) {
		t.Errorf("action %q", action)
	}
	if diff := cmp.Diff(well, healthOf(t, a)); diff != "" {
		t.Errorf("health: -want +got\n%s", diff)
	}
	if w := warnings(logs); w != nil {
		t.Errorf("warnings: %q", w)
	}
	// One with a folder of its own runs beside it, and once the first has ended
	// another takes its place.
	knowing(t, address, nil)
	a.Close()
	b, _ := knowing(t, address, in(dir))
	if diff := cmp.Diff(well, healthOf(t, b)); diff != "" {
		t.Errorf("health of the next: -want +got\n%s", diff)
	}
}

// asked runs a statement on the file of a store that is closed.
func asked(t *testing.T, dir, statement string) {
	t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(dir, "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(statement); err != nil {
		t.Fatal(err)
	}
}

// A file of a newer program is not touched by anything.
func TestState_NewerFile(t *testing.T) {
	_, address := startSim(t)
	dir := t.TempDir()
	a, _ := knowing(t, address, in(dir))
	_, id := chat(t, a, longChat("some text", 0))
	a.Close()
	asked(t, dir, "PRAGMA user_version = 999")
	path := filepath.Join(dir, "state.db")
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("COMPACTPROXY_STATE_PATH", dir)
	for _, command := range [][]string{{"serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, {"recall", "text"}, {"forget", id}} {
		var out, errs bytes.Buffer
		code := run(command, &out, &errs)
		if said := errs.String(); code != exitFailed || strings.Count(said, "\n") != 1 || out.Len() > 0 ||
			!strings.Contains(said, path) || !strings.Contains(said, "999") || !strings.Contains(said, "newer") || !strings.Contains(said, "state.path") {
			t.Errorf("%s: exit code %d: %s%s", command[0], code, out.String(), said)
		}
	}
	after, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(before, after) {
		t.Errorf("the file was changed, %v", err)
	}
	asked(t, dir, "PRAGMA user_version = 1")
	b, _ := knowing(t, address, in(dir))
	if action, again := chat(t, b, longChat("some text", 1)); again != id || !strings.Contains(action, "replay") {
		t.Errorf("once it is upgraded: conversation %s with action %q, was %s", again, action, id)
	}
}

// A damaged file is moved aside, with a word in the log about where to, and serve
// runs with a new one.
func TestState_DamagedFile(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, path string){
		"not a database": func(t *testing.T, path string) {
			if err := os.WriteFile(path, bytes.Repeat([]byte("This is something else. "), 1000), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"overwritten": func(t *testing.T, path string) {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for i := 4096; i < len(b); i++ {
				b[i] = byte(i * 7)
			}
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"another program's": func(t *testing.T, path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			asked(t, filepath.Dir(path), "CREATE TABLE conversations (mine TEXT); PRAGMA user_version = 1")
		},
		// It is too large to be checked as it is opened, and shows its damage as it is read.
		"large, and damaged inside": func(t *testing.T, path string) {
			asked(t, filepath.Dir(path), "CREATE TABLE filler (b BLOB); INSERT INTO filler VALUES (zeroblob(34000000))")
			db, err := sql.Open("sqlite", path)
			if err != nil {
				t.Fatal(err)
			}
			var page, size int64
			err = db.QueryRow("SELECT rootpage, (SELECT page_size FROM pragma_page_size) FROM sqlite_master WHERE name = 'conversations'").Scan(&page, &size)
			db.Close()
			if err != nil {
				t.Fatal(err)
			}
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteAt(bytes.Repeat([]byte{0xa5}, int(size)), (page-1)*size); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, address := startSim(t)
			dir := t.TempDir()
			first, _ := knowing(t, address, in(dir))
			chat(t, first, longChat("some text", 0))
			first.Close()
			path := filepath.Join(dir, "state.db")
			damage(t, path)
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}

			a, logs := knowing(t, address, in(dir))
			aside, err := filepath.Glob(path + ".corrupt-*")
			if err != nil || len(aside) == 0 {
				t.Fatalf("nothing was moved aside: %v", modes(t, dir))
			}
			after, err := os.ReadFile(aside[0])
			if err != nil || len(after) != len(before) {
				t.Errorf("%d bytes were moved aside, %d there were, %v", len(after), len(before), err)
			}
			if got := modes(t, dir)[filepath.Base(aside[0])]; got != 0o600 {
				t.Errorf("mode %o of what was moved aside", got)
			}
			told := 0
			for _, w := range warnings(logs) {
				if strings.Contains(w, "damaged") && strings.Contains(w, aside[0]) {
					told++
				}
			}
			if told != 1 || len(warnings(logs)) != 1 {
				t.Errorf("the log tells %d times of it: %q", told, warnings(logs))
			}
			// It is over: the new one works, and everything says so.
			if diff := cmp.Diff(well, healthOf(t, a)); diff != "" {
				t.Errorf("health: -want +got\n%s", diff)
			}
			action, id := chat(t, a, longChat("some text", 0))
			if !isCompaction(action) {
				t.Errorf("action %q", action)
			}
			if diff := cmp.Diff(well, healthOf(t, a)); diff != "" {
				t.Errorf("health, later: -want +got\n%s", diff)
			}
			a.Close()
			b, _ := knowing(t, address, in(dir))
			if action, again := chat(t, b, longChat("some text", 1)); again != id || action != "replay" {
				t.Errorf("after a restart: conversation %s with action %q, was %s", again, action, id)
			}
		})
	}
}

// In memory means in memory, the files that SQLite could make aside included.
func TestState_InMemory(t *testing.T) {
	_, address := startSim(t)
	dir := t.TempDir()
	t.Chdir(dir)
	for _, name := range []string{"HOME", "XDG_STATE_HOME", "TMPDIR", "SQLITE_TMPDIR", "LocalAppData"} {
		t.Setenv(name, dir)
	}
	a, logs := knowing(t, address, in(config.InMemory))
	action, id := chat(t, a, longChat("zanzibar", 0))
	if !isCompaction(action) {
		t.Errorf("action %q", action)
	}
	if action, again := chat(t, a, longChat("zanzibar", 1)); action != "replay" || again != id {
		t.Errorf("action %q of %s", action, again)
	}
	if diff := cmp.Diff(health{Code: http.StatusOK, Store: "memory", Degraded: "0"}, healthOf(t, a)); diff != "" {
		t.Errorf("health: -want +got\n%s", diff)
	}
	if err := a.store.IndexAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	var found struct{ Hits []store.Hit }
	if code := getJSON(t, "http://"+a.admin.Addr().String()+"/api/v1/recall?q=zanzibar", &found); code != http.StatusOK || len(found.Hits) != 1 {
		t.Errorf("status %d: %+v", code, found)
	}
	// Nobody is in the way of a second one.
	knowing(t, address, in(config.InMemory))
	a.Close()
	if got := modes(t, dir); len(got) != 1 {
		t.Errorf("on disk: %v", got)
	}
	if w := warnings(logs); w != nil {
		t.Errorf("warnings: %q", w)
	}
}

// Where the store cannot be opened, serve runs on from memory and everything says
// so: an agent is worth more than its history.
func TestState_Unusable(t *testing.T) {
	write := func(t *testing.T, path string) {
		t.Helper()
		if err := os.WriteFile(path, []byte("mine"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	mkdir := func(t *testing.T, path string) {
		t.Helper()
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, prepare := range map[string]func(t *testing.T, dir string) string{
		"a file in its place": func(t *testing.T, dir string) string {
			write(t, filepath.Join(dir, "x"))
			return filepath.Join(dir, "x")
		},
		"a file above it": func(t *testing.T, dir string) string {
			write(t, filepath.Join(dir, "x"))
			return filepath.Join(dir, "x", "below", "it")
		},
		"a folder in the file's place": func(t *testing.T, dir string) string {
			mkdir(t, filepath.Join(dir, "state.db"))
			return dir
		},
		"a folder in the lock's place": func(t *testing.T, dir string) string {
			mkdir(t, filepath.Join(dir, "serve.lock"))
			return dir
		},
		"a link to nowhere": func(t *testing.T, dir string) string {
			if err := os.Symlink(filepath.Join(dir, "nowhere"), filepath.Join(dir, "x")); err != nil {
				t.Fatal(err)
			}
			return filepath.Join(dir, "x")
		},
		"a name that is too long": func(_ *testing.T, dir string) string {
			return filepath.Join(dir, strings.Repeat("x", 300))
		},
	} {
		t.Run(name, func(t *testing.T) {
			sim, address := startSim(t)
			dir := t.TempDir()
			path := prepare(t, dir)
			before := modes(t, dir)
			a, logs := knowing(t, address, in(path))
			h := healthOf(t, a)
			if h.Code != http.StatusOK || !strings.HasPrefix(h.Store, "degraded: ") || h.Degraded != "1" {
				t.Errorf("health %+v", h)
			}
			action, id := chat(t, a, longChat("some text", 0))
			if !isCompaction(action) {
				t.Errorf("action %q", action)
			}
			first := lastList(t, sim)
			if action, again := chat(t, a, longChat("some text", 1)); action != "replay" || again != id || !extends(lastList(t, sim), first) {
				t.Errorf("from memory: action %q of %s, was %s", action, again, id)
			}
			if h := healthOf(t, a); h.Degraded != "1" || h.Code != http.StatusOK {
				t.Errorf("later: health %+v", h)
			}
			// The API is there, and says that there is nothing to be shown.
			for _, path := range []string{"conversations", "recall?q=x", "conversations/" + id} {
				var refusal struct {
					Error struct{ Code, Message string }
				}
				if code := getJSON(t, "http://"+a.admin.Addr().String()+"/api/v1/"+path, &refusal); code != http.StatusNotFound || refusal.Error.Code != "not_found" || !strings.Contains(refusal.Error.Message, "store") {
					t.Errorf("%s: status %d: %+v", path, code, refusal)
				}
			}
			a.Close()
			w := warnings(logs)
			if len(w) != 1 || !strings.Contains(w[0], "memory") || !strings.Contains(w[0], "state.path") || !strings.Contains(w[0], dir) {
				t.Errorf("warnings: %q", w)
			}
			if name == "a file in its place" || name == "a file above it" {
				if diff := cmp.Diff(before, modes(t, dir)); diff != "" {
					t.Errorf("it touched what is in the way: -before +after\n%s", diff)
				}
			}
			if logs.FilterMessage("opened the store").Len() > 0 {
				t.Error("the log says that the store is open")
			}
		})
	}
}

// A store that fails while serve runs is told of, once, and once it works again
// everything that waited is stored and everything says so.
func TestState_FailsForAWhile(t *testing.T) {
	if testing.Short() {
		t.Skip("SQLite waits some seconds for a lock")
	}
	_, address := startSim(t)
	dir := t.TempDir()
	a, logs := knowing(t, address, in(dir))
	db, err := sql.Open("sqlite", filepath.Join(dir, "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	if _, err := db.Exec("BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	action, id := chat(t, a, longChat("some text", 0))
	if !isCompaction(action) {
		t.Errorf("action %q", action)
	}
	if h := healthOf(t, a); h.Code != http.StatusOK || !strings.HasPrefix(h.Store, "degraded: ") || h.Degraded != "1" {
		t.Errorf("health %+v", h)
	}
	if _, err := db.Exec("ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	var shown struct{ Compactions []store.Compaction } // the API stores what waits
	if code := getJSON(t, "http://"+a.admin.Addr().String()+"/api/v1/conversations/"+id, &shown); code != http.StatusOK || len(shown.Compactions) != 1 {
		t.Errorf("status %d: %+v", code, shown)
	}
	if diff := cmp.Diff(well, healthOf(t, a)); diff != "" {
		t.Errorf("health: -want +got\n%s", diff)
	}
	if w := warnings(logs); len(w) != 1 || !strings.Contains(w[0], "state.path") {
		t.Errorf("warnings: %q", w)
	}
	if n := logs.FilterMessageSnippet("works again").Len(); n != 1 {
		t.Errorf("the log says %d times that it works again", n)
	}
	a.Close()
	b, _ := knowing(t, address, in(dir))
	if action, again := chat(t, b, longChat("some text", 1)); again != id || action != "replay" {
		t.Errorf("after a restart: conversation %s with action %q, was %s", again, action, id)
	}
}

// lastList is the list that was forwarded last.
func lastList(t *testing.T, sim *llamasim.Server) [][]byte {
	t.Helper()
	all := sim.Requests()
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].RequestURI == "/v1/chat/completions" && all[i].Status == http.StatusOK {
			body, err := transcript.Parse(all[i].Body)
			if err != nil {
				t.Fatal(err)
			}
			return raws(body.Messages)
		}
	}
	t.Fatal("nothing was forwarded")
	return nil
}

// Sessions that are continued after a restart of the proxy go on byte for byte, with
// what an agent forgets of its own messages, at every turn.
func TestState_Restart(t *testing.T) {
	for _, session := range ownSessions(t, []int{simWindow}, 40) {
		for _, forgets := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, forgets reasoning %v", session.name, forgets), func(t *testing.T) {
				sim := llamasim.New(llamasim.Options{Window: simWindow, Seed: 1, ImageTokens: 300})
				server := httptest.NewServer(sim)
				t.Cleanup(server.Close)
				dir := t.TempDir()
				a, _ := knowing(t, server.URL, in(dir))
				var last [][]byte
				id, compactions, replays := "", 0, 0
				for turn := range session.ends {
					restarted := turn%4 == 3
					if restarted {
						a.Close()
						a, _ = knowing(t, server.URL, in(dir))
					}
					sim.ForgetRequests()
					action, now := chat(t, a, session.body(turn, false, forgets))
					list := lastList(t, sim)
					switch {
					case isCompaction(action):
						compactions++
					case !extends(list, last):
						t.Errorf("turn %d (restarted: %v, action %q): what is forwarded does not extend what was: %s", turn, restarted, action, difference(list, last))
					case restarted && compactions > 0:
						if replays++; !strings.Contains(action, "replay") {
							t.Errorf("turn %d, after a restart: action %q", turn, action)
						}
					}
					if id != "" && now != id {
						t.Errorf("turn %d (restarted: %v): conversation %s, was %s", turn, restarted, now, id)
					}
					id, last = now, list
				}
				if compactions == 0 || replays == 0 {
					t.Errorf("%d compactions, %d replays after a restart: it shows little", compactions, replays)
				}
			})
		}
	}
}
