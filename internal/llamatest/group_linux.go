package llamatest

import "syscall"

// ownGroup puts the server into a process group of its own, so that all of it
// can be signalled. The kernel kills it when the test process dies without
// cleaning up, as it does when go test runs into its time limit.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
