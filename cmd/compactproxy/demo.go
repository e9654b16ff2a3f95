package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/compactproxy/compactproxy/internal/compaction"
	"github.com/compactproxy/compactproxy/internal/config"
	"github.com/compactproxy/compactproxy/internal/demo"
	"github.com/compactproxy/compactproxy/internal/llamasim"
	"github.com/compactproxy/compactproxy/internal/recording"
)

func newDemo() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Play a recorded agent session through the proxy",
		Long: `Demo starts the real proxy before a simulated llama-server and plays a recorded agent session through it,
turn by turn, as the agent sent it: a table shows what happens to a history that outgrows the window several
times. It needs nothing but this program and ends by itself.

With --upstream the session is played against a real server, and the answers are that server's. The recorded
history goes on whatever it says. A window larger than the session (start llama-server with -c 16384) leaves
nothing to do. Only this flag chooses the server and only --listen and --admin choose ports; everything else of the
configuration counts as it does for serve.

The exit code is 0 if every turn was answered.`,
		Example: `  compactproxy demo
  compactproxy demo --window 32768
  compactproxy demo --upstream http://127.0.0.1:8080
  compactproxy demo --stay                    leaves proxy and simulated server up to be tried by hand`,
		Args: noArguments,
	}
	settings := addSettings(cmd)
	stay := cmd.Flags().Bool("stay", false, "leave everything running after the session, until a signal")
	window := cmd.Flags().Int("window", 16384, "context window of the simulated server in `TOKENS`")
	session := cmd.Flags().String("session", "ledger", "recorded session to play: `NAME` is one of "+strings.Join(recording.Sessions(), ", ")+" (the small ones need a small window)")
	for flag, what := range map[string]string{"listen": "any free port", "admin": "any free port", "upstream": "a simulated server", "log-level": "error"} {
		settings.flags.Lookup(flag).DefValue = what
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if settings.flags.Changed("upstream") && settings.flags.Changed("window") {
			return usagef(cmd, "--window is the simulated server's; with --upstream the server has its own")
		}
		cfg, err := settings.load()
		if err != nil {
			return err
		}
		recorded, err := recording.Load(*session)
		if err != nil {
			return usagef(cmd, "--session: no recording %q (there are %v)", *session, recording.Sessions())
		}
		if *window < 1024 {
			return usagef(cmd, "--window: at least 1024 tokens (got %d)", *window)
		}
		// Any free port, unless one was asked for: a proxy may be running already.
		if !settings.flags.Changed("listen") {
			cfg.Listen = "127.0.0.1:0"
		}
		if !settings.flags.Changed("admin") {
			cfg.Admin = "127.0.0.1:0"
		}
		if !settings.flags.Changed("log-level") {
			cfg.Log.Level = config.LogError
		}
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		d := demonstration{cfg: cfg, session: recorded, window: *window, stay: *stay, simulate: !settings.flags.Changed("upstream"), out: cmd.OutOrStdout(), log: cmd.ErrOrStderr()}
		return d.run(ctx)
	}
	return cmd
}

// demonstration is one run of the demo.
type demonstration struct {
	cfg      config.Config
	session  *recording.Session
	window   int
	stay     bool
	simulate bool
	out, log io.Writer
}

func (d demonstration) run(ctx context.Context) error {
	count, shown := d.serverCount()
	if d.simulate {
		sim := llamasim.New(llamasim.Options{Window: d.window, Slots: 1, KeepRequests: -1, Reply: d.recorded()})
		address, stop, err := serveSimulator(sim)
		if err != nil {
			return err
		}
		defer stop()
		d.cfg.Upstream.URL = address
		shown = fmt.Sprintf("a simulated llama-server with a window of %d tokens", d.window)
		count = func(_ context.Context, body []byte) int {
			n, err := sim.PromptTokens(body)
			if err != nil {
				return 0
			}
			return n
		}
	}
	d.cfg.State.Path = config.InMemory // a serve may have the store open, and this is no session of anyone's
	a, err := newApp(d.cfg, newLogger(d.cfg.Log, d.log))
	if err != nil {
		return err
	}
	defer a.Close()
	if _, err := a.tracker.First(ctx); err != nil {
		return err
	}
	fmt.Fprintf(d.out, "Recorded session %q, %d turns, through a proxy at %s before %s.\n\n", d.session.Name, d.session.Turns(), a.base(), shown)

	sum, err := demo.Play(ctx, demo.Options{Base: a.base(), Session: d.session, MaxTokens: d.maxTokens(), Count: count, Out: d.out})
	if err != nil {
		if ctx.Err() != nil {
			return errors.New("demo: interrupted")
		}
		return err
	}
	sum.Print(d.out)
	if d.stay {
		fmt.Fprintf(d.out, "\nStill running. Agents: OPENAI_BASE_URL=%s   Server: %s   Metrics: http://%s/metrics\nEnd it with Ctrl-C. --log-level info shows each request.\n", a.base(), d.cfg.Upstream.URL, a.admin.Addr())
		<-ctx.Done()
	}
	if sum.Answered < sum.Turns {
		return fmt.Errorf("demo: %d of %d turns were not answered", sum.Turns-sum.Answered, sum.Turns)
	}
	return nil
}

// maxTokens keeps a real model from writing long answers that nobody reads.
func (d demonstration) maxTokens() int {
	if d.simulate {
		return 0
	}
	return 16
}

func (d demonstration) serverCount() (count func(context.Context, []byte) int, shown string) {
	root, err := d.cfg.Upstream.Root()
	if err != nil {
		return nil, ""
	}
	return demo.ServerCount(http.DefaultClient, root.String()), "the server at " + root.String()
}

// recorded lets the simulated model say what the recorded one said, and write a
// summary where the proxy asks for one. Each turn is answered once.
func (d demonstration) recorded() func(llamasim.Request) llamasim.Reply {
	var turns atomic.Int64
	return func(r llamasim.Request) llamasim.Reply {
		if n := len(r.Messages); n > 0 {
			switch last := r.Messages[n-1].Content; {
			case compaction.AsksForOmissions(last):
				return llamasim.Reply{Text: "none"}
			case compaction.AsksForSummary(last):
				return llamasim.Reply{Text: simulatedSummary}
			}
		}
		turn := int(turns.Add(1)) - 1
		answer, err := d.session.Answer(min(turn, d.session.Turns()-1))
		if err != nil {
			return llamasim.Reply{Text: "done"}
		}
		reply := llamasim.Reply{Reasoning: answer.Reasoning, Text: answer.Text}
		for _, c := range answer.Calls {
			reply.ToolCalls = append(reply.ToolCalls, llamasim.ToolCall{ID: c.ID, Name: c.Name, Arguments: c.Arguments})
		}
		return reply
	}
}

const simulatedSummary = "The simulated model cannot summarise. A real one says here what was asked, which values, paths and names are established, " +
	"what was tried and failed, what remains, and where the work stands; what code can state by itself follows below."

// serveSimulator serves it on a free port of the loopback interface.
func serveSimulator(sim http.Handler) (address string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, fmt.Errorf("demo: %w", err)
	}
	server := &http.Server{Handler: sim} // loopback, and gone with the demo
	go func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			panic("BUG: the simulated server stopped: " + err.Error())
		}
	}()
	return "http://" + l.Addr().String(), func() { server.Close() }, nil
}
