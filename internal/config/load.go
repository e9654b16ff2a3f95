package config

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"unicode"

	"github.com/go-viper/mapstructure/v2"
	"github.com/spf13/viper"
)

// Source is everything that [Load] looks at.
type Source struct {
	// Path is the file's name in messages.
	Path string
	// File is the content of the file, nil where there is none.
	File []byte
	// Env is the environment as os.Environ gives it. A variable that is set but empty counts as not set,
	// because compose files and unit files pass optional settings on that way.
	Env []string
	// Flags are the flags that the command line really has, not their defaults.
	Flags []Flag
}

// Flag is a key set on the command line.
type Flag struct {
	Name  string // as the user typed it, with its hyphens: --listen
	Key   string // the key it sets: listen
	Value string
}

// Open reads the file at path, which is the value of --config, and returns it as a [Source] with env and
// flags. Where path is empty, COMPACTPROXY_CONFIG in env names the file; where that is empty too there is no
// file, and none is needed. A file that is named but cannot be read is a [Problems].
func Open(path string, env []string, flags []Flag) (Source, error) {
	source := Source{Path: path, Env: env, Flags: flags}
	setting := "--config"
	if path == "" {
		source.Path, setting = lookupEnv(env, EnvFile), EnvFile
	}
	if source.Path == "" {
		return source, nil
	}
	content, err := os.ReadFile(source.Path)
	if err != nil {
		problem := &Problem{Key: setting, Text: "cannot read the file", Got: source.Path, Fix: "check its path and permissions"}
		if strings.ContainsFunc(source.Path, func(r rune) bool { return !unicode.IsPrint(r) }) {
			problem.Got = strconv.Quote(source.Path)
		}
		var pathError *fs.PathError
		switch {
		case errors.Is(err, fs.ErrNotExist):
			problem.Text, problem.Fix = "no such file", "check the path, or leave it out: no file is needed"
		case errors.As(err, &pathError):
			problem.Text += ": " + pathError.Err.Error()
		}
		return Source{}, Problems{problem}
	}
	if content == nil {
		content = []byte{}
	}
	source.File = content
	return source, nil
}

// Load merges the source over [Default] and checks the result: a flag beats the environment, which beats
// the file. The error is a [Problems] with everything that is wrong, and then the Config is of no use.
func Load(source Source) (Config, error) {
	v := viper.New()
	defaults := Default()
	each(schema(), reflect.ValueOf(defaults), func(f *field, value reflect.Value) {
		v.SetDefault(f.key, value.Interface())
	})

	file := &fileReader{origins: map[string]origin{}}
	if source.File != nil {
		path := source.Path
		if path == "" {
			path = "the configuration"
		}
		file = readYAML(path, source.File)
	}
	if err := v.MergeConfigMap(nest(file.values)); err != nil {
		return Config{}, fmt.Errorf("merge the configuration: %w", err)
	}
	problems, origins := file.problems, file.origins

	// Set makes the last call win, so the order of these two loops is the precedence.
	set := func(f *field, text, from string) {
		maps.DeleteFunc(origins, func(key string, _ origin) bool { return strings.HasPrefix(key, f.key+"[") })
		origins[f.key] = origin{text: from}
		value, problem := parseText(f, text)
		if problem != nil {
			problem.Key, problem.Origin = f.key, from
			problems = append(problems, problem)
			return
		}
		v.Set(f.key, value.Interface())
	}
	known := map[string]bool{EnvFile: true}
	each(schema(), reflect.ValueOf(defaults), func(f *field, _ reflect.Value) {
		name := EnvName(f.key)
		known[name] = true
		if text := lookupEnv(source.Env, name); text != "" {
			set(f, text, "from "+name)
		}
	})
	problems = append(problems, misspelled(source.Env, known)...)
	for _, flag := range source.Flags {
		f := leaf(schema(), flag.Key)
		if f == nil {
			return Config{}, fmt.Errorf("flag %s sets %s, which is not a key", flag.Name, flag.Key)
		}
		set(f, flag.Value, "from "+flag.Name)
	}

	cfg := defaults
	exact := func(c *mapstructure.DecoderConfig) {
		c.WeaklyTypedInput = false
		c.DecodeHook = nil
	}
	if err := v.UnmarshalExact(&cfg, exact); err != nil {
		return Config{}, fmt.Errorf("merge the configuration: %w", err)
	}

	reading := problems[:len(problems):len(problems)]
	for _, problem := range cfg.problems() {
		if !covered(problem.Key, reading) {
			problem.from(originOf(problem.Key, origins))
			problems = append(problems, problem)
		}
	}
	if err := problems.err(); err != nil {
		return Config{}, err
	}
	cfg.Upstream.URL, _ = normalise(cfg.Upstream.URL)
	return cfg, nil
}

