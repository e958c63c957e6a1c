package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// cluster is the PostgreSQL that all targets of a run are measured on.
type cluster struct {
	url     func(database string) string
	folder  string
	process *exec.Cmd // nil: somebody else's
	ended   chan error
}

// Every settings line is either the default, said aloud because it is what makes an
// answered order durable, or the size of a small real installation.
var settings = []string{
	"listen_addresses=", "fsync=on", "synchronous_commit=on", "full_page_writes=on",
	"shared_buffers=512MB", "max_wal_size=4GB", "min_wal_size=1GB", "max_connections=200",
}

// A server that has run for a while writes its log into old files; a new one must
// create each of them first, which takes a tenth of its processor time and holds up
// every commit meanwhile. These files, of 16 MB, make the old ones: 1 GB.
const walFiles = 64

// startCluster makes and starts a private PostgreSQL in folder, reachable by a unix
// socket only. Whoever gets it stops it.
func startCluster(ctx context.Context, folder string, extra ...string) (*cluster, error) {
	bin, err := postgresBinaries()
	if err != nil {
		return nil, err
	}
	as, err := unprivileged(folder)
	if err != nil {
		return nil, err
	}
	data := filepath.Join(folder, "data")
	initdb := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), "-D", data, "-U", "postgres",
		"--auth=trust", "--encoding=UTF8", "--locale=C")
	initdb.SysProcAttr, initdb.Dir = as, folder
	if out, err := initdb.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("run initdb: %w: %s", err, out)
	}
	args := []string{"-D", data, "-k", folder}
	for _, s := range slices.Concat(settings, extra) {
		args = append(args, "-c", s)
	}
	log, err := os.Create(filepath.Join(folder, "postgres.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	server := exec.Command(filepath.Join(bin, "postgres"), args...)
	server.SysProcAttr, server.Dir, server.Stdout, server.Stderr = as, folder, log, log
	if err := server.Start(); err != nil {
		return nil, fmt.Errorf("start postgres: %w", err)
	}
	c := &cluster{folder: folder, process: server, ended: make(chan error, 1)}
	c.url = func(database string) string {
		return fmt.Sprintf("postgres://postgres@/%s?host=%s", database, folder)
	}
	go func() { c.ended <- server.Wait() }() // ends with the server, which stop waits for
	if err := c.wait(ctx); err != nil {
		return nil, errors.Join(err, c.stop())
	}
	return c, nil
}

// age makes the files of the write-ahead log that an older server would have.
func (c *cluster) age(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, c.url("postgres"))
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
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}

func (c *cluster) wait(ctx context.Context) error {
	for {
		conn, err := pgx.Connect(ctx, c.url("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case err := <-c.ended:
			c.ended <- err
			text, _ := os.ReadFile(filepath.Join(c.folder, "postgres.log"))
			return fmt.Errorf("start postgres: %w: %s", err, text)
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (c *cluster) stop() error {
	if c.process == nil {
		return nil
	}
	if err := c.process.Process.Signal(syscall.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop postgres: %w", err)
	}
	return <-c.ended
}

// unprivileged gives the folder to a user who may run PostgreSQL, which refuses root.
// It is nil, and nothing is done, for any other user than root.
func unprivileged(folder string) (*syscall.SysProcAttr, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	account, err := user.Lookup("postgres")
	if err != nil {
		if account, err = user.Lookup("nobody"); err != nil {
			return nil, fmt.Errorf("find user for postgres: %w", err)
		}
	}
	uid, err := strconv.Atoi(account.Uid)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.Atoi(account.Gid)
	if err != nil {
		return nil, err
	}
	if err := os.Chown(folder, uid, gid); err != nil {
		return nil, err
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
}

// postgresBinaries is the folder of initdb and postgres: PAWL_PG_BIN, else of the
// highest version Debian's packages put on the machine, else from PATH.
func postgresBinaries() (string, error) {
	if bin := os.Getenv("PAWL_PG_BIN"); bin != "" {
		return bin, nil
	}
	folders, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	slices.SortFunc(folders, func(a, b string) int { return major(b) - major(a) })
	for _, folder := range folders {
		if _, err := os.Stat(filepath.Join(folder, "initdb")); err == nil {
			return folder, nil
		}
	}
	path, err := exec.LookPath("initdb")
	if err != nil {
		return "", errors.New("no PostgreSQL on this machine: install it, or set PAWL_PG_BIN or --database-url")
	}
	path, err = filepath.EvalSymlinks(path)
	return filepath.Dir(path), err
}

func major(bin string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(bin)))
	return n
}
