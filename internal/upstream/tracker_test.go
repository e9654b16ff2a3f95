package upstream_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/compactproxy/compactproxy/internal/upstream"
)

// A script is a server whose state the test sets; it keeps the times at which it was looked at.
type script struct {
	mu     sync.Mutex
	status upstream.Status
	took   time.Duration // how long a look takes
	start  time.Time
	looks  []time.Duration
}

func newScript(state upstream.State, models ...upstream.Model) *script {
	return &script{status: upstream.Status{State: state, Models: models}, start: time.Now()}
}

func (s *script) set(state upstream.State, models ...upstream.Model) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status = upstream.Status{State: state, Models: models}
}

func (s *script) probe(ctx context.Context) upstream.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looks = append(s.looks, time.Since(s.start))
	if s.took > 0 {
		s.mu.Unlock()
		select {
		case <-time.After(s.took):
		case <-ctx.Done():
		}
		s.mu.Lock()
	}
	return s.status
}

// seen returns the seconds at which it was looked at, and forgets them.
func (s *script) seen() []float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var seconds []float64
	for _, d := range s.looks {
		seconds = append(seconds, d.Seconds())
	}
	s.looks = nil
	return seconds
}

func wantLooks(t *testing.T, s *script, want ...float64) {
	t.Helper()
	if diff := cmp.Diff(want, s.seen()); diff != "" {
		t.Errorf("looked at seconds: -want +got\n%s", diff)
	}
}

// pass lets virtual time pass.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func tiny(window int) upstream.Model {
	return upstream.Model{Name: "tiny", Window: window, Source: upstream.Props}
}

func TestTracker_StartsBeforeTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newScript(upstream.Down)
		var changes []string
		tracker := upstream.NewTracker(upstream.TrackerOptions{
			Probe: server.probe,
			OnChange: func(old, new upstream.Status) {
				changes = append(changes, old.State.String()+" > "+new.State.String()+": "+new.Reason)
			},
		})
		defer tracker.Close()
		pass(18 * time.Second)
		wantLooks(t, server, 0, 1, 3, 7, 12, 17)

		server.set(upstream.Loading)
		pass(5 * time.Second)
		wantLooks(t, server, 22)

		server.set(upstream.Ready, tiny(2048))
		pass(5 * time.Second)
		wantLooks(t, server, 27)
		if got := tracker.Window("x").Tokens; got != 2048 {
			t.Errorf("window %d", got)
		}

		pass(time.Hour)
		wantLooks(t, server) // ready: nothing more without a reason
		want := []string{"unknown > down: start", "down > loading: it was down", "loading > ready: it was loading"}
		if diff := cmp.Diff(want, changes); diff != "" {
			t.Errorf("changes: -want +got\n%s", diff)
		}
	})
}

func TestTracker_AsksSeldomWhereItIsNotUnderstood(t *testing.T) {
	for _, state := range []upstream.State{upstream.NeedsKey, upstream.Foreign} {
		t.Run(state.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := newScript(state)
				tracker := upstream.NewTracker(upstream.TrackerOptions{Probe: server.probe})
				defer tracker.Close()
				pass(150 * time.Second)
				wantLooks(t, server, 0, 60, 120)
			})
		})
	}
}

func TestTracker_LooksAgainWhenARequestComesAndTheLastLookIsOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newScript(upstream.Ready, tiny(2048))
		tracker := upstream.NewTracker(upstream.TrackerOptions{Probe: server.probe})
		defer tracker.Close()
		for range 59 {
			pass(time.Second)
			tracker.Touch()
		}
		synctest.Wait()
		wantLooks(t, server, 0)
		pass(time.Second)
		for range 100 {
			tracker.Touch()
		}
		synctest.Wait()
		wantLooks(t, server, 60)
		if reason := tracker.Status().Reason; reason != "the last look was old" {
			t.Errorf("reason %q", reason)
		}
		pass(time.Hour)
		tracker.Touch()
		synctest.Wait()
		wantLooks(t, server, 60+3600)
	})
}

func TestTracker_TouchDuringALookAsksForNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newScript(upstream.Ready, tiny(2048))
		server.took = 10 * time.Second
		tracker := upstream.NewTracker(upstream.TrackerOptions{Probe: server.probe})
		defer tracker.Close()
		tracker.Touch() // during the first
		pass(100 * time.Second)
		for range 5 {
			tracker.Touch()
			pass(time.Second)
		}
		pass(time.Minute)
		wantLooks(t, server, 0, 100)
	})
}

func TestTracker_LooksAgainWhenTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newScript(upstream.Ready, tiny(2048))
		var changes []string
		tracker := upstream.NewTracker(upstream.TrackerOptions{
			Probe:    server.probe,
			OnChange: func(_, new upstream.Status) { changes = append(changes, new.Reason) },
		})
		defer tracker.Close()
		pass(10 * time.Second)

		server.set(upstream.Ready, tiny(4096))
		tracker.Invalidate("answer named another model")
		pass(10 * time.Second)
		wantLooks(t, server, 0, 10)
		if got := tracker.Window(""); got.Tokens != 4096 {
			t.Errorf("%+v", got)
		}
		tracker.Invalidate("nothing new")
		synctest.Wait()
		wantLooks(t, server, 20)
		if diff := cmp.Diff([]string{"start", "answer named another model"}, changes); diff != "" {
			t.Errorf("changes: -want +got\n%s", diff)
		}
	})
}

