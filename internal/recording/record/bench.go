package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"
)

// bench is the place the tools work at: a temporary home with a copy of a
// project in it, as /home/dev would be on a developer's machine.
type bench struct {
	home    string // in the file system
	project string // in the file system
	shown   string // as the session shows it
	limit   int    // bytes of shell output
	env     []string
}

// shownHome is what the temporary home is called in recordings.
const shownHome = "/home/dev"

// newBench copies a project into a new temporary home.
func newBench(project string) (*bench, error) {
	home, err := os.MkdirTemp("", "record-")
	if err != nil {
		return nil, err
	}
	if real, err := filepath.EvalSymlinks(home); err == nil {
		home = real
	}
	b := &bench{home: home, project: filepath.Join(home, project), shown: shownHome + "/" + project}
	if err := b.fill(project); err != nil {
		b.close()
		return nil, err
	}
	b.env = []string{
		"HOME=" + home,
		"PATH=" + os.Getenv("PATH"),
		"LC_ALL=C.UTF-8",
		"TZ=UTC",
		"TERM=dumb",
		"NO_COLOR=1",
		"GOCACHE=" + buildCache(),
		"GOFLAGS=-count=1 -p=1",
		"GOPROXY=off",
		"GOTOOLCHAIN=local",
		"GOTELEMETRY=off",
		"GOWORK=off",
	}
	return b, nil
}

// buildCache is the user's own, so that a recording does not have to compile
// the standard library.
func buildCache() string {
	if dir := os.Getenv("GOCACHE"); dir != "" {
		return dir
	}
	if dir, err := os.UserCacheDir(); err == nil {
		return filepath.Join(dir, "go-build")
	}
	return filepath.Join(os.TempDir(), "go-build")
}

