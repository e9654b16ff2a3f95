// Package demo plays a recorded agent session through a running proxy and
// prints a table as it goes: what the agent sent, what reached the server, what
// the server's cache paid for, and what the proxy did.
//
// It talks HTTP to the proxy like any agent and must not know how the proxy
// works: what was done stands in the response headers.
package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/compactproxy/compactproxy/internal/recording"
)

// Options say what is played where.
type Options struct {
	// Base is the proxy's address as agents get it, with /v1.
	Base string
	// Client sends the requests; nil means http.DefaultClient.
	Client *http.Client
	// Session is played from its first turn to its last.
	Session *recording.Session
	// MaxTokens caps each answer; 0 leaves it to the server. The recorded
	// history goes on whatever the model says.
	MaxTokens int
	// Count counts the prompt tokens of a body as the agent sent it, 0 where
	// that cannot be told.
	Count func(ctx context.Context, body []byte) int
	// Out gets the table.
	Out io.Writer
}

// Totals sum up a session.
type Totals struct {
	Turns     int
	Answered  int
	Compacted int // turns in which a new compaction was made

	Sent      int // tokens as the agent sent them
	Forwarded int // tokens that reached the server
	Cached    int // of Forwarded, taken from the server's cache
	Processed int // of Forwarded, processed anew

	Window   int // tokens, the last that the proxy named; 0 if unknown
	TooLong  int // turns whose own prompt does not fit the window
	FirstOut int // the first such turn, counted from 1; 0 if there is none
}

// turn is one row of the table.
type turn struct {
	action         string
	window         int
	prompt, cached int
	status         int
	failure        string
}

const (
	header = "Tokens of each prompt:\nturn   agent sent    forwarded   window   from cache    processed   what the proxy did\n"
	begin  = "%4d %12s "
	rest   = "%12s %8s %12s %12s   %s\n"
)

// Play sends every turn of the session and returns the totals. An error means
// that the proxy could not be talked to; a turn that was refused is a row.
func Play(ctx context.Context, o Options) (Totals, error) {
	if o.Client == nil {
		o.Client = http.DefaultClient
	}
	var sum Totals
	fmt.Fprint(o.Out, header)
	for i := range o.Session.Turns() {
		body := o.Session.Request(i, recording.Options{Stream: true, IncludeUsage: true, MaxTokens: o.MaxTokens})
		sent := o.Count(ctx, body)
		fmt.Fprintf(o.Out, begin, i+1, figure(sent)) // shown while the server works
		t, err := o.send(ctx, body)
		if err != nil {
			fmt.Fprintln(o.Out)
			return sum, fmt.Errorf("turn %d: %w", i+1, err)
		}
		sum.add(i+1, sent, t)
		fmt.Fprintf(o.Out, rest, figure(t.prompt), figure(t.window), figure(t.cached), figure(t.prompt-t.cached), t.what(sent))
	}
	return sum, nil
}

func (s *Totals) add(number, sent int, t turn) {
	s.Turns++
	if t.failure == "" {
		s.Answered++
	}
	if t.did("passes") || t.did("summary") || t.did("recovery") {
		s.Compacted++
	}
	s.Sent += sent
	s.Forwarded += t.prompt
	s.Cached += t.cached
	s.Processed += t.prompt - t.cached
	if t.window > 0 {
		s.Window = t.window
	}
	if s.Window > 0 && sent >= s.Window {
		s.TooLong++
		if s.FirstOut == 0 {
			s.FirstOut = number
		}
	}
}

// did tells whether the proxy reported that action.
func (t turn) did(action string) bool {
	return slices.Contains(strings.Split(t.action, ", "), action)
}

// what tells in words what the response headers say.
func (t turn) what(sent int) string {
	switch {
	case t.failure != "":
		return fmt.Sprintf("NOT ANSWERED: %d %s", t.status, t.failure)
	case t.did("recovery"):
		return fmt.Sprintf("<< COMPACTED, since it did not fit: now %s of %s tokens", figure(t.prompt), figure(sent))
	case t.did("summary"):
		return fmt.Sprintf("<< SUMMARISED by the model: now %s of %s tokens", figure(t.prompt), figure(sent))
	case t.did("passes"):
		return fmt.Sprintf("<< COMPACTED, before it is too long: now %s of %s tokens", figure(t.prompt), figure(sent))
	case t.did("replay"):
		return "replayed the compacted history"
	case t.action == "none":
		return "nothing, passed through"
	}
	return t.action
}

