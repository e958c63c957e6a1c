package cli

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"pawl/db"
	"pawl/httpapi"
	"pawl/internal/orders"
	"pawl/internal/pg"
)

func archiveCommand() *cobra.Command {
	var cfg config
	a := archive{}
	cmd := &cobra.Command{
		Use:   "archive --to DIR --older-than DURATION",
		Short: "Write ended orders to files, and remove them from the database",
		Long: "Writes each order that ended at least that long ago as a line of JSON, with its history and calls, and then has the\n" +
			"database forget it.\n" +
			"A file, orders-NUMBER-ID.ndjson, has up to 1,000 orders; SHA256SUMS has the checksums (sha256sum -c).\n" +
			"The orders of a file are removed once it is on the disk. The command can be interrupted and run again.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.dir == "" || a.olderThan < leastOrderRetention {
				return usageError{errors.New("archive needs --to, and --older-than of at least 744h")}
			}
			return withDatabase(cmd, &cfg, func(pool *pg.Pool, _ string) error {
				if err := os.MkdirAll(a.dir, 0o750); err != nil {
					return fmt.Errorf("make directory: %w", err)
				}
				a.pool, a.query = pool, db.New(pool)
				err := a.alone(cmd.Context(), func(held func() error) error { return a.run(cmd.Context(), held) })
				fmt.Fprintf(cmd.OutOrStdout(), "%d orders were archived in %s\n", a.removed, a.dir)
				return err
			})
		},
	}
	cfg.addTo(cmd)
	cmd.Flags().StringVar(&a.dir, "to", "", "directory of the files; created if it does not exist")
	cmd.Flags().DurationVar(&a.olderThan, "older-than", 0, "archive orders that ended at least this long ago, such as 9600h; at least 744h")
	return cmd
}

// leastOrderRetention is the least age of orders that pawl.mark_forgotten accepts.
const leastOrderRetention = 31 * 24 * time.Hour

// archive moves orders from the database to files.
type archive struct {
	pool      *pg.Pool
	query     *db.Queries
	dir       string
	olderThan time.Duration
	removed   int64
}

const (
	archiveBatch = 1000                   // orders in a file
	archivePause = 100 * time.Millisecond // while others have a batch, or statements from before the mark are running
	archiveTries = 20                     // with pauses, until the server has noticed that an archive was killed
	sumsFile     = "SHA256SUMS"
)

var errArchiveRuns = errors.New("another pawl archive runs on this database: run it again when that has ended")

// alone calls do while no other archive runs on the database. A transaction has the lock, because one of a session does
// not work behind a transaction pooler. held returns an error if the lock was lost.
func (a *archive) alone(ctx context.Context, do func(held func() error) error) error {
	return pgx.BeginTxFunc(ctx, a.pool, pgx.TxOptions{}, func(tx pgx.Tx) error {
		held := func() error {
			held, err := db.New(tx).ArchiveLock(ctx)
			if err != nil {
				return fmt.Errorf("lock out other archives: %w", err)
			}
			if !held {
				return errArchiveRuns
			}
			return nil
		}
		err := held()
		for try := 1; errors.Is(err, errArchiveRuns) && try < archiveTries && ctx.Err() == nil; try++ {
			pg.Sleep(ctx, archivePause)
			err = held()
		}
		if err != nil {
			return err
		}
		return do(held)
	})
}

// run archives one batch after the other. A batch that is open when it begins was left by an archive that was
// interrupted: its orders are marked, and still there.
func (a *archive) run(ctx context.Context, held func() error) error {
	for after, more := int64(0), true; ctx.Err() == nil; {
		if err := held(); err != nil {
			return err
		}
		batch, err := a.write(ctx)
		switch {
		case err == nil:
			if err := a.remove(ctx, batch); err != nil {
				return err
			}
			continue
		case !errors.Is(err, pgx.ErrNoRows):
			return fmt.Errorf("write batch: %w", err)
		case !more:
			return nil
		}
		m, err := a.query.OrdersMarkForgotten(ctx, db.OrdersMarkForgottenParams{
			After: after, Looks: archiveBatch, OlderSeconds: a.olderThan.Seconds(), Archive: true})
		if err != nil {
			return fmt.Errorf("mark orders: %w", err)
		}
		if m.Marked == 0 && m.OpenFor >= 0 { // the service forgets orders, too
			pg.Sleep(ctx, archivePause)
			continue
		}
		after, more = m.Last, !m.AfterLast
	}
	return ctx.Err()
}