func TestTracker_LooksOnceASecondAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newScript(upstream.Down)
		tracker := upstream.NewTracker(upstream.TrackerOptions{Probe: server.probe})
		defer tracker.Close()
		for range 1000 {
			tracker.Invalidate("connection failed")
			pass(10 * time.Millisecond)
		}
		if looks := server.seen(); len(looks) > 11 {
			t.Errorf("%d looks in 10 s: %v", len(looks), looks)
		}
	})
}

func TestTracker_ToldTwiceBeforeALookLooksOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newScript(upstream.Ready, tiny(2048))
		tracker := upstream.NewTracker(upstream.TrackerOptions{Probe: server.probe})
		defer tracker.Close()
		pass(200 * time.Millisecond)
		tracker.Invalidate("connection failed")
		pass(200 * time.Millisecond)
		tracker.Invalidate("connection failed")
		pass(time.Minute)
		wantLooks(t, server, 0, 1)
	})
}

// An invalidation that comes while a look is under way may be about what that look did not see yet.
func TestTracker_ToldDuringALookLooksOnceMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newScript(upstream.Ready, tiny(2048))
		server.took = 2 * time.Second
		tracker := upstream.NewTracker(upstream.TrackerOptions{Probe: server.probe})
		defer tracker.Close()
		pass(time.Second)
		tracker.Invalidate("connection failed")
		tracker.Invalidate("connection failed")
		pass(time.Minute)
		wantLooks(t, server, 0, 3)
	})
}

func TestTracker_ARefusalBeatsOlderReadingsAndLosesToNewOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newScript(upstream.Ready, tiny(8192))
		tracker := upstream.NewTracker(upstream.TrackerOptions{Probe: server.probe})
		defer tracker.Close()
		want := func(tokens int, source upstream.Source) {
			t.Helper()
			synctest.Wait()
			if got := tracker.Window("any"); got.Tokens != tokens || got.Source != source {
				t.Errorf("%d from %v, want %d from %v", got.Tokens, got.Source, tokens, source)
			}
		}
		want(8192, upstream.Props)

		if !tracker.Learn("any", 4096) {
			t.Error("nothing learned from a smaller window")
		}
		want(4096, upstream.Refused)
		if tracker.Learn("other", 4096) {
			t.Error("learned the same twice")
		}
		pass(5 * time.Second) // it was looked at again, and insisted
		want(4096, upstream.Refused)
		wantLooks(t, server, 0, 1)

		if tracker.Learn("any", 0) || tracker.Learn("any", -1) {
			t.Error("learned from nothing")
		}
		want(4096, upstream.Refused)

		server.set(upstream.Ready, tiny(16384)) // started with more
		tracker.Invalidate("told")
		pass(time.Second)
		want(16384, upstream.Props)

		tracker.Learn("any", 4096)
		pass(5 * time.Second)
		want(4096, upstream.Refused)
		server.set(upstream.Down)
		tracker.Invalidate("connection failed")
		pass(time.Second)
		want(4096, upstream.Refused) // a server that is down has not lost its window
		server.set(upstream.Ready, tiny(16384))
		pass(10 * time.Second)
		want(16384, upstream.Props) // but one that was away may be another
	})
}

func TestTracker_LearnsBeforeItKnowsTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newScript(upstream.Ready, upstream.Model{Name: "tiny"}) // does not say its window
		server.took = time.Second
		tracker := upstream.NewTracker(upstream.TrackerOptions{Probe: server.probe})
		defer tracker.Close()
		tracker.Learn("gpt-5", 4096)
		if got := tracker.Window("gpt-5"); got.Tokens != 4096 || got.Model != "gpt-5" {
			t.Errorf("%+v", got)
		}
		pass(time.Minute)
		if got := tracker.Window("gpt-4"); got.Tokens != 4096 || got.Model != "tiny" {
			t.Errorf("%+v: not carried over to the model that was meant", got)
		}
	})
}

func TestTracker_ABusyServerIsNotGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newScript(upstream.Ready, tiny(8192))
		tracker := upstream.NewTracker(upstream.TrackerOptions{Probe: server.probe})
		defer tracker.Close()
		synctest.Wait()
		tracker.Learn("any", 4096)
		pass(5 * time.Second)
		server.set(upstream.Busy)
		tracker.Invalidate("told")
		pass(time.Minute)
		server.set(upstream.Ready, tiny(8192))
		pass(10 * time.Second)
		if got := tracker.Window("any"); got.Tokens != 4096 {
			t.Errorf("%+v", got)
		}
	})
}