// nest turns dotted keys into maps in maps, which is how viper wants a file.
func nest(values map[string]any) map[string]any {
	root := map[string]any{}
	for key, value := range values {
		section := root
		path := strings.Split(key, ".")
		for _, name := range path[:len(path)-1] {
			below, ok := section[name].(map[string]any)
			if !ok {
				below = map[string]any{}
				section[name] = below
			}
			section = below
		}
		section[path[len(path)-1]] = value
	}
	return root
}

// leaf finds the field with that dotted key that holds a value.
func leaf(fields []*field, key string) *field {
	for _, f := range fields {
		if f.isSection() {
			if below := leaf(f.fields, key); below != nil {
				return below
			}
		} else if f.key == key {
			return f
		}
	}
	return nil
}

func lookupEnv(env []string, name string) string {
	value := ""
	for _, variable := range env {
		if n, v, ok := strings.Cut(variable, "="); ok && n == name {
			value = v
		}
	}
	return value
}

// serviceLink matches what Kubernetes and Docker put into a container's environment for a service of the
// name compactproxy or compactproxy-something.
var serviceLink = regexp.MustCompile(`_(SERVICE_(HOST|PORT.*)|PORT(_[0-9]+_.*)?|NAME|ENV_.*)$`)

// misspelled finds the variables with our prefix that set no key but look like one that does. Others may be meant
// for other programs: a name of their own is not an error.
func misspelled(env []string, known map[string]bool) Problems {
	var problems Problems
	names := []string{strings.TrimPrefix(EnvFile, EnvPrefix)}
	for _, key := range keys() {
		if key.Env != "" {
			names = append(names, strings.TrimPrefix(key.Env, EnvPrefix))
		}
	}
	for _, variable := range env {
		name, _, _ := strings.Cut(variable, "=")
		short, ours := strings.CutPrefix(name, EnvPrefix)
		if !ours || known[name] || serviceLink.MatchString(name) {
			continue
		}
		if near := Nearest(short, names); near != "" {
			problems = append(problems, &Problem{
				Key:  plain(name),
				Text: "no such variable",
				Fix:  "did you mean " + EnvPrefix + near + "?",
			})
		}
	}
	return problems
}

// covered says whether a value already has a problem from reading it, so that checking it would only repeat
// that: the same key, or the same entry of a list.
func covered(key string, problems Problems) bool {
	for _, p := range problems {
		if entryOf(p.Key) == entryOf(key) {
			return true
		}
	}
	return false
}

// entryOf cuts a key within an entry of a list to the entry: models[1] for models[1].name.
func entryOf(key string) string {
	if i := strings.IndexByte(key, ']'); i >= 0 {
		return key[:i+1]
	}
	return key
}

// originOf finds where the value of a key came from: its own place, or that of the entry or list it is in.
func originOf(key string, origins map[string]origin) origin {
	for {
		if o, ok := origins[key]; ok {
			return o
		}
		cut := strings.LastIndexAny(key, ".[")
		if cut < 0 {
			return origin{}
		}
		key = key[:cut]
	}
}