// remove removes the orders of a batch from the database. Their file is on the disk.
func (a *archive) remove(ctx context.Context, batch uuid.UUID) error {
	for ctx.Err() == nil {
		r, err := a.query.OrdersRemoveForgotten(ctx, &batch)
		if err != nil {
			return fmt.Errorf("remove orders: %w", err)
		}
		if !r.Waiting {
			a.removed += int64(r.Removed)
			return nil
		}
		pg.Sleep(ctx, archivePause)
	}
	return ctx.Err()
}

// write writes the file of the open batch, unless it is there, and returns the id of the batch. The error is
// pgx.ErrNoRows if no batch is open. Everything is read in one snapshot, in which no order of the batch was removed.
//
// The name of the file has the id of the batch, because other databases have batches with the same number. So a file
// that was written before an interruption is replaced, and no other one is.
func (a *archive) write(ctx context.Context) (id uuid.UUID, err error) {
	snapshot := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, a.pool, snapshot, func(tx pgx.Tx) error {
		query := db.New(tx)
		batch, err := query.ForgottenBatchOpen(ctx)
		if err != nil {
			return fmt.Errorf("look for a batch: %w", err)
		}
		id = batch.ID
		name := fmt.Sprintf("orders-%08d-%s.ndjson", batch.BatchNo, id)
		if a.has(name) {
			return nil
		}
		sum := sha256.New()
		err = durably(filepath.Join(a.dir, name), func(w io.Writer) error {
			return a.writeOrders(ctx, query, batch.OrderNos, io.MultiWriter(w, sum))
		})
		if err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
		return a.addSum(hex.EncodeToString(sum.Sum(nil)) + "  " + name)
	})
	return id, err
}

func (a *archive) writeOrders(ctx context.Context, query *db.Queries, numbers []int64, w io.Writer) error {
	rows, err := query.OrdersByNo(ctx, db.OrdersByNoParams{OrderNos: numbers})
	if err != nil {
		return fmt.Errorf("read orders: %w", err)
	}
	if len(rows) != len(numbers) {
		return fmt.Errorf("the batch has %d orders, and %d are stored", len(numbers), len(rows))
	}
	slices.SortFunc(rows, func(x, y orders.Order) int { return cmp.Compare(x.OrderNo, y.OrderNo) })
	out := bufio.NewWriter(w) // and Flush returns the errors of all writes
	for i := range rows {
		line, err := archiveLine(ctx, query, &rows[i])
		if err != nil {
			return err
		}
		_, _ = out.Write(line)
	}
	return out.Flush()
}

func (a *archive) addSum(line string) error {
	path := filepath.Join(a.dir, sumsFile)
	sums, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return durably(path, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "%s%s\n", sums, line)
		return err
	})
}

// has reports whether a file was written, with its checksum.
func (a *archive) has(name string) bool {
	text, err := os.ReadFile(filepath.Join(a.dir, name))
	sums, sumsErr := os.ReadFile(filepath.Join(a.dir, sumsFile))
	sum := sha256.Sum256(text)
	return err == nil && sumsErr == nil && strings.Contains(string(sums), hex.EncodeToString(sum[:])+"  "+name+"\n")
}

func archiveLine(ctx context.Context, query *db.Queries, o *orders.Order) ([]byte, error) {
	history, err := query.TransitionsOf(ctx, db.TransitionsOfParams{OrderNo: o.OrderNo, Before: math.MaxInt32, Most: math.MaxInt32})
	if err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	if len(history) == 0 {
		return nil, fmt.Errorf("order %q has no history", o.OrderID)
	}
	calls, err := query.CallsOf(ctx, db.CallsOfParams{OrderNo: o.OrderNo, After: math.MinInt32, Before: math.MaxInt32, Most: math.MaxInt32})
	if err != nil {
		return nil, fmt.Errorf("read calls: %w", err)
	}
	return httpapi.ArchiveLine(o, history, calls)
}

// durably writes a file so that, after a crash, it is there as a whole or not at all.
func durably(path string, write func(io.Writer) error) error {
	file, err := os.CreateTemp(filepath.Dir(path), ".*.tmp")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name()) // fails after the rename
	err = write(file)
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	if err := os.Rename(file.Name(), path); err != nil {
		return err
	}
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}
