package llamasim

import (
	"bufio"
	"context"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// stepper makes a stream send one event for each value it is given.
type stepper chan struct{}

func (s stepper) wait(ctx context.Context) {
	select {
	case <-s:
	case <-ctx.Done():
	}
}

// open starts a stream and returns its lines and a way to leave.
func open(t *testing.T, client *http.Client, url, body string) (*bufio.Scanner, func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url+chatPath, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	return bufio.NewScanner(response.Body), func() {
		cancel()
		response.Body.Close()
	}
}

// Streams that are left half-way free their slot and leave nothing running
// (TestMain looks).
func TestCancel_HalfWay(t *testing.T) {
	steps := make(stepper)
	finished := make(chan Recorded, 100)
	s := New(Options{
		Slots:         1,
		Reply:         func(Request) Reply { return Reply{Text: "and so on", Endless: true} },
		BetweenEvents: steps.wait,
		Finished:      func(r Recorded) { finished <- r },
	})
	server := start(t, s)
	for range 5 {
		lines, leave := open(t, server.Client(), server.URL, chatBody(`"stream":true,`, "user", "hi"))
		for range 3 {
			if !lines.Scan() || !strings.HasPrefix(lines.Text(), "data: ") {
				t.Fatalf("got %q", lines.Text())
			}
			lines.Scan()
			steps <- struct{}{}
		}
		leave()
		if r := <-finished; !r.Canceled || r.Predicted < 2 || r.Status != 200 {
			t.Errorf("canceled %t, %d tokens, status %d", r.Canceled, r.Predicted, r.Status)
		}
	}
	if running, waiting := s.slots.counts(); running != 0 || waiting != 0 {
		t.Errorf("%d running, %d waiting", running, waiting)
	}
}

// A request that waits for a slot gets nothing, and leaves the queue when its
// client does.
func TestSlots_WaitingGetsNothing(t *testing.T) {
	steps := make(stepper)
	finished := make(chan Recorded, 10)
	s := New(Options{Slots: 1, BetweenEvents: steps.wait, Finished: func(r Recorded) { finished <- r }})
	server := start(t, s)
	_, leave := open(t, server.Client(), server.URL, chatBody(`"stream":true,`, "user", "hi"))

	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	waiting.Go(func() {
		request, _ := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+chatPath, strings.NewReader(chatBody(`"stream":true,`, "user", "me too")))
		if response, err := server.Client().Do(request); err == nil {
			response.Body.Close()
			t.Error("the waiting request was answered")
		}
	})
	for {
		if _, n := s.slots.counts(); n == 1 {
			break
		}
		runtime.Gosched()
	}
	metrics := send(t, server, http.MethodGet, "/metrics", nil, "")
	for _, line := range []string{"llamacpp:requests_processing 1\n", "llamacpp:requests_deferred 1\n"} {
		if !strings.Contains(metrics.body, line) {
			t.Errorf("no %q in\n%s", line, metrics.body)
		}
	}
	<-finished // of the metrics
	cancel()
	waiting.Wait()
	if r := <-finished; r.Status != 0 || !r.Canceled {
		t.Errorf("%+v", r)
	}
	leave()
	<-finished
}

func TestSlotsBusy(t *testing.T) {
	steps := make(stepper)
	s := New(Options{Slots: 1, BetweenEvents: steps.wait})
	server := start(t, s)
	lines, leave := open(t, server.Client(), server.URL, chatBody(`"stream":true,"max_tokens":50,`, "user", "hi"))
	defer leave()
	lines.Scan()
	got := send(t, server, http.MethodGet, "/slots", nil, "")
	const real = `[{"id":0,"n_ctx":32768,"speculative":false,"is_processing":true,"id_task":4598,"n_prompt_tokens":31,` +
		`"n_prompt_tokens_processed":0,"n_prompt_tokens_cache":23,"params":`
	slot := members(elements([]byte(got.body))[0])
	rest := strings.SplitN(got.body, `"params":`, 2)[0] + `"params":{}}]`
	if want, got := shapes(real+`{}}]`), shapes(rest); want[0] != got[0] {
		t.Errorf("got %s, want %s", got, want)
	}
	if members(elements(slot["next_token"])[0]).number("n_remain", -1) < 1 {
		t.Errorf("%s", slot["next_token"])
	}
}

// Hooks run where they say: headers and the first report of a stream are out
// before the prompt is processed.
func TestHooks_Order(t *testing.T) {
	release := make(chan struct{})
	s := New(Options{BeforeFirstByte: func(ctx context.Context) {
		select {
		case <-release:
		case <-ctx.Done():
		}
	}})
	server := start(t, s)
	lines, leave := open(t, server.Client(), server.URL, chatBody(`"stream":true,"return_progress":true,`, "user", "hi"))
	defer leave()
	if !lines.Scan() || !strings.Contains(lines.Text(), `"processed":0`) {
		t.Errorf("got %q", lines.Text())
	}
	close(release)
	last := ""
	for lines.Scan() {
		if lines.Text() != "" {
			last = lines.Text()
		}
	}
	if last != "data: [DONE]" {
		t.Errorf("ends with %q", last)
	}
}
