package pgembed

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// errMemoryInUse is what a backend that outlives its killed server causes: PostgreSQL lets nobody start beside it.
var errMemoryInUse = errors.New("a process of an earlier server still runs")

// initialise makes the data folder under another name and renames it: a folder named data is always whole, however
// an earlier attempt ended.
func (s *Server) initialise(ctx context.Context) error {
	if err := s.removeAttempts(); err != nil {
		return err
	}
	fresh, err := os.MkdirTemp(s.folders.base, "data.new-")
	if err == nil {
		err = s.account.own(fresh)
	}
	if err != nil {
		return fmt.Errorf("make data folder: %w", err)
	}
	args := []string{"-D", fresh, "-U", superuser, "--auth-local=peer", "--auth-host=reject", "-E", "UTF8", "--locale=C",
		"--data-checksums", "--no-instructions"}
	if s.cfg.Settings["fsync"] == "off" {
		args = append(args, "--no-sync")
	}
	cmd := s.command("initdb", args...)
	if s.cfg.withoutDeathSignal {
		dieWithParent(cmd.SysProcAttr, 0)
	}
	if printed, err := output(ctx, cmd); err != nil {
		return fmt.Errorf("run initdb: %w: %s", err, lastLines(strings.NewReader(printed)))
	}
	if err := os.Rename(fresh, s.folders.data); err != nil {
		return fmt.Errorf("put data folder in place: %w", err)
	}
	return syncFolder(s.folders.base)
}

func (s *Server) removeAttempts() error {
	attempts, err := filepath.Glob(filepath.Join(s.folders.base, "data.new-*"))
	for _, dir := range attempts {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	if err != nil {
		return fmt.Errorf("remove an unfinished data folder: %w", err)
	}
	return nil
}

// syncFolder makes a rename in dir durable (fsync(2)).
func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err == nil {
		err = errors.Join(d.Sync(), d.Close())
	}
	if err != nil {
		return fmt.Errorf("sync data folder: %w", err)
	}
	return nil
}

// run starts the server, again and again while processes of a killed predecessor are on their way out.
func (s *Server) run(ctx context.Context) (version string, err error) {
	patience, cancel := context.WithTimeout(ctx, fastShutdownLimit)
	defer cancel()
	for err = s.runOnce(ctx); errors.Is(err, errMemoryInUse); err = s.runOnce(ctx) {
		select {
		case <-patience.Done():
			return "", err
		case <-time.After(50 * time.Millisecond):
		}
	}
	if err != nil {
		return "", err
	}
	if version, err = s.answer(ctx); err != nil {
		_ = s.process.stop(ctx)
	}
	return version, err
}

// runOnce starts the server and waits until it is ready.
func (s *Server) runOnce(ctx context.Context) error {
	messages, err := s.folders.openStartupLog()
	if err != nil {
		return err
	}
	defer messages.Close()
	cmd := s.command("postgres", s.arguments()...)
	cmd.Stdout, cmd.Stderr = messages, messages
	dieWithParent(cmd.SysProcAttr, syscall.SIGINT)
	if s.cfg.withoutDeathSignal {
		dieWithParent(cmd.SysProcAttr, 0)
	}
	if s.process, err = launch(cmd); err != nil {
		return fmt.Errorf("start PostgreSQL: %w", err)
	}
	if err := s.awaitReady(ctx); err != nil {
		if s.Err() == nil { // it runs, but ctx has ended
			_ = s.process.stop(ctx)
			return err
		}
		return s.explain(err, messages)
	}
	return nil
}

// awaitReady waits until postmaster.pid names our child and says ready. Merely connecting could greet a left-over
// server that is about to refuse our child the folder.
func (s *Server) awaitReady(ctx context.Context) error {
	tick := time.NewTicker(4 * time.Millisecond)
	defer tick.Stop()
	for {
		f, err := readPIDFile(s.folders.data)
		if err == nil && f.pid == s.PID() && f.status == "ready" {
			return nil
		}
		select {
		case <-s.process.exited:
			return fmt.Errorf("start PostgreSQL: %w", s.process.err)
		case <-ctx.Done():
			return fmt.Errorf("wait for PostgreSQL: %w", ctx.Err())
		case <-tick.C:
		}
	}
}

// explain adds what the server said: on its standard error, and once its log collector runs, in the log file.
func (s *Server) explain(err error, messages io.ReadSeeker) error {
	if _, seekErr := messages.Seek(0, io.SeekStart); seekErr != nil {
		return err
	}
	said := lastLines(messages)
	if strings.Contains(said, "shared memory block") {
		return fmt.Errorf("%w: %w: %s", err, errMemoryInUse, said)
	}
	if said == "" {
		said = "see " + s.folders.log
	}
	return fmt.Errorf("%w: %s", err, said)
}

// lastLines joins the last few lines for use in an error.
func lastLines(r io.Reader) string {
	var lines []string
	for scan := bufio.NewScanner(r); scan.Scan(); {
		if line := strings.TrimSpace(scan.Text()); line != "" {
			lines = append(lines, line)
		}
		lines = slices.Delete(lines, 0, max(0, len(lines)-4))
	}
	return strings.Join(lines, " / ")
}
