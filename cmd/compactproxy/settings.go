package main

import (
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/compactproxy/compactproxy/internal/config"
)

// settingFlags are the flags that set a key of the configuration. There is none for a secret: a
// command line is visible to every user of the machine.
var settingFlags = []struct{ flag, value, key string }{
	{"upstream", "URL", "upstream.url"},
	{"listen", "ADDRESS", "listen"},
	{"admin", "ADDRESS", "admin"},
	{"mode", "MODE", "compaction.mode"},
	{"log-level", "LEVEL", "log.level"},
	{"log-format", "FORMAT", "log.format"},
}

// settings are the flags of a command that needs the configuration.
type settings struct {
	flags *pflag.FlagSet
	path  string
}

// addSettings gives the command --config and the flags of settingFlags. They are explained with the
// description and the default of their key.
func addSettings(cmd *cobra.Command) *settings {
	s := &settings{flags: cmd.Flags()}
	s.flags.StringVar(&s.path, "config", "", "YAML `FILE` with the configuration; without it the one in "+config.EnvFile+", or none")
	for _, f := range settingFlags {
		key, ok := config.Lookup(f.key)
		if !ok {
			panic("BUG: --" + f.flag + " sets " + f.key + ", which is not a key")
		}
		usage := strings.TrimSuffix(key.Doc, ".")
		if key.Kind != "text" {
			usage += ": " + key.Kind
		}
		s.flags.Var(&settingValue{text: key.Default, kind: f.value}, f.flag, usage)
	}
	return s
}

// settingValue is the text of a flag; its key says later whether that is a value.
type settingValue struct {
	text string
	kind string // stands for the value in help
}

func (v *settingValue) String() string { return v.text }
func (v *settingValue) Type() string   { return v.kind }

func (v *settingValue) Set(text string) error {
	v.text = text
	return nil
}

// source reads the file and collects the environment and the flags that were given. It can be called again: the file
// is read anew each time.
func (s *settings) source() (config.Source, error) {
	if s.flags.Changed("config") && s.path == "" {
		return config.Source{}, config.Problems{{Key: "--config", Text: "names no file", Got: `""`, Fix: "leave it out: no file is needed"}}
	}
	var given []config.Flag
	for _, f := range settingFlags {
		if s.flags.Changed(f.flag) {
			given = append(given, config.Flag{Name: "--" + f.flag, Key: f.key, Value: s.flags.Lookup(f.flag).Value.String()})
		}
	}
	return config.Open(s.path, os.Environ(), given)
}

// load returns the configuration. An error of it ends the program with exitUsage.
func (s *settings) load() (config.Config, error) {
	source, err := s.source()
	if err != nil {
		return config.Config{}, err
	}
	return config.Load(source)
}
