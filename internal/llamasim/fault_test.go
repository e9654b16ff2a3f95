package llamasim

import (
	"context"
	"net/http"
	"strings"
	"testing"
)

// faulty serves the given fault.
func faulty(t *testing.T, reply Reply) func(stream bool) wireAnswer {
	reply.Text = "one two three four"
	server := start(t, New(Options{Reply: func(Request) Reply { return reply }}))
	return func(stream bool) wireAnswer {
		more := ""
		if stream {
			more = `"stream":true,`
		}
		return post(t, server, chatPath, chatBody(more, "user", "hi"))
	}
}

func TestFault_Stream(t *testing.T) {
	const own = `{"error":{"message":"own"}}`
	for _, c := range []struct {
		name   string
		fault  Fault
		events int    // complete events received
		ending string // of the body
		broken bool
	}{
		{"none", Fault{}, 7, "data: [DONE]\n\n", false},
		{"cut before anything", Fault{Kind: FaultCut}, 0, "", true},
		{"cut after three", Fault{Kind: FaultCut, After: 3}, 3, "\n\n", true},
		{"half a line", Fault{Kind: FaultCutLine, After: 2}, 2, "\n\n", true},
		{"no done", Fault{Kind: FaultEnd, After: -1}, 6, "\n\n", false},
		{"an early end", Fault{Kind: FaultEnd, After: 4}, 4, "\n\n", false},
		{"an error before any token", Fault{Kind: FaultError, After: 1}, 2, "data: " + poolBody + "\n\n", false},
		{"an error in place of everything", Fault{Kind: FaultError}, 1, "data: " + poolBody + "\n\n", false},
		{"an error after tokens", Fault{Kind: FaultError, After: 3, Error: own}, 4, "data: " + own + "\n\n", false},
		{"a named error event", Fault{Kind: FaultErrorEvent, After: 3, Error: own}, 3, "event: error\ndata: " + own + "\n\n", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := faulty(t, Reply{Fault: c.fault})(true)
			whole, rest := "", got.body // what follows the last complete event
			if i := strings.LastIndex(got.body, "\n\n"); i >= 0 {
				whole, rest = got.body[:i+2], got.body[i+2:]
			}
			if n := len(dataOf(whole)); n != c.events || !strings.HasSuffix(whole, c.ending) {
				t.Errorf("%d events, want %d ending with %q\n%s", n, c.events, c.ending, got.body)
			}
			if c.fault.Kind == FaultCutLine {
				if line, ok := strings.CutPrefix(rest, "data: {"); !ok || strings.HasSuffix(line, "}") {
					t.Errorf("no half of a line: %q", rest)
				}
			} else if rest != "" {
				t.Errorf("ends with %q", rest)
			}
			if got.status != 200 || (got.broken != nil) != c.broken {
				t.Errorf("status %d, broken %v", got.status, got.broken)
			}
		})
	}
}

func TestFault_Plain(t *testing.T) {
	complete := func(body string) bool { return checkJSON([]byte(body)) == nil }
	for _, c := range []struct {
		name             string
		fault            Fault
		status           int
		complete, broken bool
	}{
		{"none", Fault{}, 200, true, false},
		{"cut", Fault{Kind: FaultCut}, 200, false, true},
		{"cut line", Fault{Kind: FaultCutLine}, 200, false, true},
		{"early end", Fault{Kind: FaultEnd}, 200, false, false},
		{"error", Fault{Kind: FaultError}, 500, true, false},
		{"own error", Fault{Kind: FaultErrorEvent, Status: 418, Error: "{}"}, 418, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := faulty(t, Reply{Fault: c.fault})(false)
			if got.status != c.status || complete(got.body) != c.complete || (got.broken != nil) != c.broken || got.body == "" {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestFault_SilenceUntilReleased(t *testing.T) {
	for _, stream := range []bool{true, false} {
		release := make(chan struct{})
		silent := make(chan struct{})
		ask := faulty(t, Reply{
			Fault:           Fault{Kind: FaultSilence, After: 2, Release: release},
			BeforeFirstByte: func(context.Context) { close(silent) },
		})
		answered := make(chan wireAnswer)
		go func() { answered <- ask(stream) }()
		<-silent
		select {
		case a := <-answered:
			t.Fatalf("answered while silent: %+v", a)
		default:
		}
		close(release)
		if a := <-answered; a.status != 200 || a.broken != nil || !strings.Contains(a.body, "four") {
			t.Errorf("%+v", a)
		}
	}
}

func TestReply_Pings(t *testing.T) {
	got := faulty(t, Reply{Pings: 3})(true)
	if !strings.HasPrefix(got.body, ":\n\n:\n\n:\n\ndata: {") {
		t.Errorf("%q", got.body)
	}
}

func TestReply_Answer(t *testing.T) {
	for _, stream := range []bool{true, false} {
		got := faulty(t, Reply{Answer: HTMLAnswer(http.StatusBadGateway, "<html>no</html>")})(stream)
		if got.status != 502 || got.headers["Content-Type"] != "text/html" || got.body != "<html>no</html>" {
			t.Errorf("%+v", got)
		}
		retry := JSONAnswer(http.StatusTooManyRequests, `{"error":"slow"}`)
		retry.Header.Set("Retry-After", "7")
		if got := faulty(t, Reply{Answer: retry})(stream); got.status != 429 || got.headers["Retry-After"] != "7" || got.headers["Content-Type"] != typeJSON {
			t.Errorf("%+v", got)
		}
	}
}
