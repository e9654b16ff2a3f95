package store

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compactproxy/compactproxy/internal/conversation"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

// BenchmarkLoad100k reads what a start reads: 100,000 checkpoints and 10,000
// conversations of 200 messages. Budget: well under a second.
func BenchmarkLoad100k(b *testing.B) {
	s := openStore(b, Options{Dir: b.TempDir(), Archive: true})
	tx, err := s.file.write.Begin()
	if err != nil {
		b.Fatal(err)
	}
	upsert, err := tx.Prepare(upsertState)
	if err != nil {
		b.Fatal(err)
	}
	entries := s.pack([]byte(noise(2000)))
	summary := `{"trigger":"threshold"}`
	for i := range 10_000 {
		state := fullState(fmt.Sprintf("%012x", i))
		state.Prints = make([]uint64, 200)
		row, err := stateRow(state)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := upsert.Exec(row...); err != nil {
			b.Fatal(err)
		}
		for n := range 10 {
			chain := hashOf(state.ID, fmt.Sprint(n))
			if _, err := s.insertCheckpoint(tx, state.ID, &filedRow{
				Filed:   &conversation.Filed{Ref: conversation.Ref{Chain: chain, N: n}},
				entries: entries, summary: summary,
			}); err != nil {
				b.Fatal(err)
			}
		}
	}
	if err := tx.Commit(); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		kept, err := s.Load(10_000)
		if err != nil || len(kept.Checkpoints) != 100_000 || len(kept.Conversations) != 10_000 {
			b.Fatal(len(kept.Checkpoints), len(kept.Conversations), err)
		}
	}
	b.ReportMetric(float64(s.Size())/(1<<20), "MiB-file")
}

// BenchmarkCommit files a checkpoint over 100 KB of originals in 20 messages, while
// the indexer is at work. Budget: 15 ms at the
// median, most of it compressing.
func BenchmarkCommit(b *testing.B) {
	source := goSource(b)
	dir := b.TempDir()
	s := openStore(b, Options{Dir: dir, Archive: true})
	var took []time.Duration
	var parent int64
	bytes := 0
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		var messages []transcript.Message
		for m := range 20 {
			at := (i*20 + m) * 4999 % (len(source) - 5000)
			messages = append(messages, result(b, fmt.Sprint(i, "-", m), fmt.Sprint(i, m, source[at:at+5000])))
		}
		f := filed("a", parent, 20*(i+1), source[:20_000], messages...)
		b.StartTimer()
		start := time.Now()
		parent = commit(b, s, "a", epoch, f)
		took = append(took, time.Since(start))
		bytes += 20 * 5000
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "ms-p50")
	b.ReportMetric(float64(took[len(took)*95/100].Microseconds())/1000, "ms-p95")
	b.ReportMetric(float64(took[len(took)-1].Microseconds())/1000, "ms-max")
	indexAll(b, s)
	if err := s.reclaim(); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(s.Size())/float64(bytes), "file/original")
}

// goSource is the text of this module's own files.
func goSource(b *testing.B) string {
	var all strings.Builder
	files, err := filepath.Glob("../*/*.go")
	if err != nil || len(files) == 0 {
		b.Fatal("no files", err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			b.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}

// BenchmarkRecall searches 2,000 results of 5 KB.
func BenchmarkRecall(b *testing.B) {
	source := goSource(b)
	s := openStore(b, Options{Dir: b.TempDir(), Archive: true})
	var messages []transcript.Message
	for i := range 2000 {
		at := i * 4999 % (len(source) - 5000)
		messages = append(messages, result(b, fmt.Sprint(i), fmt.Sprint(i, " ", source[at:at+5000])))
	}
	commit(b, s, "a", epoch, filed("a", 0, len(messages), "e", messages...))
	start := time.Now()
	indexAll(b, s)
	b.Logf("indexed %d KB in %v", len(messages)*5, time.Since(start))
	for _, q := range []Query{
		{Text: "klauspost"}, {Text: "checkpoint store"}, {Text: "return"}, {Text: "co*"}, {Text: "store.go"}, {Text: "return", Conversation: "a"},
	} {
		name := strings.ReplaceAll(q.Text, " ", "+")
		if q.Conversation != "" {
			name += ",conversation"
		}
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				recall(b, s, q)
			}
		})
	}
}
