// Package metrics declares every Prometheus collector of the proxy in one
// struct.
//
// Names are fixed by the project's design: prefix compactproxy_, seconds and
// bytes, counters that exist at 0 from the start, and only labels from closed
// sets. Nothing here may carry a label that a client chooses. The package must
// not know what the numbers mean to a request; it only counts.
package metrics

import (
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

const namespace = "compactproxy"

// Routes are the values of the label route: the chat route and everything that
// is passed through.
var Routes = []string{"chat", "other"}

// Metrics are the collectors of one proxy.
type Metrics struct {
	Requests        *prometheus.CounterVec   // route, code
	Duration        *prometheus.HistogramVec // route; seconds
	FirstByte       prometheus.Observer      // seconds
	Overhead        *prometheus.HistogramVec // stage; seconds
	Inflight        prometheus.Gauge
	PromptTokens    *prometheus.CounterVec // source
	Completion      prometheus.Counter
	Compactions     *prometheus.CounterVec // trigger, kind, result
	PassRemoved     *prometheus.CounterVec // pass; bytes
	CompactedTokens *prometheus.CounterVec // side
	SummaryDuration prometheus.Observer    // seconds
	SummaryPrompt   *prometheus.CounterVec // source; tokens
	SummaryRejected *prometheus.CounterVec // reason
	Summaries       *prometheus.CounterVec // style
	OverflowRetries *prometheus.CounterVec // result
	Violations      *prometheus.CounterVec // kind, action
	PrefixExpected  prometheus.Counter     // tokens
	PrefixReused    prometheus.Counter     // tokens
	CacheMisses     *prometheus.CounterVec // reason
	ForecastError   prometheus.Observer    // ratio
	Rereads         prometheus.Counter
	ContextTokens   prometheus.Gauge
	Conversations   prometheus.Gauge
	StateBytes      prometheus.Gauge
	StateDegraded   prometheus.Gauge
}

// Labels are the closed sets that other packages own.
type Labels struct {
	Passes         []string // names of the compaction steps
	Kinds          []string // how far compactions go
	ViolationKinds []string // names of the pairing violations
	Styles         []string // how summaries are asked for
	Rejections     []string // why a summary is not used
	MissReasons    []string // why the server's cache did not pay
}

// longTimes fit requests to a local model: a prefill may take half an hour.
var longTimes = []float64{0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 900, 1800}

// shortTimes fit the proxy's own work.
var shortTimes = []float64{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5}

// ratios fit the error of a forecast as a share of what the server counted.
var ratios = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2}

// New registers every collector with reg. It panics if they are registered
// there already: one registry belongs to one proxy.
func New(reg prometheus.Registerer, version, commit string, labels Labels) *Metrics {
	counter := func(name, help string, label ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, label)
		reg.MustRegister(c)
		return c
	}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help})
		reg.MustRegister(g)
		return g
	}
	histogram := func(name, help string, buckets []float64, label ...string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets}, label)
		reg.MustRegister(h)
		return h
	}
	m := &Metrics{
		Requests:        counter("requests_total", "Requests answered, by route and status code (499: the client went away).", "route", "code"),
		Duration:        histogram("request_duration_seconds", "Time from a request's first byte to the end of its answer.", longTimes, "route"),
		FirstByte:       histogram("time_to_first_byte_seconds", "Time from a chat request's first byte to the answer's first byte.", longTimes).WithLabelValues(),
		Overhead:        histogram("overhead_seconds", "Time that the proxy itself added to a chat request, by stage.", shortTimes, "stage"),
		Inflight:        gauge("inflight_requests", "Requests under way."),
		PromptTokens:    counter("prompt_tokens_total", "Prompt tokens as the server reported them: taken from its cache, or processed.", "source"),
		Completion:      counter("completion_tokens_total", "Tokens generated as the server reported them.").WithLabelValues(),
		Compactions:     counter("compactions_total", "Compactions by what set them off, how far they went and how they ended.", "trigger", "kind", "result"),
		PassRemoved:     counter("pass_removed_bytes_total", "Bytes of prompt text that each compaction step removed.", "pass"),
		CompactedTokens: counter("compaction_tokens_total", "Prompt tokens before and after compactions, estimated at the server's own rate.", "side"),
		SummaryDuration: histogram("summary_duration_seconds", "Time that a summary took, with its check and rewrite.", longTimes).WithLabelValues(),
		SummaryPrompt:   counter("summary_prompt_tokens_total", "Prompt tokens of the calls for summaries as the server reported them: taken from its cache, or processed.", "source"),
		SummaryRejected: counter("summary_rejections_total", "Texts that a model wrote as a summary and that were not used, by reason.", "reason"),
		Summaries:       counter("summaries_total", "Summaries that were installed, by the style in which they were asked for.", "style"),
		OverflowRetries: counter("overflow_retries_total", "Requests that were refused as too long and sent again, by result.", "result"),
		Violations:      counter("pairing_violations_total", "Breaches of tool pairing in clients' lists, by kind and what was done.", "kind", "action"),
		PrefixExpected:  counter("prefix_expected_tokens_total", "Prompt tokens that should have come from the server's cache: those of a conversation's last prompt where the next one extends it.").WithLabelValues(),
		PrefixReused:    counter("prefix_reused_tokens_total", "Of the expected tokens, those that did come from the cache.").WithLabelValues(),
		CacheMisses:     counter("cache_misses_total", "Turns that paid again for more than 1,024 tokens and a quarter of the last prompt, by reason.", "reason"),
		ForecastError:   histogram("forecast_error_ratio", "Difference between forecast and the prompt that the server counted, as a share of the latter.", ratios).WithLabelValues(),
		Rereads:         counter("rereads_total", "Files that an agent read again after a compaction had removed what it read before.").WithLabelValues(),
		ContextTokens:   gauge("upstream_context_tokens", "The server's window per slot in tokens; 0 while it is unknown."),
		Conversations:   gauge("conversations", "Live conversations."),
		StateBytes:      gauge("state_bytes", "Bytes of the store on disk, or of what is kept in memory where there is none."),
		StateDegraded:   gauge("state_degraded", "1 while the store does not take what it should and the proxy serves from memory."),
	}
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: "build_info", Help: "Always 1; the labels say what is running."}, []string{"version", "commit", "goversion"})
	reg.MustRegister(build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	build.WithLabelValues(version, commit, runtime.Version()).Set(1)
	m.prime(labels)
	return m
}

