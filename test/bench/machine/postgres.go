package machine

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"pawl/internal/pgembed"
)

// The size of a small real installation. Every server of pgembed has durable commits.
var settings = map[string]string{
	"shared_buffers": "512MB", "max_wal_size": "4GB", "min_wal_size": "1GB", "wal_compression": "off", "max_connections": "200",
}

// A server that has run for a while writes its log into old files; a new one must create each of them first, which
// takes a tenth of its processor time and holds up every commit meanwhile. So these files of 16 MB, 1 GB in all, are
// created in advance.
const walFiles = 64

// StartPostgres starts the server on which everything is measured, in folder, on a unix socket. Commits take
// commitLatency longer than the disk, for which it needs gcc. The caller stops the server.
func StartPostgres(ctx context.Context, folder string, extra map[string]string, commitLatency time.Duration) (*pgembed.Server, error) {
	if err := os.Chmod(folder, 0o711); err != nil { // the user of PostgreSQL must be able to enter it
		return nil, err
	}
	all := maps.Clone(settings)
	maps.Copy(all, extra)
	config := pgembed.Config{Dir: filepath.Join(folder, "postgres"), BinDir: os.Getenv("PAWL_PG_BIN"), Settings: all}
	if commitLatency > 0 {
		usual, err := pgembed.Look(ctx, config)
		if err == nil && usual.Dir == "" {
			err = fmt.Errorf("PostgreSQL is not installed: %s", usual.Install)
		}
		if err == nil {
			config.BinDir, err = slowPrograms(ctx, folder, usual.Dir, commitLatency)
		}
		if err != nil {
			return nil, fmt.Errorf("make a slow disk: %w", err)
		}
	}
	return pgembed.Start(ctx, config)
}

// Age creates the files of the write-ahead log that an older server would have.
func Age(ctx context.Context, c *pgembed.Server) error {
	conn, err := pgx.Connect(ctx, c.URL("postgres"))
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(ctx)
	for range walFiles {
		if _, err := conn.Exec(ctx, "SELECT pg_logical_emit_message(false, 'bench', ''), pg_switch_wal()"); err != nil {
			return fmt.Errorf("fill log: %w", err)
		}
	}
	if _, err := conn.Exec(ctx, "CHECKPOINT"); err != nil {
		return fmt.Errorf("write checkpoint: %w", err)
	}
	return nil
}

// A commit waits for fdatasync, which takes as long here as on a network disk.
const slowSync = `
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

int fdatasync(int fd) {
	static int (*next)(int);
	struct timespec wait = {0, NANOSECONDS};
	if (!next) next = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
	nanosleep(&wait, 0);
	return next(fd);
}
`

// slowPrograms creates a folder with the programs of PostgreSQL in bin, with a slower fdatasync in the server. It needs
// gcc. A script sets LD_PRELOAD, because pgembed does not pass on such variables.
func slowPrograms(ctx context.Context, folder, bin string, latency time.Duration) (string, error) {
	source, library, slow := filepath.Join(folder, "sync.c"), filepath.Join(folder, "sync.so"), filepath.Join(folder, "slow")
	if err := os.WriteFile(source, []byte(slowSync), 0o644); err != nil {
		return "", err
	}
	far := fmt.Sprintf("-DNANOSECONDS=%d", latency.Nanoseconds())
	said, err := exec.CommandContext(ctx, "gcc", far, "-shared", "-fPIC", "-o", library, source, "-ldl").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("compile: %w: %s", err, said)
	}
	if err := os.Mkdir(slow, 0o755); err != nil {
		return "", err
	}
	for _, program := range []string{"initdb", "pg_ctl", "psql", "pg_controldata"} {
		if err := os.Symlink(filepath.Join(bin, program), filepath.Join(slow, program)); err != nil {
			return "", err
		}
	}
	script := fmt.Sprintf("#!/bin/sh\nLD_PRELOAD='%s' exec '%s' \"$@\"\n", library, filepath.Join(bin, "postgres"))
	return slow, os.WriteFile(filepath.Join(slow, "postgres"), []byte(script), 0o755)
}

// Counters are counters of PostgreSQL since its start, of all databases.
type Counters struct {
	WAL         int64 // bytes
	Checkpoints int64 // begun
	Flushes     int64 // of the log
	Commits     int64 // of transactions that only read, too
}

// ReadCounters reads them. Those of other connections may lack what these did in the last second.
func ReadCounters(ctx context.Context, conn *pgx.Conn) (Counters, error) {
	checkpoints := "SELECT checkpoints_timed + checkpoints_req FROM pg_stat_bgwriter"
	version, _, _ := strings.Cut(conn.PgConn().ParameterStatus("server_version"), ".")
	if version >= "17" {
		checkpoints = "SELECT num_timed + num_requested FROM pg_stat_checkpointer"
	}
	flushes := "SELECT wal_sync FROM pg_stat_wal"
	if version >= "18" {
		flushes = "SELECT sum(fsyncs)::bigint FROM pg_stat_io WHERE object = 'wal'"
	}
	var c Counters
	row := conn.QueryRow(ctx, `SELECT (pg_current_wal_lsn() - '0/0')::bigint, (`+checkpoints+`), (`+flushes+`),
		(SELECT sum(xact_commit)::bigint FROM pg_stat_database)`)
	err := row.Scan(&c.WAL, &c.Checkpoints, &c.Flushes, &c.Commits)
	if err != nil {
		return c, fmt.Errorf("read counters: %w", err)
	}
	return c, nil
}
