//go:build !linux

package campaign

import "syscall"

// endsWithUs has no equivalent here: children outlive a test binary that is killed.
func endsWithUs(attributes *syscall.SysProcAttr) *syscall.SysProcAttr { return attributes }
