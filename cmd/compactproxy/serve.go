package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/compactproxy/compactproxy/internal/config"
)

func newServe() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the proxy",
		Long: `Serve listens for agents and passes their requests on to the server. A chat request that the server
refuses as too long is made to fit and sent again; everything else goes through as it came. It may start
before the server does.

Point an agent at it with OPENAI_BASE_URL=http://127.0.0.1:8090/v1, and Prometheus at
http://127.0.0.1:8091/metrics. A first signal lets running answers finish (setting shutdown), a second one
ends at once.`,
		Example: `  compactproxy serve                                    before a llama-server on http://127.0.0.1:8080
  compactproxy serve --upstream http://studio.local:8080
  compactproxy serve --mode observe                     decide and report, change nothing
  compactproxy serve --config compactproxy.yaml`,
		Args: noArguments,
	}
	settings := addSettings(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := settings.load()
		if err != nil {
			return err
		}
		log := newLogger(cfg.Log, cmd.ErrOrStderr())
		defer func() { _ = log.Sync() }()
		return serve(cmd.Context(), cfg, log)
	}
	return cmd
}

// serve runs until a signal.
func serve(ctx context.Context, cfg config.Config, log *zap.Logger) error {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)

	a, err := newApp(cfg, log)
	if err != nil {
		return err
	}
	defer a.Close()
	log.Info("compactproxy "+thisBuild().Version+" is running; point agents at OPENAI_BASE_URL="+a.base(),
		zap.String("server", a.root.String()), zap.String("mode", string(cfg.Compaction.Mode)),
		zap.String("admin", "http://"+a.admin.Addr().String()))

	if names := config.WithoutEffect(cfg); names != nil {
		log.Warn("these keys are set and have no effect yet", zap.Strings("keys", names))
	}
	if len(cfg.APIKeys) == 0 && !config.Loopback(a.public.Addr().String()) {
		log.Warn("everybody who reaches this address may use the server: set api_keys, or listen on 127.0.0.1", zap.String("listen", a.public.Addr().String()))
	}

	select {
	case err := <-a.failed:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
		return nil
	case got := <-signals:
		log.Info("stopping: running answers may finish, a second signal ends at once",
			zap.String("signal", got.String()), zap.Duration("shutdown", cfg.Shutdown))
	}
	drain, cancel := context.WithTimeout(ctx, cfg.Shutdown)
	defer cancel()
	go func() {
		select {
		case <-signals:
			log.Warn("second signal: ending at once")
			a.Close() // ends Drain as well
		case <-drain.Done():
		}
	}()
	a.Drain(drain)
	log.Info("stopped")
	return nil
}
