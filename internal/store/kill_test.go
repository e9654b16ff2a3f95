package store

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// killDir makes the test binary the process that is killed.
const killDir = "STORE_TEST_KILL_DIR"

// What Commit has returned for is there after a kill -9, and the folder is free.
func TestCommit_SurvivesKill(t *testing.T) {
	if dir := os.Getenv(killDir); dir != "" {
		s, err := Open(Options{Dir: dir, Archive: true})
		if err != nil {
			t.Fatal(err)
		}
		for i := 1; ; i++ {
			fmt.Println("committed", commit(t, s, "a", epoch, filed("a", int64(i-1), i, fmt.Sprint("entries ", i), result(t, "1", fmt.Sprint("text ", i)))))
		}
	}
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestCommit_SurvivesKill$")
	cmd.Env = append(os.Environ(), killDir+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	last := int64(0)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if line, ok := strings.CutPrefix(lines.Text(), "committed "); ok {
			if _, err := fmt.Sscan(line, &last); err != nil {
				t.Fatal(err)
			}
		}
		if last == 20 {
			if _, ok := Running(dir); !ok {
				t.Error("the other process is not seen")
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = cmd.Wait() // it was killed
	if last < 20 {
		t.Fatalf("%d commits", last)
	}
	s := openStore(t, Options{Dir: dir, Archive: true, Report: func(e string) { t.Error(e) }})
	for id := int64(1); id <= last; id++ {
		d, err := s.Compaction(id)
		if err != nil || string(d.Entries) != fmt.Sprint("entries ", id) || len(d.Originals) != 1 {
			t.Errorf("%d of %d: %+v, %v", id, last, d, err)
		}
	}
	check(t, s)
}
