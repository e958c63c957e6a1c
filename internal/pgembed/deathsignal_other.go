//go:build !linux

package pgembed

import "syscall"

// dieWithParent does nothing: only Linux tells a child of its parent's death. The next Start stops what is left over.
func dieWithParent(*syscall.SysProcAttr, syscall.Signal) {}
