package main

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

//go:embed all:testdata
var testdata embed.FS

// plan is a screenplay: who says what, and which tools are called. In its file
// a line that starts with @ is a direction, the lines after it belong to it:
//
//	@note TEXT          what the session is good for
//	@project NAME       the folder below testdata that the tools work on
//	@parts              texts are sent as arrays of text parts
//	@ascii              every other message is written with \u escapes only
//	@reuse-ids          every turn's calls are call_0, call_1, ...
//	@empty null|string|absent   the content of a turn that only calls tools
//	@shell-limit N      bytes after which the shell tool cuts its output
//	@system, @user      texts
//	@assistant          a turn, with its text if there is any
//	@think              its reasoning
//	@read PATH [OFFSET LIMIT]
//	@sh COMMAND         or the command in the following lines
//	@write PATH         with the content
//	@edit PATH          with the old text, then @with and the new text
//	@todo               lines that start with [ ], [>] or [x]
//	@fails              the call before this is meant to fail
//	@# TEXT             a remark
//
// A call that fails where @fails is missing, or the other way round, stops the
// recording: the story would not fit the results.
type plan struct {
	note, project, system string
	parts, ascii          bool
	reuseIDs              bool
	empty                 string
	shellLimit            int
	steps                 []step
}

// step is a message of the user or a turn of the assistant.
type step struct {
	user      bool
	text      string
	reasoning string
	calls     []call
}

// call is a tool call as the plan has it.
type call struct {
	line  int
	tool  string
	args  []arg
	fails bool
}

// arg is an argument; value is a string, an int or a []todo.
type arg struct {
	name  string
	value any
}

// todo is an item of the agent's list.
type todo struct {
	text, state string
}

func (c call) str(name string) string {
	for _, a := range c.args {
		if a.name == name {
			s, _ := a.value.(string)
			return s
		}
	}
	return ""
}

func (c call) num(name string) int {
	for _, a := range c.args {
		if a.name == name {
			n, _ := a.value.(int)
			return n
		}
	}
	return 0
}

// planNames lists the screenplays.
func planNames() ([]string, error) {
	entries, err := fs.ReadDir(testdata, "testdata/plans")
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), path.Ext(e.Name())))
	}
	slices.Sort(names)
	return names, nil
}

// loadPlan reads a screenplay by its name.
func loadPlan(name string) (*plan, error) {
	text, err := fs.ReadFile(testdata, "testdata/plans/"+name+".plan")
	if err != nil {
		return nil, err
	}
	p, err := parsePlan(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s.plan: %w", name, err)
	}
	return p, nil
}

// parsePlan reads a screenplay.
func parsePlan(text string) (*plan, error) {
	p := &plan{empty: "null", shellLimit: 30_000}
	for _, d := range directions(text) {
		if err := p.apply(d); err != nil {
			return nil, fmt.Errorf("line %d: @%s: %w", d.line, d.word, err)
		}
	}
	return p, nil
}

// direction is a line with @ and what follows it.
type direction struct {
	line       int
	word, rest string
	body       string
}

// directions splits a screenplay. Blank lines at the end of a body go.
func directions(text string) []direction {
	var list []direction
	for i, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(line, "@") {
			word, rest, _ := strings.Cut(line[1:], " ")
			list = append(list, direction{line: i + 1, word: word, rest: strings.TrimSpace(rest)})
		} else if len(list) > 0 {
			list[len(list)-1].body += line + "\n"
		}
	}
	for i := range list {
		list[i].body = strings.TrimRight(list[i].body, "\n")
	}
	return list
}

func (p *plan) apply(d direction) error {
	switch d.word {
	case "#":
		return nil
	case "note":
		p.note = d.rest
		return nil
	case "project":
		p.project = d.rest
		return nil
	case "parts":
		p.parts = true
		return nil
	case "ascii":
		p.ascii = true
		return nil
	case "reuse-ids":
		p.reuseIDs = true
		return nil
	case "empty":
		p.empty = d.rest
		return nil
	case "shell-limit":
		n, err := strconv.Atoi(d.rest)
		p.shellLimit = n
		return err
	case "system":
		p.system = d.body
		return nil
	case "user":
		p.steps = append(p.steps, step{user: true, text: d.body})
		return nil
	case "assistant":
		p.steps = append(p.steps, step{text: d.body})
		return nil
	}
	if len(p.steps) == 0 || p.steps[len(p.steps)-1].user {
		return fmt.Errorf("not within a turn of the assistant")
	}
	turn := &p.steps[len(p.steps)-1]
	last := func() (*call, error) {
		if len(turn.calls) == 0 {
			return nil, fmt.Errorf("no call before it")
		}
		return &turn.calls[len(turn.calls)-1], nil
	}
	switch d.word {
	case "think":
		turn.reasoning = d.body
	case "fails":
		c, err := last()
		if err != nil {
			return err
		}
		c.fails = true
	case "with":
		c, err := last()
		if err != nil {
			return err
		}
		c.args = append(c.args, arg{"new", d.body})
	default:
		c, err := parseCall(d)
		if err != nil {
			return err
		}
		turn.calls = append(turn.calls, c)
	}
	return nil
}

// parseCall reads a direction that stands for a tool call.
func parseCall(d direction) (call, error) {
	c := call{line: d.line}
	switch d.word {
	case "read":
		c.tool = "read_file"
		fields := strings.Fields(d.rest)
		if len(fields) != 1 && len(fields) != 3 {
			return c, fmt.Errorf("want PATH or PATH OFFSET LIMIT")
		}
		c.args = []arg{{"path", fields[0]}}
		for i, name := range []string{"offset", "limit"} {
			if len(fields) == 1 {
				break
			}
			n, err := strconv.Atoi(fields[i+1])
			if err != nil {
				return c, err
			}
			c.args = append(c.args, arg{name, n})
		}
	case "sh":
		c.tool = "shell"
		c.args = []arg{{"command", strings.TrimSpace(d.rest + "\n" + d.body)}}
	case "write":
		c.tool = "write_file"
		c.args = []arg{{"path", d.rest}, {"content", d.body + "\n"}}
	case "edit":
		c.tool = "edit_file"
		c.args = []arg{{"path", d.rest}, {"old", d.body}}
	case "todo":
		c.tool = "todo_write"
		var items []todo
		for line := range strings.SplitSeq(d.body, "\n") {
			state, ok := map[string]string{"[ ] ": "pending", "[>] ": "in_progress", "[x] ": "completed"}[line[:min(4, len(line))]]
			if !ok {
				return c, fmt.Errorf("not an item: %q", line)
			}
			items = append(items, todo{line[4:], state})
		}
		c.args = []arg{{"items", items}}
	default:
		return c, fmt.Errorf("no such direction")
	}
	return c, nil
}
