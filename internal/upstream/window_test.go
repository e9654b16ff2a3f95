package upstream_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/compactproxy/compactproxy/internal/upstream"
)

func TestWindow_Precedence(t *testing.T) {
	listed := upstream.Status{State: upstream.Ready, Loaded: "a", Models: []upstream.Model{
		{Name: "a", Aliases: []string{"alias"}, Window: 8192, Source: upstream.Props},
		{Name: "b", Window: 4096, Source: upstream.Models},
		{Name: "c"},
	}}
	single := upstream.Status{State: upstream.Ready, Loaded: "a", Models: listed.Models[:1]}
	none := upstream.Status{State: upstream.Foreign}
	for _, tt := range []struct {
		name       string
		status     upstream.Status
		configured map[string]int
		learned    map[string]int
		asked      string
		want       upstream.Window
		capped     []upstream.Capped
	}{
		{"what /props says", listed, nil, nil, "a", upstream.Window{Model: "a", Tokens: 8192, Source: upstream.Props}, nil},
		{"what the list says", listed, nil, nil, "b", upstream.Window{Model: "b", Tokens: 4096, Source: upstream.Models}, nil},
		{"nobody says", listed, nil, nil, "c", upstream.Window{Model: "c"}, nil},
		{"a model that is not listed", listed, nil, nil, "d", upstream.Window{Model: "d"}, nil},
		{"an alias", listed, nil, nil, "alias", upstream.Window{Model: "a", Tokens: 8192, Source: upstream.Props}, nil},
		{"no name", listed, nil, nil, "", upstream.Window{Model: "a", Tokens: 8192, Source: upstream.Props}, nil},
		{"any name", single, nil, nil, "gpt-5", upstream.Window{Model: "a", Tokens: 8192, Source: upstream.Props}, nil},

		{"a refusal before /props", listed, nil, map[string]int{"a": 2048}, "a", upstream.Window{Model: "a", Tokens: 2048, Source: upstream.Refused}, nil},
		{"a refusal by any name", single, nil, map[string]int{"gpt-4": 2048}, "gpt-5", upstream.Window{Model: "a", Tokens: 2048, Source: upstream.Refused}, nil},
		{"a refusal of another model", listed, nil, map[string]int{"a": 2048}, "b", upstream.Window{Model: "b", Tokens: 4096, Source: upstream.Models}, nil},
		{"a refusal where nobody says", none, nil, map[string]int{"x": 2048}, "x", upstream.Window{Model: "x", Tokens: 2048, Source: upstream.Refused}, nil},
		{"a refusal may name more", listed, nil, map[string]int{"a": 16384}, "a", upstream.Window{Model: "a", Tokens: 16384, Source: upstream.Refused}, nil},

		{"configured below", listed, map[string]int{"a": 6000}, nil, "a", upstream.Window{Model: "a", Tokens: 6000, Source: upstream.Configured}, nil},
		{"configured exactly", listed, map[string]int{"a": 8192}, nil, "a", upstream.Window{Model: "a", Tokens: 8192, Source: upstream.Configured}, nil},
		{"configured by the server's name, asked by another", single, map[string]int{"a": 6000}, nil, "gpt-5", upstream.Window{Model: "a", Tokens: 6000, Source: upstream.Configured}, nil},
		{"configured where nobody says", none, map[string]int{"x": 6000}, nil, "x", upstream.Window{Model: "x", Tokens: 6000, Source: upstream.Configured}, nil},
		{"configured below a refusal", listed, map[string]int{"a": 1000}, map[string]int{"a": 2048}, "a", upstream.Window{Model: "a", Tokens: 1000, Source: upstream.Configured}, nil},

		{"configured above /props", listed, map[string]int{"a": 9000}, nil, "a", upstream.Window{Model: "a", Tokens: 8192, Source: upstream.Props},
			[]upstream.Capped{{Model: "a", Configured: 9000, Shown: 8192, Source: upstream.Props}}},
		{"configured above the list", listed, map[string]int{"b": 9000}, nil, "b", upstream.Window{Model: "b", Tokens: 4096, Source: upstream.Models},
			[]upstream.Capped{{Model: "b", Configured: 9000, Shown: 4096, Source: upstream.Models}}},
		{"configured above a refusal", listed, map[string]int{"a": 6000}, map[string]int{"a": 2048}, "a", upstream.Window{Model: "a", Tokens: 2048, Source: upstream.Refused},
			[]upstream.Capped{{Model: "a", Configured: 6000, Shown: 2048, Source: upstream.Refused}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var capped []upstream.Capped
				tracker := upstream.NewTracker(upstream.TrackerOptions{
					Probe: func(context.Context) upstream.Status { return tt.status },
					Configured: func(asked, served string) int {
						if n := tt.configured[asked]; n > 0 {
							return n
						}
						return tt.configured[served]
					},
					OnCapped: func(c upstream.Capped) { capped = append(capped, c) },
				})
				defer tracker.Close()
				synctest.Wait()
				for model, window := range tt.learned {
					tracker.Learn(model, window)
				}
				for range 3 {
					if diff := cmp.Diff(tt.want, tracker.Window(tt.asked)); diff != "" {
						t.Errorf("-want +got\n%s", diff)
					}
				}
				if diff := cmp.Diff(tt.capped, capped); diff != "" {
					t.Errorf("warned: -want +got\n%s", diff)
				}
			})
		})
	}
}

func TestWindow_WarnsOnceForEachNumber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var warned []int
		configured := 9000
		tracker := upstream.NewTracker(upstream.TrackerOptions{
			Probe: func(context.Context) upstream.Status {
				return upstream.Status{State: upstream.Ready, Models: []upstream.Model{{Name: "a", Window: 8192, Source: upstream.Props}}}
			},
			Configured: func(string, string) int { return configured },
			OnCapped:   func(c upstream.Capped) { warned = append(warned, c.Configured, c.Shown) },
		})
		defer tracker.Close()
		synctest.Wait()
		tracker.Window("a")
		tracker.Window("b") // means a
		tracker.Learn("a", 8192)
		tracker.Window("a") // the same number, from elsewhere
		tracker.Learn("a", 4096)
		tracker.Window("a")
		tracker.Window("a")
		configured = 10000
		tracker.Window("a")
		if diff := cmp.Diff([]int{9000, 8192, 9000, 4096, 10000, 4096}, warned); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
	})
}

// Clients choose model names, so what is kept by name has to be bounded.
func TestTracker_ForgetsBeyondItsBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		warnings := 0
		tracker := upstream.NewTracker(upstream.TrackerOptions{
			Probe:      func(context.Context) upstream.Status { return upstream.Status{State: upstream.Ready} },
			Configured: func(string, string) int { return 9000 },
			OnCapped:   func(upstream.Capped) { warnings++ },
		})
		defer tracker.Close()
		synctest.Wait()
		name := func(i int) string { return fmt.Sprintf("model-%d", i) }
		for i := range 5000 {
			tracker.Learn(name(i), 4096)
			tracker.Window(name(i))
		}
		known := 0
		for i := range 5000 {
			if tracker.Window(name(i)).Source == upstream.Refused {
				known++
			}
		}
		if known == 0 || known > 1000 || warnings == 0 || warnings > 1000 {
			t.Errorf("%d models remembered, %d warnings", known, warnings)
		}
	})
}

func TestSource_String(t *testing.T) {
	seen := map[string]bool{}
	for source := upstream.Nowhere; source <= upstream.Models; source++ {
		if name := source.String(); name == "" || seen[name] {
			t.Errorf("source %d is called %q", source, name)
		} else {
			seen[name] = true
		}
	}
}