// Results of compactions and of retries after a refusal.
const (
	ResultInstalled = "installed" // the rewritten list was sent
	ResultRejected  = "rejected"  // no smaller or no legal list could be made
	ResultObserved  = "observed"  // mode observe: it would have been sent
	RetryAnswered   = "answered"
	RetryRefused    = "refused"
	RetryFailed     = "failed"
	RetryHopeless   = "hopeless" // nothing to retry with
)

// prime makes every known child exist at 0, so that a rate can be taken from
// the first scrape on.
func (m *Metrics) prime(labels Labels) {
	for _, route := range Routes {
		m.Requests.WithLabelValues(route, "200")
		m.Duration.WithLabelValues(route)
	}
	for _, stage := range []string{StageRead, StagePlan, StagePrepare, StageCount, StageCompact, StageRecover, StageStore} {
		m.Overhead.WithLabelValues(stage)
	}
	for _, source := range []string{"cache", "processed"} {
		m.PromptTokens.WithLabelValues(source)
		m.SummaryPrompt.WithLabelValues(source)
	}
	for _, trigger := range []string{TriggerThreshold, TriggerRecovery, TriggerRequest} {
		for _, kind := range labels.Kinds {
			for _, result := range []string{ResultInstalled, ResultRejected, ResultObserved} {
				m.Compactions.WithLabelValues(trigger, kind, result)
			}
		}
	}
	for _, reason := range labels.Rejections {
		m.SummaryRejected.WithLabelValues(reason)
	}
	for _, style := range labels.Styles {
		m.Summaries.WithLabelValues(style)
	}
	for _, reason := range labels.MissReasons {
		m.CacheMisses.WithLabelValues(reason)
	}
	for _, pass := range labels.Passes {
		m.PassRemoved.WithLabelValues(pass)
	}
	for _, side := range []string{"before", "after"} {
		m.CompactedTokens.WithLabelValues(side)
	}
	for _, result := range []string{RetryAnswered, RetryRefused, RetryFailed, RetryHopeless} {
		m.OverflowRetries.WithLabelValues(result)
	}
	for _, kind := range labels.ViolationKinds {
		for _, action := range []string{ActionRepaired, ActionRejected, ActionSeen} {
			m.Violations.WithLabelValues(kind, action)
		}
	}
}

// What sets a compaction off.
const (
	TriggerThreshold = "threshold" // before the server refuses
	TriggerRecovery  = "recovery"  // after it did
	TriggerRequest   = "request"   // someone asked for it
)

// Stages of the proxy's own work on a chat request.
const (
	StageRead    = "read"    // the body, until its last byte
	StagePlan    = "plan"    // index, fingerprints, replay, pairing
	StagePrepare = "prepare" // making room and storing, before the request leaves
	StageCount   = "count"   // of which: the server counting tokens
	StageCompact = "compact" // of which: making a list shorter
	StageStore   = "store"   // of which: putting a checkpoint or pins on disk
	StageRecover = "recover" // making a refused list fit
)

// What was done about a pairing violation.
const (
	ActionRepaired = "repaired"
	ActionRejected = "rejected"
	ActionSeen     = "seen" // observed only
)

// Stage records the time since start.
func (m *Metrics) Stage(stage string, start time.Time) {
	m.Overhead.WithLabelValues(stage).Observe(time.Since(start).Seconds())
}
