package llamasim

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const poolBody = `{"error":{"code":500,"message":"Context size has been exceeded.","type":"server_error"}}`

// Three requests, each of which would fit, together do not: all fail, in the
// way the captures unified_pool_0 to 2 show.
func TestUnifiedPool(t *testing.T) {
	var ready sync.WaitGroup
	ready.Add(3)
	s := New(Options{UnifiedPool: 4000, Reply: func(r Request) Reply {
		if strings.Contains(r.Prompt, "small") {
			return Reply{Text: "ok"}
		}
		ready.Done()
		ready.Wait() // all three run before any of them takes its share
		return Reply{Text: "and so on", Endless: true, BeforeFirstByte: func(ctx context.Context) { <-ctx.Done() }}
	}})
	server := start(t, s)
	var answers [3]wireAnswer
	var running sync.WaitGroup
	for i := range answers {
		body := fill(t, s, 1400, fmt.Sprintf(`"max_tokens":3000,"stream":%t,`, i == 1))
		running.Go(func() { answers[i] = post(t, server, chatPath, body) })
	}
	running.Wait()
	for i, a := range answers {
		want := wireAnswer{status: 500, body: poolBody, headers: a.headers}
		if i == 1 {
			want.status, want.body = 200, "data: "+poolBody+"\n\n"
		}
		if diff := cmp.Diff(want, a, cmp.AllowUnexported(wireAnswer{})); diff != "" {
			t.Errorf("request %d (-want +got):\n%s", i, diff)
		}
	}
	if after := post(t, server, chatPath, chatBody("", "user", "small")); after.status != 200 {
		t.Errorf("afterwards: %+v", after)
	}
}

// A pool that is exhausted while tokens are generated fails after them.
func TestUnifiedPool_WhileGenerating(t *testing.T) {
	s := New(Options{UnifiedPool: 1000, Window: 2000, Reply: func(Request) Reply { return Reply{Text: "and so on", Endless: true} }})
	server := start(t, s)
	got := post(t, server, chatPath, fill(t, s, 950, `"stream":true,`))
	data := dataOf(got.body)
	if n := len(data); n != 52 || data[n-1] != poolBody || got.status != 200 || got.broken != nil {
		t.Errorf("%d events, status %d, broken %v, last %s", n, got.status, got.broken, data[len(data)-1])
	}
	if again := post(t, server, chatPath, fill(t, s, 950, `"max_tokens":5,`)); again.status != 200 {
		t.Errorf("nothing was given back: %+v", again)
	}
}