func TestTracker_First(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newScript(upstream.Ready, tiny(2048))
		server.took = 2 * time.Second
		tracker := upstream.NewTracker(upstream.TrackerOptions{Probe: server.probe})
		defer tracker.Close()

		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if status, err := tracker.First(short); !errors.Is(err, context.DeadlineExceeded) || status.State != upstream.Unknown {
			t.Errorf("after a second: %v, %v", status.State, err)
		}
		if status, err := tracker.First(t.Context()); err != nil || status.State != upstream.Ready {
			t.Errorf("%v, %v", status.State, err)
		}
	})
}

func TestTracker_Close(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newScript(upstream.Ready, tiny(2048))
		server.took = time.Hour
		tracker := upstream.NewTracker(upstream.TrackerOptions{
			Probe:    server.probe,
			OnChange: func(_, _ upstream.Status) { t.Error("a look that was broken off showed something") },
		})
		synctest.Wait()
		tracker.Close() // during a look
		tracker.Close()
		if _, err := tracker.First(t.Context()); !errors.Is(err, context.Canceled) {
			t.Errorf("First: %v", err)
		}
		tracker.Touch()
		tracker.Invalidate("after the end")
		tracker.Invalidate("after the end")
		tracker.Learn("a", 4096)
		if got := tracker.Window("a").Tokens; got != 4096 {
			t.Errorf("window %d", got)
		}
		pass(time.Hour)
		wantLooks(t, server, 0)
	})
}

func TestTracker_CloseWhileItWaits(t *testing.T) {
	for _, state := range []upstream.State{upstream.Down, upstream.Ready, upstream.NeedsKey} {
		t.Run(state.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tracker := upstream.NewTracker(upstream.TrackerOptions{Probe: newScript(state).probe})
				synctest.Wait()
				tracker.Invalidate("told") // it waits out the second
				synctest.Wait()
				tracker.Close()
			})
		})
	}
}

func TestTracker_CallbacksMayCallIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newScript(upstream.Ready, tiny(8192))
		var tracker *upstream.Tracker
		started := make(chan struct{})
		var windows []int
		tracker = upstream.NewTracker(upstream.TrackerOptions{
			Probe: server.probe,
			OnChange: func(_, new upstream.Status) {
				<-started
				if !new.Same(tracker.Status()) {
					t.Error("the status is not the new one yet")
				}
				windows = append(windows, tracker.Window("").Tokens)
				tracker.Learn("", 4096)
				tracker.Touch()
				tracker.Invalidate("told")
			},
			Configured: func(string, string) int { return 9000 },
			OnCapped:   func(upstream.Capped) { windows = append(windows, -tracker.Window("").Tokens) },
		})
		close(started)
		pass(time.Minute)
		tracker.Close()
		if diff := cmp.Diff([]int{-8192, 8192}, windows); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
	})
}

// With a real Prober, over a transport that needs no network: from nobody to loading to ready.
func TestTracker_WithProber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		props, models := testdata(t, "props.json"), testdata(t, "models.json")
		start := time.Now()
		var paths []string
		client := &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			paths = append(paths, r.URL.Path)
			up := time.Since(start)
			switch {
			case up < 10*time.Second:
				return nil, errors.New("connection refused")
			case up < 20*time.Second:
				return response(503, string(loadingBody)), nil
			case r.URL.Path == "/props":
				return response(200, string(props)), nil
			case r.URL.Path == "/v1/models":
				return response(200, string(models)), nil
			}
			return response(404, notFoundBody), nil
		})}
		var states []string
		tracker := upstream.NewTracker(upstream.TrackerOptions{
			Probe:    (&upstream.Prober{Client: client, BaseURL: "http://server/v1"}).Probe,
			OnChange: func(_, new upstream.Status) { states = append(states, new.State.String()) },
		})
		defer tracker.Close()
		pass(time.Minute)
		if diff := cmp.Diff([]string{"down", "loading", "ready"}, states); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
		if got := tracker.Window("whatever an agent calls it"); got != (upstream.Window{Model: "tiny", Tokens: 2048, Source: upstream.Props}) {
			t.Errorf("%+v", got)
		}
		if slices.Contains(paths, "/slots") {
			t.Error("/slots was asked")
		}
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func response(status int, body string) *http.Response {
	return &http.Response{
		StatusCode: status,
		Header:     http.Header{"Content-Type": {"application/json; charset=utf-8"}},
		Body:       readCloser{strings.NewReader(body)},
	}
}

type readCloser struct{ *strings.Reader }

func (readCloser) Close() error { return nil }

// Everything at once, for the race detector.
func TestTracker_IsSafeForConcurrentUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newScript(upstream.Ready, tiny(8192))
		tracker := upstream.NewTracker(upstream.TrackerOptions{
			Probe:      server.probe,
			OnChange:   func(_, _ upstream.Status) {},
			Configured: func(string, string) int { return 9000 },
			OnCapped:   func(upstream.Capped) {},
		})
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				for j := range 100 {
					tracker.Touch()
					tracker.Window("a")
					tracker.Learn("a", 1000+j)
					tracker.Invalidate("told")
					tracker.Status()
					server.set(upstream.State(j%7), tiny(1024*(1+i)))
					time.Sleep(100 * time.Millisecond)
				}
			})
		}
		all.Wait()
		tracker.Close()
	})
}
