package llamatest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// script runs the repository's script with an environment of its own.
func script(t *testing.T, env []string, args ...string) (stdout, stderr string, cmd *exec.Cmd) {
	t.Helper()
	path, err := filepath.Abs("../../scripts/llama-server")
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command(path, args...)
	cmd.Env = append(os.Environ(), env...)
	var out, complaints strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &complaints
	_ = cmd.Run() // the exit code is in cmd.ProcessState
	return out.String(), complaints.String(), cmd
}

func executable(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestScript_UsesTheServerItIsGiven(t *testing.T) {
	const echo = "#!/bin/sh\necho $$\nprintf '%s\\n' \"$@\"\n"
	model := executable(t, "model.gguf", "")
	for name, env := range map[string]func(server string) string{
		"LLAMA_SERVER": func(server string) string { return "LLAMA_SERVER=" + server },
		"PATH":         func(server string) string { return "PATH=" + filepath.Dir(server) + ":" + os.Getenv("PATH") },
	} {
		t.Run(name, func(t *testing.T) {
			server := executable(t, "llama-server", echo)
			// An unusable folder: neither command may need it.
			vars := []string{"LLAMA_SERVER=", "LLAMA_ROOT=/nonexistent/folder", env(server)}
			if out, stderr, cmd := script(t, vars, "install"); cmd.ProcessState.ExitCode() != 0 {
				t.Errorf("install: %s%s", out, stderr)
			}
			if out, _, _ := script(t, vars, "which"); strings.TrimSpace(out) != server {
				t.Errorf("which says %q, want %s", out, server)
			}
			out, stderr, cmd := script(t, vars, "run", "8123", model, "-c", "512", "--alias", "two words")
			// The server is the process that was started, so that ending the one
			// ends the other.
			want := strings.Join([]string{
				fmt.Sprint(cmd.Process.Pid), "-m", model, "--host", "127.0.0.1", "--port", "8123", "--no-ui",
				"-c", "512", "--alias", "two words", "",
			}, "\n")
			if diff := cmp.Diff(want, out); diff != "" {
				t.Errorf("server's arguments (-want +got):\n%s%s", diff, stderr)
			}
		})
	}
}

func TestScript_SaysWhatIsWrong(t *testing.T) {
	none := []string{"LLAMA_SERVER=", "PATH=/usr/bin:/bin:/usr/sbin:/sbin", "LLAMA_ROOT=" + t.TempDir()}
	if _, err := exec.LookPath("/usr/bin/llama-server"); err == nil {
		t.Skip("a llama-server in /usr/bin cannot be hidden from the script")
	}
	model := executable(t, "model.gguf", "")
	for _, c := range []struct {
		name string
		env  []string
		args []string
		code int
		says string
	}{
		{"no command", none, nil, 2, "scripts/llama-server run PORT MODEL.gguf"},
		{"unknown command", none, []string{"start"}, 2, "scripts/llama-server run PORT MODEL.gguf"},
		{"run without a model", none, []string{"run", "80"}, 2, "scripts/llama-server run PORT MODEL.gguf"},
		{"model that does not exist", none, []string{"run", "80", "/no/model"}, 1, "no model /no/model"},
		{"no server to run", none, []string{"run", "80", model}, 1, "scripts/llama-server install"},
		{"no server to name", none, []string{"which"}, 1, "scripts/llama-server install"},
		{"LLAMA_SERVER that does not exist", append(none, "LLAMA_SERVER=/no/server"), []string{"which"}, 1, "LLAMA_SERVER=/no/server is not an executable file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, stderr, cmd := script(t, c.env, c.args...)
			if code := cmd.ProcessState.ExitCode(); code != c.code || !strings.Contains(stderr, c.says) || out != "" {
				t.Errorf("exit code %d, stdout %q, stderr %q; want %d and %q", code, out, stderr, c.code, c.says)
			}
		})
	}
}
