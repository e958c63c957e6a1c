// Package doctor looks at what a service finds where it runs: PostgreSQL and its settings, roles, clock, schema. It says
// what is wrong and what to do about it, and changes nothing.
package doctor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"pawl/internal/pgembed"
)

// State is how a finding is.
type State string

// A warning is something that a service runs with, though somebody may be sorry for it later.
const (
	Good    State = "ok"
	Warning State = "warning"
	Wrong   State = "wrong"
)

// Finding is what was found where one looked.
type Finding struct {
	Subject string `json:"subject"` // one word, such as durability
	State   State  `json:"state"`
	Found   string `json:"found"`
	Advice  string `json:"advice,omitempty"` // what to do; empty if nothing has to be done
}

// Report is all findings, in the order in which they were made. The zero value is empty.
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

// Add appends findings.
func (r *Report) Add(findings ...Finding) { r.Findings = append(r.Findings, findings...) }

// summarize is findings, or if there is none the one that all is well.
func summarize(subject, well string, findings []Finding) []Finding {
	if len(findings) == 0 {
		return []Finding{good(subject, "%s", well)}
	}
	return findings
}

func good(subject, format string, args ...any) Finding {
	return Finding{Subject: subject, State: Good, Found: fmt.Sprintf(format, args...)}
}

// Programs looks for the PostgreSQL that the service would start itself, and for those that it would pass over.
func Programs(ctx context.Context, config pgembed.Config) (findings []Finding) {
	choice, err := pgembed.Look(ctx, config)
	for _, other := range choice.PassedOver {
		findings = append(findings, Finding{"postgres", Warning, fmt.Sprintf("%s is not run: %s", other.Dir, other.Reason), "change whose it is, or who may write there"})
	}
	switch {
	case err != nil:
		findings = append(findings, Finding{"postgres", Wrong, err.Error(), ""}) // it says what to do
	case choice.Dir == "":
		findings = append(findings, Finding{"postgres", Warning, "there is none on this machine; pawl serve fetches one with npm", "or install one: " + choice.Install})
	default:
		findings = append(findings, good("postgres", "version %d in %s", choice.Major, choice.Dir))
	}
	return findings
}

// Free space below which a database is in danger, and close to it.
const (
	diskLeast = 256 << 20
	diskTight = 2 << 30
)

// Disk looks at how much space is left where the service's own PostgreSQL keeps its data, or would.
func Disk(dir string) Finding {
	for _, err := os.Stat(dir); err != nil && dir != filepath.Dir(dir); _, err = os.Stat(dir) {
		dir = filepath.Dir(dir)
	}
	var disk syscall.Statfs_t
	if err := syscall.Statfs(dir, &disk); err != nil {
		return Finding{"disk", Warning, fmt.Sprintf("look at the disk of %s: %v", dir, err), ""}
	}
	free := int64(disk.Bavail) * int64(disk.Bsize) //nolint:unconvert // on macOS it is of another type
	found := fmt.Sprintf("%s free in %s", bytes(free), dir)
	const advice = "make room: PostgreSQL stops when the disk is full"
	switch {
	case free < diskLeast:
		return Finding{"disk", Wrong, found, advice}
	case free < diskTight:
		return Finding{"disk", Warning, found, advice}
	default:
		return good("disk", "%s", found)
	}
}
