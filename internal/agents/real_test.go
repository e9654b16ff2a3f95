package agents

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/compactproxy/compactproxy/internal/corpus"
)

// sharedData is the folder of the recorded corpus.
func sharedData(t *testing.T) string {
	t.Helper()
	return filepath.Dir(corpus.Path(t, "sessions"))
}

// exchange is a call and its result.
type exchange struct{ name, args, text string }

type message struct {
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	CallID    string          `json:"tool_call_id"`
	ToolCalls []struct {
		ID       string `json:"id"`
		Function struct{ Name, Arguments string }
	} `json:"tool_calls"`
}

func textOf(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var parts []struct{ Text string }
	_ = json.Unmarshal(raw, &parts)
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(p.Text)
	}
	return b.String()
}

// exchanges pairs each result with the call of the same id in the nearest
// assistant message before it.
func exchanges(messages []message) []exchange {
	var out []exchange
	open := map[string]exchange{}
	for _, m := range messages {
		if m.Role == "assistant" {
			open = map[string]exchange{}
			for _, c := range m.ToolCalls {
				open[c.ID] = exchange{name: c.Function.Name, args: c.Function.Arguments}
			}
		}
		if m.Role == "tool" {
			x := open[m.CallID]
			x.text = textOf(m.Content)
			out = append(out, x)
		}
	}
	return out
}

type capture struct {
	client, scenario string
	requests         []capturedRequest
}

type capturedRequest struct {
	class        string
	system, user string // user is empty unless the last message is one
	tools        bool
	exchanges    []exchange
}

func captures(t *testing.T) []capture {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(sharedData(t), "clients", "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no captures: %v", err)
	}
	var out []capture
	for _, f := range files {
		var c struct {
			Client, Scenario string
			Requests         []struct {
				Class string
				Body  struct {
					Messages     []message
					Instructions string
					Input        []struct {
						Type, Role, Name, Arguments string
						CallID                      string `json:"call_id"`
						Output, Content             json.RawMessage
					}
					Tools []json.RawMessage
				}
			}
		}
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(data, &c); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		one := capture{client: c.Client, scenario: c.Scenario}
		for _, r := range c.Requests {
			b := r.Body
			q := capturedRequest{class: r.Class, tools: len(b.Tools) > 0, exchanges: exchanges(b.Messages)}
			for _, m := range b.Messages {
				if m.Role == "system" || m.Role == "developer" {
					q.system = textOf(m.Content)
					break
				}
			}
			if n := len(b.Messages); n > 0 && b.Messages[n-1].Role == "user" {
				q.user = textOf(b.Messages[n-1].Content)
			}
			open := map[string]exchange{}
			for i, in := range b.Input {
				switch {
				case in.Type == "function_call":
					open[in.CallID] = exchange{name: in.Name, args: in.Arguments}
				case in.Type == "function_call_output":
					x := open[in.CallID]
					x.text = textOf(in.Output)
					q.exchanges = append(q.exchanges, x)
				case in.Role == "user" && i == len(b.Input)-1:
					q.user = textOf(in.Content)
				}
			}
			one.requests = append(one.requests, q)
		}
		out = append(out, one)
	}
	return out
}

// What each request of the captured sequences was for, counted by hand.
func TestCaptures_SideRequests(t *testing.T) {
	got := map[string]int{}
	for _, c := range captures(t) {
		for i, r := range c.requests {
			kind := SideRequest(r.system, r.user, r.tools)
			if kind == SideNone {
				// The capture's own class was made by a rule of thumb: it takes
				// goose's tool shim, a main request without tools, for a summary.
				if r.class != "" && r.class != "main" && c.scenario != "toolshim" {
					t.Errorf("%s-%s request %d: captured as %s, seen as an ordinary one", c.client, c.scenario, i, r.class)
				}
				continue
			}
			got[c.client+" "+kind.String()]++
		}
	}
	want := map[string]int{
		"codex compaction":    2,
		"continue compaction": 2,
		"goose compaction":    3,
		"goose title":         7,
		"goose tool_pair":     10,
		"opencode compaction": 4,
		"opencode title":      9,
		"pi compaction":       3,
		"qwen classifier":     2,
		"qwen compaction":     6,
		"qwen memory":         3,
		"qwen suggestion":     1,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("side requests (-want +got):\n%s", diff)
	}
}

