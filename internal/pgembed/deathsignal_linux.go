package pgembed

import "syscall"

// dieWithParent makes the kernel send the child sig when the thread that started it ends (prctl(2), PR_SET_PDEATHSIG).
func dieWithParent(attr *syscall.SysProcAttr, sig syscall.Signal) { attr.Pdeathsig = sig }
