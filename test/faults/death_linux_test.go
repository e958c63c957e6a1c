package faults

import "syscall"

// withUs makes a child end with this process, however this process ends.
func withUs() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
