//go:build !linux

package demo

import "syscall"

// dieWithParent does nothing: only Linux tells a child of its parent's death.
func dieWithParent(*syscall.SysProcAttr) {}
