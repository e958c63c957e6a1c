package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"github.com/jackc/pgx/v5"

	"pawl/internal/pgembed"
)

// The size of a small real installation. What makes an answered order durable is on in every server of pgembed.
var settings = map[string]string{
	"shared_buffers": "512MB", "max_wal_size": "4GB", "min_wal_size": "1GB", "wal_compression": "off", "max_connections": "200",
}

// A server that has run for a while writes its log into old files; a new one must
// create each of them first, which takes a tenth of its processor time and holds up
// every commit meanwhile. These files, of 16 MB, make the old ones: 1 GB.
const walFiles = 64

// startCluster makes and starts the private PostgreSQL that all targets of a run are measured on, in folder, reachable by
// a unix socket only. Whoever gets it stops it.
func startCluster(ctx context.Context, folder string, extra map[string]string) (*pgembed.Server, error) {
	if err := os.Chmod(folder, 0o711); err != nil { // the user of PostgreSQL must get through
		return nil, err
	}
	all := maps.Clone(settings)
	maps.Copy(all, extra)
	return pgembed.Start(ctx, pgembed.Config{Dir: filepath.Join(folder, "postgres"), BinDir: os.Getenv("PAWL_PG_BIN"), Settings: all})
}

// age makes the files of the write-ahead log that an older server would have.
func age(ctx context.Context, c *pgembed.Server) error {
	conn, err := pgx.Connect(ctx, c.URL("postgres"))
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(ctx)
	for range walFiles {
		if err := execAll(ctx, conn, "SELECT pg_logical_emit_message(false, 'bench', ''), pg_switch_wal()"); err != nil {
			return fmt.Errorf("fill log: %w", err)
		}
	}
	return execAll(ctx, conn, "CHECKPOINT")
}
