package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/compactproxy/compactproxy/internal/config"
)

func newCheck() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check the configuration and print what it comes to",
		Long: `Check reads the configuration as serve would, from the file, the environment and the flags, and prints
it with every key on standard output, secrets masked. It contacts no server and opens no port.

Where something is wrong, every problem is listed on standard error with its key, the value, where the
value came from and what to do; standard output stays empty and the exit code is 2.`,
		Example: `  compactproxy check
  compactproxy check --config compactproxy.yaml
  COMPACTPROXY_UPSTREAM_URL=http://gpu:8080 compactproxy check --mode observe
  compactproxy check --config compactproxy.yaml >/dev/null && systemctl restart compactproxy`,
		Args: noArguments,
	}
	settings := addSettings(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := settings.load()
		if err != nil {
			return err
		}
		if _, err := cmd.OutOrStdout().Write(config.Effective(cfg)); err != nil {
			return fmt.Errorf("print the configuration: %w", err)
		}
		return nil
	}
	return cmd
}
