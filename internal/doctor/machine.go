package doctor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"pawl/internal/pgembed"
)

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
