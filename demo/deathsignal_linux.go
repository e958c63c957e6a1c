package demo

import "syscall"

// dieWithParent makes the kernel kill the child when the thread that started it ends (prctl(2), PR_SET_PDEATHSIG).
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