// Print writes the totals, and what would have been without the proxy.
func (s Totals) Print(w io.Writer) {
	fmt.Fprintf(w, "\n%d of %d turns answered; the history was compacted in %d of them.\n", s.Answered, s.Turns, s.Compacted)
	fmt.Fprintf(w, "The agent sent %s prompt tokens in all; %s reached the server, of which %s came from its cache and %s were processed.\n",
		figure(s.Sent), figure(s.Forwarded), figure(s.Cached), figure(s.Processed))
	switch {
	case s.Window == 0:
	case s.FirstOut == 0:
		fmt.Fprintf(w, "Without the proxy: every request fits the window of %s tokens; nothing had to be done.\n", figure(s.Window))
	default:
		fmt.Fprintf(w, "Without the proxy, the session would have ended at turn %d: %d of its %d requests are too long for the window of %s tokens.\n",
			s.FirstOut, s.TooLong, s.Turns, figure(s.Window))
	}
}

// send makes one request and reads its stream to the end.
func (o Options) send(ctx context.Context, body []byte) (turn, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, o.Base+"/chat/completions", bytes.NewReader(body))
	if err != nil {
		return turn{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := o.Client.Do(req)
	if err != nil {
		return turn{}, err
	}
	defer res.Body.Close()
	t := turn{action: res.Header.Get("X-Compactproxy-Action"), status: res.StatusCode}
	if _, window, ok := strings.Cut(res.Header.Get("X-Compactproxy-Tokens"), "/"); ok {
		t.window, _ = strconv.Atoi(window)
	}
	if res.StatusCode != http.StatusOK {
		t.failure = failureOf(res.Body)
		if res.StatusCode == http.StatusBadGateway {
			return t, errors.New(t.failure) // no server: every further turn would fail alike
		}
		return t, nil
	}
	t.failure = "the stream ended early"
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		payload, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		if string(payload) == "[DONE]" {
			t.failure = ""
			continue
		}
		var chunk struct {
			Error *struct{ Message string }
			Usage *struct {
				Prompt  int `json:"prompt_tokens"`
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		if json.Unmarshal(payload, &chunk) != nil {
			continue
		}
		if chunk.Error != nil {
			t.failure = chunk.Error.Message
			return t, nil
		}
		if chunk.Usage != nil {
			t.prompt, t.cached = chunk.Usage.Prompt, chunk.Usage.Details.Cached
		}
	}
	if err := lines.Err(); err != nil {
		t.failure = err.Error()
	}
	return t, nil
}

func failureOf(r io.Reader) string {
	raw, _ := io.ReadAll(io.LimitReader(r, 64<<10))
	var e struct{ Error struct{ Message string } }
	text := string(raw)
	if json.Unmarshal(raw, &e) == nil && e.Error.Message != "" {
		text = e.Error.Message
	}
	text = strings.Join(strings.Fields(text), " ") // one row of the table
	return text[:min(len(text), 240)]
}

// ServerCount counts with the server's own endpoint for that, and returns 0
// where it has none.
func ServerCount(client *http.Client, root string) func(context.Context, []byte) int {
	return func(ctx context.Context, body []byte) int {
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, root+"/v1/chat/completions/input_tokens", bytes.NewReader(body))
		if err != nil {
			return 0
		}
		req.Header.Set("Content-Type", "application/json")
		res, err := client.Do(req)
		if err != nil {
			return 0
		}
		defer res.Body.Close()
		var count struct {
			Tokens int `json:"input_tokens"`
		}
		if json.NewDecoder(io.LimitReader(res.Body, 1<<20)).Decode(&count) != nil {
			return 0
		}
		return count.Tokens
	}
}

// figure writes a number with thousands apart, and a dash for one that is not
// known.
func figure(n int) string {
	if n <= 0 {
		return "-"
	}
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
