package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/compactproxy/compactproxy/internal/config"
)

// newConfigTopic returns the help topic that lists the keys of the configuration. It has nothing to
// run, which makes it a topic to cobra.
func newConfigTopic() *cobra.Command {
	var b strings.Builder
	b.WriteString(`No configuration is needed. What is set counts in this order: flags, the environment, the file, the
default.

The file is YAML, named by --config or ` + config.EnvFile + `. A dot in a key is a level in the file:

  compaction:
    mode: observe          # the key compaction.mode

In the environment a key is ` + config.EnvPrefix + ` and its name in capitals, with _ for every dot:

  ` + config.EnvName("compaction.mode") + `=observe
  ` + config.EnvName("api_keys") + `=first,second

Durations and sizes have a unit: 500ms, 30s, 15m, 168h; 256MiB, 2GiB, 500MB. A key that does not exist is
an error.

Keys:
`)
	for _, key := range config.Keys() {
		what := key.Kind
		if key.Default != "" {
			what += ", default " + key.Default
		}
		if key.Inert {
			what += ", no effect yet"
		}
		fmt.Fprintf(&b, "\n  %s (%s)\n      %s\n", key.Name, what, key.Doc)
	}
	return &cobra.Command{
		Use:   "config",
		Short: "The keys of the configuration",
		Long:  strings.TrimRight(b.String(), "\n"),
	}
}
