package campaign

import "syscall"

// endsWithUs makes the kernel end a child when this process ends, however it ends.
func endsWithUs(attributes *syscall.SysProcAttr) *syscall.SysProcAttr {
	attributes.Pdeathsig = syscall.SIGKILL
	return attributes
}
