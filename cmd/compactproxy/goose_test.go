package main

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/compactproxy/compactproxy/internal/config"
	"github.com/compactproxy/compactproxy/internal/llamasim"
	"github.com/compactproxy/compactproxy/internal/npmtest"
)

// TestGoose lets the real goose work on a task whose history outgrows the
// window several times: it reads files, and at the end writes what stood in
// them. Its own compaction would start only at a user's turn or at a refusal,
// so any refusal that reached it would show as one of its summary requests.
func TestGoose(t *testing.T) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		t.Skip("SKIPPED: the pinned goose binary is for linux/amd64")
	}
	goose := filepath.Join(npmtest.Install(t, "testdata/goose"), "node_modules/@aaif/goose-binary-linux-x64/bin/goose")
	home, work := t.TempDir(), t.TempDir()

	const files, window = 24, 16384
	for i := range files {
		var text strings.Builder
		for line := range 60 {
			fmt.Fprintf(&text, "file %d line %d: the quick brown fox jumps over the lazy dog %d\n", i, line, i*line)
		}
		if err := os.WriteFile(filepath.Join(work, fmt.Sprintf("part%02d.txt", i)), []byte(text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	sim := llamasim.New(llamasim.Options{Window: window, Reply: gooseScript(files)})
	upstream := httptest.NewServer(sim)
	defer upstream.Close()

	cfg := config.Default()
	cfg.State.Path = t.TempDir()
	cfg.Listen, cfg.Admin, cfg.Upstream.URL = "127.0.0.1:0", "127.0.0.1:0", upstream.URL
	core, logs := observer.New(zap.InfoLevel)
	a, err := newApp(cfg, zap.New(core))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()

	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, goose, "run", "--no-session", "--max-turns", "100", "-t", "Read part00.txt to part23.txt one after the other, then write the file report.txt.")
	cmd.Dir = work
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home, "XDG_CONFIG_HOME=" + home + "/.config", "XDG_DATA_HOME=" + home + "/.local/share",
		"XDG_STATE_HOME=" + home + "/.local/state", "XDG_CACHE_HOME=" + home + "/.cache",
		"GOOSE_PROVIDER=openai", "GOOSE_MODEL=local", "OPENAI_HOST=" + strings.TrimSuffix(a.base(), "/v1"), "OPENAI_API_KEY=sk-local",
		"GOOSE_DISABLE_KEYRING=1", "GOOSE_MODE=auto", "GOOSE_TELEMETRY_ENABLED=false", "DO_NOT_TRACK=1", "NO_COLOR=1", "CI=1",
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("goose: %v\n%s", err, out)
	}
	report, err := os.ReadFile(filepath.Join(work, "report.txt"))
	if err != nil || string(report) != "all 24 parts were read\n" {
		t.Errorf("report.txt = %q (%v)\n%s", report, err, out)
	}
	compacted := logs.FilterMessage("compacted").Len()
	if compacted < 2 {
		t.Errorf("%d compactions: the history did not outgrow the window", compacted)
	}
	for _, r := range sim.Requests() {
		if strings.Contains(string(r.Body), "Please summarize the conversation history provided in the system prompt") {
			t.Error("goose saw a refusal and compacted by itself")
		}
	}
	t.Logf("goose made %d requests; %d compactions", len(sim.Requests()), compacted)
}

// gooseScript reads every part, then writes the report, then ends. Requests for
// a title carry no tools.
func gooseScript(files int) func(llamasim.Request) llamasim.Reply {
	step := 0
	return func(r llamasim.Request) llamasim.Reply {
		if len(r.Tools) == 0 {
			return llamasim.Reply{Text: "A title"}
		}
		call := func(command string) llamasim.Reply {
			return llamasim.Reply{ToolCalls: []llamasim.ToolCall{{Name: "shell", Arguments: fmt.Sprintf(`{"command":%q}`, command)}}}
		}
		step++
		switch {
		case step <= files:
			return call(fmt.Sprintf("cat part%02d.txt", step-1))
		case step == files+1:
			return call(fmt.Sprintf("echo 'all %d parts were read' > report.txt", files))
		}
		return llamasim.Reply{Text: "done"}
	}
}