// fill writes the files of a project. Names that would mean something to the
// go command or to make in this repository end in .txt here.
func (b *bench) fill(project string) error {
	files := generated(project)
	root := "testdata/" + project
	err := fs.WalkDir(testdata, root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := fs.ReadFile(testdata, name)
		if err != nil {
			return err
		}
		name = strings.TrimPrefix(name, root+"/")
		if name == "go.mod.txt" || name == "Makefile.txt" {
			name = strings.TrimSuffix(name, ".txt")
		}
		return b.put(name, string(data))
	})
	if errors.Is(err, fs.ErrNotExist) && files != nil {
		err = nil // a project of generated files only
	}
	if err != nil {
		return err
	}
	for name, text := range files {
		if err := b.put(name, text); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) put(name, text string) error {
	path := filepath.Join(b.project, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

// close removes everything.
func (b *bench) close() { _ = os.RemoveAll(b.home) }

// path resolves a path as the session writes it.
func (b *bench) path(name string) (string, error) {
	if rest, ok := strings.CutPrefix(name, b.shown+"/"); ok {
		name = rest
	}
	if !filepath.IsLocal(name) {
		return "", fmt.Errorf("%s is outside the project", name)
	}
	return filepath.Join(b.project, name), nil
}

// call carries out a tool call. What the tool has to say is its result, good
// or bad; an error means that the recording cannot go on.
func (b *bench) call(ctx context.Context, c call) (string, error) {
	var result string
	var err error
	switch c.tool {
	case "read_file":
		result, err = b.read(c)
	case "write_file":
		result, err = b.write(c)
	case "edit_file":
		result, err = b.edit(c)
	case "todo_write":
		result = todoResult(c)
	case "shell":
		result, err = b.shell(ctx, c.str("command"))
		if err != nil {
			return "", err
		}
	default:
		return "", fmt.Errorf("no such tool")
	}
	if err != nil {
		result = "Error: " + err.Error()
	}
	return b.mask(result), nil
}

var exitStatus = regexp.MustCompile(`\n\nCommand exited with code \d+$`)

// failed says whether a result reports a failure, in our agent's own wording.
func failed(result string) bool {
	return strings.HasPrefix(result, "Error: ") || exitStatus.MatchString(result)
}

// readLimit is the number of lines that read_file shows where no limit is set.
const readLimit = 400

func (b *bench) read(c call) (string, error) {
	path, err := b.path(c.str("path"))
	if err != nil {
		return "", err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	lines := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	offset, limit := max(1, c.num("offset")), c.num("limit")
	if limit == 0 {
		limit = readLimit
	}
	if offset > len(lines) {
		return "", fmt.Errorf("offset %d is behind the end, the file has %d lines", offset, len(lines))
	}
	end := min(len(lines), offset-1+limit)
	var out strings.Builder
	for i, line := range lines[offset-1 : end] {
		fmt.Fprintf(&out, "%4d  %s\n", offset+i, line)
	}
	if offset > 1 || end < len(lines) {
		fmt.Fprintf(&out, "(lines %d to %d of %d)\n", offset, end, len(lines))
	}
	return strings.TrimSuffix(out.String(), "\n"), nil
}

func (b *bench) write(c call) (string, error) {
	path, err := b.path(c.str("path"))
	if err != nil {
		return "", err
	}
	content := c.str("content")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		return "", err
	}
	return fmt.Sprintf("Wrote %d lines (%d bytes) to %s", strings.Count(content, "\n"), len(content), c.str("path")), nil
}

func (b *bench) edit(c call) (string, error) {
	path, err := b.path(c.str("path"))
	if err != nil {
		return "", err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	before, replacement := c.str("old"), c.str("new")
	switch n := strings.Count(string(data), before); {
	case before == "":
		return "", errors.New("the old text is empty")
	case n == 0:
		return "", fmt.Errorf("the old text does not occur in %s; read the file again and copy it exactly", c.str("path"))
	case n > 1:
		return "", fmt.Errorf("the old text occurs %d times in %s; add lines around it until it is unique", n, c.str("path"))
	}
	at := 1 + strings.Count(string(data[:bytes.Index(data, []byte(before))]), "\n")
	changed := strings.Replace(string(data), before, replacement, 1)
	if err := os.WriteFile(path, []byte(changed), 0o644); err != nil {
		return "", err
	}
	return fmt.Sprintf("Edited %s at line %d: %d lines became %d", c.str("path"), at, strings.Count(before, "\n")+1, strings.Count(replacement, "\n")+1), nil
}

func todoResult(c call) string {
	count := map[string]int{}
	for _, a := range c.args {
		items, _ := a.value.([]todo)
		for _, item := range items {
			count[item.state]++
		}
	}
	return fmt.Sprintf("Todo list saved: %d completed, %d in progress, %d pending", count["completed"], count["in_progress"], count["pending"])
}

// shell runs a command in the project, both outputs together.
func (b *bench) shell(ctx context.Context, command string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", strings.ReplaceAll(command, b.shown, b.project))
	cmd.Dir = b.project
	cmd.Env = append(b.env, "PWD="+b.project)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	text := strings.TrimRight(out.String(), "\n")
	if b.limit > 0 && len(text) > b.limit {
		// the end says more than the beginning
		cut := len(text) - b.limit
		cut += strings.IndexByte(text[cut:], '\n') + 1
		text = fmt.Sprintf("(the first %d of %d bytes are left out)\n%s", cut, len(text), text[cut:])
	}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return fmt.Sprintf("%s\n\nCommand exited with code %d", text, exit.ExitCode()), nil
	case err != nil:
		return "", err
	case text == "":
		return "(no output)", nil
	}
	return text, nil
}

// What differs from run to run or from machine to machine.
var (
	durations = regexp.MustCompile(`\b\d+\.\d+s\b`)
	addresses = regexp.MustCompile(`\b0x[0-9a-f]{6,16}\b`)
	offsets   = regexp.MustCompile(`\+0x[0-9a-f]+\b`)
	buildDirs = regexp.MustCompile(`/tmp/go-build\d+`)
	goLines   = regexp.MustCompile(`(/usr/local/go/src/[\w./-]+\.go):\d+`)
)

// mask takes this machine and this run out of a result.
func (b *bench) mask(s string) string {
	s = strings.ReplaceAll(s, b.home, shownHome)
	//lint:ignore SA1019 the path in the output is the one of the go command that runs us
	s = strings.ReplaceAll(s, runtime.GOROOT(), "/usr/local/go")
	s = durations.ReplaceAllString(s, "0.00s")
	s = addresses.ReplaceAllString(s, "0xc000012180")
	s = offsets.ReplaceAllString(s, "+0x1d4")
	s = buildDirs.ReplaceAllString(s, "/tmp/go-build1")
	return goLines.ReplaceAllString(s, "$1:100")
}