// How each captured result reads, counted by hand.
func TestCaptures_Outcomes(t *testing.T) {
	table := Builtin()
	got := map[string][3]int{}
	type once struct {
		client string
		exchange
	}
	seen := map[once]bool{}
	for _, c := range captures(t) {
		for _, r := range c.requests {
			for _, x := range r.exchanges {
				if seen[once{c.client, x}] {
					continue
				}
				seen[once{c.client, x}] = true
				o := table.Outcome(x.name, x.text)
				n := got[c.client]
				n[o]++
				got[c.client] = n
				if o != Succeeded || c.scenario == "errors" || c.scenario == "deny" {
					t.Logf("%s: %v: %s(%.80s) => %.80q", c.client, o, x.name, x.args, x.text)
				}
			}
		}
	}
	want := map[string][3]int{ // succeeded, failed, refused
		"cline":    {24, 8, 3},
		"codex":    {20, 8, 0},
		"continue": {22, 7, 0},
		"goose":    {72, 8, 4},
		"goose150": {4, 0, 0},
		"opencode": {31, 6, 3},
		"pi":       {22, 8, 0},
		"qwen":     {24, 9, 2},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
}

// Recorded sessions of many harnesses. What is counted here was read through
// once; a number that moves means results to look at again (-v prints them).
func TestSessions_Outcomes(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(sharedData(t), "sessions", "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no sessions: %v", err)
	}
	table := Builtin()
	type count struct {
		results, failed, refused, reads, shellReads, writes, edits, superseded int
		bytes, supersededBytes                                                 int
	}
	counts := map[string]*count{}
	for _, f := range files {
		var s struct{ Messages []message }
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(data, &s); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		harness, _, _ := strings.Cut(filepath.Base(f), "__")
		c := counts[harness]
		if c == nil {
			c = &count{}
			counts[harness] = c
		}
		all := exchanges(s.Messages)
		targets, outcomes := make([]Target, len(all)), make([]Outcome, len(all))
		for i, x := range all {
			targets[i], outcomes[i] = table.Target(x.name, []byte(x.args)), table.Outcome(x.name, x.text)
			c.results++
			c.bytes += len(x.text)
			if outcomes[i] != Succeeded {
				t.Logf("%s: %v: %s(%.60s) => %.90q", harness, outcomes[i], x.name, x.args, x.text)
			}
			switch outcomes[i] {
			case Failed:
				c.failed++
			case Refused:
				c.refused++
			}
			switch targets[i].Kind {
			case FullRead, RangeRead:
				c.reads++
				if table.Kind(x.name) == KindShell {
					c.shellReads++
				}
			case FullWrite:
				c.writes++
			case Edit:
				c.edits++
			}
		}
		for i, x := range all {
			for j := i + 1; j < len(all) && outcomes[i] == Succeeded; j++ {
				if outcomes[j] == Succeeded && Supersedes(targets[j], targets[i]) {
					c.superseded++
					c.supersededBytes += len(x.text)
					break
				}
			}
		}
	}
	t.Logf("%-16s %7s %6s %7s %5s %7s %6s %5s %10s", "harness", "results", "failed", "refused", "reads", "(shell)", "writes", "edits", "superseded")
	got := map[string][2]int{}
	for _, n := range slices.Sorted(maps.Keys(counts)) {
		c := counts[n]
		got[n] = [2]int{c.failed, c.refused}
		t.Logf("%-16s %7d %6d %7d %5d %7d %6d %5d %5d (%d of %d bytes)", n, c.results, c.failed, c.refused, c.reads, c.shellReads, c.writes, c.edits, c.superseded, c.supersededBytes, c.bytes)
	}
	want := map[string][2]int{ // failed, refused
		"cc-viewer":       {2, 1},
		"cline":           {0, 0},
		"copilot-chat":    {0, 0},
		"lmcache-miniswe": {58, 0},
		"nemo-gym":        {29, 0},
		"openhands":       {17, 0},
		"pi-mono":         {4, 2},
		"session-share":   {1, 0},
		"swe-agent":       {5, 0},
		"swe-smith":       {0, 0},
		"tau-bench":       {2, 0},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("failed and refused (-want +got):\n%s", diff)
	}
}
