// Package recording holds recorded agent sessions and plays them.
//
// # Sessions
//
// A session is the history of an agent at work, in the shape of Chat
// Completions: system, user, assistant and tool messages, and the tools that
// were offered. The sessions in this package are our own. The program in the
// folder record made them by really carrying out the tool calls of a written
// plan; see there how to make them again.
//
// # Playing
//
// An agent sends its whole history each time. [Session.Request] gives the body
// that it would send for one of its turns, and [Session.Answer] what the model
// said then, so that a simulated server can say it again. The bytes of a
// message are the same in every request: the messages of turn n+1 start with
// those of turn n, byte for byte.
//
// # Complexity and concurrency
//
// Parsing is linear in the file and done once; a request costs one copy of the
// bytes it holds. A Session never changes after Parse, so that any number of
// goroutines may play it.
package recording

import (
	"embed"
	"fmt"
	"path"
	"strings"
)

//go:generate go run ./record -out sessions

//go:embed sessions/*.json
var files embed.FS

// Sessions returns the names of the recorded sessions, sorted.
func Sessions() []string {
	entries, err := files.ReadDir("sessions")
	if err != nil {
		panic("BUG: recorded sessions are not embedded: " + err.Error())
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), path.Ext(e.Name())))
	}
	return names
}

// Load returns a recorded session by its name.
func Load(name string) (*Session, error) {
	data, err := files.ReadFile("sessions/" + name + ".json")
	if err != nil {
		return nil, fmt.Errorf("no recorded session %q, there are: %s", name, strings.Join(Sessions(), ", "))
	}
	s, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("recorded session %q: %w", name, err)
	}
	return s, nil
}
