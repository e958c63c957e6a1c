package pgembed

import (
	"context"
	"fmt"
	"path/filepath"
)

// Choice is the PostgreSQL that Start would run.
type Choice struct {
	Dir        string // of postgres and initdb; empty if there is none yet, and npm would fetch it
	Major      int
	Install    string // the command that installs one, where there is none
	PassedOver []PassedOver
}

// PassedOver is a PostgreSQL that is not run.
type PassedOver struct {
	Dir    string
	Reason error
}

// Look finds out what Start would run on cfg.Dir, and changes nothing. Its errors are those of Start, as far as they can be
// told without starting anything. PassedOver is filled in with an error, too.
func Look(ctx context.Context, cfg Config) (Choice, error) {
	cfg.Log = nil
	if err := cfg.complete(); err != nil {
		return Choice{}, err
	}
	base, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return Choice{}, fmt.Errorf("choose data folder: %w", err)
	}
	s := &Server{cfg: cfg, looking: true, folders: folders{base: base, data: filepath.Join(base, "data")}}
	if s.account, err = s.chooseAccount(ctx); err != nil {
		return Choice{}, err
	}
	major, err := s.folders.major()
	if err != nil {
		return Choice{}, err
	}
	bin, err := s.findBinaries(ctx, major)
	return Choice{Dir: bin.dir, Major: bin.major, Install: installCommand(major), PassedOver: s.passedOver}, err
}
