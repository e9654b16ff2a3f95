//go:build unix && !linux

package llamatest

import "syscall"

// ownGroup puts the server into a process group of its own, so that all of it
// can be signalled. Only Linux can also tie its life to that of the test
// process; elsewhere a test that runs into its time limit leaves it behind.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
