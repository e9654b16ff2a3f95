package proxy

import (
	"net/http"
	"testing"

	"github.com/compactproxy/compactproxy/internal/config"
)

// BenchmarkPlan is the proxy's own work on a history that it has seen before,
// without any network. Budget: 3 ms at 1 MB.
func BenchmarkPlan(b *testing.B) {
	r := start(b, http.NotFoundHandler())
	for _, size := range []int{10 << 10, 100 << 10, 1 << 20, 10 << 20} {
		body := benchmarkBody(size, false)
		b.Run(sizeName(size), func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				ex := &exchange{p: r.Proxy, rec: &record{}, mode: config.ModeOn}
				ex.wire = body
				if err := ex.plan(http.Header{}, body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
