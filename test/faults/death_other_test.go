//go:build !linux

package faults

import "syscall"

// withUs has no equivalent here: a child outlives a test binary that is killed.
func withUs() *syscall.SysProcAttr { return nil }
