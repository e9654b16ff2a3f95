package proxy

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compactproxy/compactproxy/internal/recording"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

var benchRatios = flag.Bool("bench-ratios", false, "measure the whole proxy against a bare reverse proxy and print the ratios")

// TestBenchRatios measures the time of a request through this proxy and through
// a bare httputil.ReverseProxy before the same trivial upstream, in turns, and
// prints medians and their ratio. Budget (DESIGN section 15): added time under
// 0.5 ms at 100 KB and under 4 ms at 1 MB. It asserts nothing: the figures go to
// docs/benchmarks.md.
func TestBenchRatios(t *testing.T) {
	if !*benchRatios {
		t.Skip("run with -bench-ratios (make bench)")
	}
	var out strings.Builder
	fmt.Fprintf(&out, "| body | answer | direct | bare ReverseProxy | compactproxy, new history | compactproxy, history seen | added, seen | ratio to bare |\n|---|---|---|---|---|---|---|---|\n")
	for _, stream := range []bool{false, true} {
		upstream := httptest.NewServer(trivial(stream))
		root, err := url.Parse(upstream.URL)
		if err != nil {
			t.Fatal(err)
		}
		bare := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(pr *httputil.ProxyRequest) { pr.SetURL(root) }, FlushInterval: -1})
		r := startBefore(t, upstream.URL)
		for _, size := range []int{10 << 10, 100 << 10, 1 << 20, 10 << 20} {
			body := benchmarkBody(size, stream)
			runs := max(20, min(300, 100<<20/size))
			var direct, plain, fresh, seen []time.Duration
			for i := range runs {
				direct = append(direct, timed(t, upstream.URL, body))
				plain = append(plain, timed(t, bare.URL, body))
				fresh = append(fresh, timed(t, r.URL, unseen(body, i)))
				seen = append(seen, timed(t, r.URL, body))
			}
			kind := map[bool]string{false: "whole", true: "100 events"}[stream]
			d, p, f, s := median(direct), median(plain), median(fresh), median(seen)
			fmt.Fprintf(&out, "| %s | %s | %s | %s | %s | %s | %s | %.2f |\n", sizeName(size), kind, ms(d), ms(p), ms(f), ms(s), ms(s-p), float64(s)/float64(p))
		}
		bare.Close()
		upstream.Close()
	}
	fmt.Fprintf(os.Stdout, "\n%s, %d CPUs, %s/%s, medians:\n\n%s\n", runtime.Version(), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, out.String())
}

// trivial answers without looking at the request.
func trivial(stream bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if !stream {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"choices":[{"finish_reason":"stop","index":0,"message":{"role":"assistant","content":"ok"}}],"usage":{"prompt_tokens":10,"completion_tokens":1}}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for range 100 {
			_, _ = io.WriteString(w, "data: {\"choices\":[{\"finish_reason\":null,\"index\":0,\"delta\":{\"content\":\" word\"}}],\"created\":1,\"id\":\"x\",\"object\":\"chat.completion.chunk\"}\n\n")
			_ = http.NewResponseController(w).Flush()
		}
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	})
}

// benchmarkBody is the recorded session "ledger", cut to size or told again and
// again until it has it: real text, with real escapes.
func benchmarkBody(size int, stream bool) []byte {
	session, err := recording.Load("ledger")
	if err != nil {
		panic(err)
	}
	recorded, err := transcript.Parse(session.Request(session.Turns()-1, recording.Options{}))
	if err != nil {
		panic(err)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"model":"m","stream":%v,"messages":[`, stream)
	messages := recorded.Messages
	b.Write(messages[0].Raw()) // the system message
	turns := transcript.Turns(messages[1:])
	for i := 0; b.Len() < size; i++ {
		t := turns[i%len(turns)]
		for _, m := range messages[1+t.Start : 1+t.End] {
			b.WriteByte(',')
			b.Write(m.Raw())
		}
	}
	b.WriteString(`]}`)
	return b.Bytes()
}

func timed(t *testing.T, address string, body []byte) time.Duration {
	t.Helper()
	start := time.Now()
	res, err := http.Post(address+"/v1/chat/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		t.Fatal(err)
	}
	return time.Since(start)
}

// unseen changes a letter in every message, so that nothing of it is known.
func unseen(body []byte, run int) []byte {
	return bytes.ReplaceAll(body, []byte(`"content":"`), fmt.Appendf(nil, `"content":"%d `, run))
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

func ms(d time.Duration) string { return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond)) }

func sizeName(n int) string {
	if n >= 1<<20 {
		return fmt.Sprintf("%d MB", n>>20)
	}
	return fmt.Sprintf("%d KB", n>>10)
}
