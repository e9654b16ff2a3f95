package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/compactproxy/compactproxy/internal/config"
	"github.com/compactproxy/compactproxy/internal/llamasim"
	"github.com/compactproxy/compactproxy/internal/upstream"
)

func TestDemo(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		code int
		want []string // in the output, in order
	}{
		{"the main recording", []string{"demo"}, exitDone,
			[]string{`Recorded session "ledger", 80 turns`, "<< COMPACTED", "80 of 80 turns answered", "Without the proxy, the session would have ended at turn"}},
		{"another window and session", []string{"demo", "--window", "8192", "--session", "reused-ids"}, exitDone,
			[]string{"9 of 9 turns answered"}},
		{"the proxy off: the session dies", []string{"demo", "--mode", "off"}, exitFailed,
			[]string{"NOT ANSWERED: 400", "of 80 turns answered"}},
		{"no such recording", []string{"demo", "--session", "nope"}, exitUsage, nil},
		{"a window too small", []string{"demo", "--window", "5"}, exitUsage, nil},
		{"an argument", []string{"demo", "x"}, exitUsage, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out, errs bytes.Buffer
			if code := run(tc.args, &out, &errs); code != tc.code {
				t.Fatalf("exit code %d, want %d\n%s%s", code, tc.code, out.String(), errs.String())
			}
			rest := out.String()
			for _, want := range tc.want {
				_, after, ok := strings.Cut(rest, want)
				if !ok {
					t.Fatalf("no %q in\n%s", want, out.String())
				}
				rest = after
			}
		})
	}
}

// startApp starts the whole program before a server.
func startApp(t *testing.T, address string, change func(*config.Config)) (*app, *observer.ObservedLogs) {
	t.Helper()
	cfg := config.Default()
	cfg.State.Path = t.TempDir()
	cfg.Listen, cfg.Admin, cfg.Upstream.URL = "127.0.0.1:0", "127.0.0.1:0", address
	if change != nil {
		change(&cfg)
	}
	core, logs := observer.New(zap.DebugLevel)
	a, err := newApp(cfg, zap.New(core))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a, logs
}

func getJSON(t *testing.T, address string, into any) int {
	t.Helper()
	res, err := http.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(into); err != nil {
		t.Fatal(err)
	}
	return res.StatusCode
}

// TestApp_StartsBeforeTheServer: nothing listens, then a server comes up at the
// address, still loading, and then is ready.
func TestApp_StartsBeforeTheServer(t *testing.T) {
	spot, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := spot.Addr().String()
	spot.Close()
	a, logs := startApp(t, "http://"+address, nil)
	if _, err := a.tracker.First(t.Context()); err != nil {
		t.Fatal(err)
	}
	admin := "http://" + a.admin.Addr().String()
	var state struct {
		Ready  bool
		Server string
	}
	if code := getJSON(t, admin+"/readyz", &state); code != http.StatusServiceUnavailable || state.Ready {
		t.Errorf("ready before the server: %d %+v", code, state)
	}
	res, err := http.Post(a.base()+"/chat/completions", "application/json", strings.NewReader(`{"messages":[]}`))
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(res.Body)
	res.Body.Close()
	if res.StatusCode != http.StatusBadGateway || !strings.Contains(string(body), "upstream_unreachable") || !strings.Contains(string(body), "upstream.url") {
		t.Errorf("without a server: %d %s", res.StatusCode, body)
	}

	sim := llamasim.New(llamasim.Options{Window: 4096, Loading: true})
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: sim}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close() })
	if code := getJSON(t, admin+"/readyz", &state); code != http.StatusServiceUnavailable || state.Server != upstream.Loading.String() {
		t.Errorf("while loading: %d %+v", code, state)
	}
	sim.SetLoading(false)
	if code := getJSON(t, admin+"/readyz", &state); code != http.StatusOK || !state.Ready {
		t.Errorf("with the server: %d %+v", code, state)
	}
	deadline, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for a.tracker.Window("").Tokens != 4096 {
		select {
		case <-deadline.Done():
			t.Fatalf("the window was not found: %+v", a.tracker.Status())
		case <-time.After(10 * time.Millisecond): // the tracker looks every few seconds
		}
	}
	if logs.FilterMessageSnippet("no server answers yet").Len() == 0 {
		t.Error("nothing said that no server answered")
	}
}

func TestApp_MetricsAndHealth(t *testing.T) {
	sim := httptest.NewServer(llamasim.New(llamasim.Options{}))
	t.Cleanup(sim.Close)
	a, _ := startApp(t, sim.URL, nil)
	for path, want := range map[string]string{"/livez": "ok", "/metrics": "compactproxy_compactions_total{kind=\"passes\",result=\"installed\",trigger=\"recovery\"} 0"} {
		res, err := http.Get("http://" + a.admin.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != http.StatusOK || !strings.Contains(string(body), want) {
			t.Errorf("%s: %d, no %q", path, res.StatusCode, want)
		}
	}
}

func TestNewApp_NamesTheSettingOfAPortInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	cfg := config.Default()
	cfg.State.Path = t.TempDir()
	cfg.Listen, cfg.Admin = "127.0.0.1:0", taken.Addr().String()
	_, err = newApp(cfg, zap.NewNop())
	if err == nil || !strings.Contains(err.Error(), "set admin to another address") {
		t.Errorf("error %v", err)
	}
}

// TestServe_DrainsAndEnds: a first signal lets a running stream finish, and no
// new request in; a second one ends at once.
func TestServe_DrainsAndEnds(t *testing.T) {
	for _, second := range []bool{false, true} {
		release := make(chan struct{})
		sim := httptest.NewServer(llamasim.New(llamasim.Options{Reply: func(llamasim.Request) llamasim.Reply {
			return llamasim.Reply{Text: "one two three", Fault: llamasim.Fault{Kind: llamasim.FaultSilence, After: 2, Release: release}}
		}}))
		cfg := config.Default()
		cfg.State.Path = t.TempDir()
		spot, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		cfg.Listen, cfg.Admin, cfg.Upstream.URL, cfg.Shutdown = spot.Addr().String(), "127.0.0.1:0", sim.URL, time.Minute
		spot.Close()
		core, logs := observer.New(zap.InfoLevel)
		said := make(chan string, 100)
		log := zap.New(core, zap.Hooks(func(e zapcore.Entry) error { said <- e.Message; return nil }))
		done := make(chan error, 1)
		go func() { done <- serve(t.Context(), cfg, log) }()
		waitFor(t, said, "is running")

		res, err := http.Post("http://"+cfg.Listen+"/v1/chat/completions", "application/json", strings.NewReader(`{"stream":true,"messages":[{"role":"user","content":"x"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(res.Body)
		lines.Scan()
		if err := syscall.Kill(syscall.Getpid(), syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		waitFor(t, said, "stopping")
		if second {
			if err := syscall.Kill(syscall.Getpid(), syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
		} else {
			close(release)
		}
		var last string
		for lines.Scan() {
			if lines.Text() != "" {
				last = lines.Text()
			}
		}
		res.Body.Close()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
		if got, want := last == "data: [DONE]", !second; got != want {
			t.Errorf("second signal %v: the stream ended with %q", second, last)
		}
		if second {
			close(release)
		}
		if diff := cmp.Diff(1, logs.FilterMessage("stopped").Len()); diff != "" {
			t.Errorf("stopped: %s", diff)
		}
		sim.Close()
	}
}

func waitFor(t *testing.T, said <-chan string, text string) {
	t.Helper()
	for {
		select {
		case m := <-said:
			if strings.Contains(m, text) {
				return
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("the log never said %q", text)
		}
	}
}
