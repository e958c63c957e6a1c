package cli

import (
	"bufio"
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
			"database forget it. A file, orders-NUMBER.ndjson, has up to 1,000 orders; SHA256SUMS has the checksums (sha256sum -c).\n" +
			"The orders of a file are removed once it is on the disk. The command can be interrupted and run again.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.dir == "" || a.olderThan < 31*24*time.Hour {
				return usageError{errors.New("archive needs --to, and --older-than of at least 744h")}
			}
			return withDatabase(cmd, &cfg, func(pool *pg.Pool, _ string) error {
				a.query = db.New(pool)
				a.orders = orders.NewReader(cmd.Context(), a.query)
				err := a.run(cmd.Context())
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

// archive moves orders from the database to files.
type archive struct {
	query     *db.Queries
	orders    *orders.Reader
	dir       string
	olderThan time.Duration
	removed   int64
}

const (
	archiveBatch = 1000                   // orders in a file
	archivePause = 100 * time.Millisecond // while others have a batch, or statements from before the mark are running
	sumsFile     = "SHA256SUMS"
)

// run archives one batch after the other. A batch that is open when it begins was left by an archive that was
// interrupted: its orders are marked, and still there.
func (a *archive) run(ctx context.Context) error {
	if err := os.MkdirAll(a.dir, 0o750); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	for after, more := int64(0), true; ctx.Err() == nil; {
		batch, err := a.query.ForgottenBatchOpen(ctx)
		switch {
		case err == nil:
			if err := a.move(ctx, batch); err != nil {
				return err
			}
			continue
		case !errors.Is(err, pgx.ErrNoRows):
			return fmt.Errorf("look for a batch: %w", err)
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

// move writes the orders of a batch, and removes them from the database when they are on the disk.
func (a *archive) move(ctx context.Context, batch db.ForgottenBatchOpenRow) error {
	if err := a.write(ctx, batch); err != nil {
		return fmt.Errorf("write batch %d: %w", batch.BatchNo, err)
	}
	for ctx.Err() == nil {
		r, err := a.query.OrdersRemoveForgotten(ctx, true)
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

// write writes the file of a batch, unless it is there. The name of the file shows the batch, so a file that was
// written before an interruption is replaced, and no order is in two files.
func (a *archive) write(ctx context.Context, batch db.ForgottenBatchOpenRow) error {
	name := fmt.Sprintf("orders-%08d.ndjson", batch.BatchNo)
	if a.has(name) {
		return nil
	}
	rows, err := a.query.OrdersByNo(ctx, db.OrdersByNoParams{OrderNos: batch.OrderNos})
	if err != nil {
		return fmt.Errorf("read orders: %w", err)
	}
	slices.SortFunc(rows, func(x, y orders.Order) int { return int(x.OrderNo - y.OrderNo) })
	sum := sha256.New()
	err = durably(filepath.Join(a.dir, name), func(w io.Writer) error {
		out := bufio.NewWriter(io.MultiWriter(w, sum))
		for i := range rows {
			line, err := a.line(ctx, &rows[i])
			if err != nil {
				return err
			}
			_, _ = out.Write(line) // Flush returns the error
		}
		return out.Flush()
	})
	if err != nil {
		return err
	}
	sums, _ := os.ReadFile(filepath.Join(a.dir, sumsFile)) // none yet
	return durably(filepath.Join(a.dir, sumsFile), func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "%s%s  %s\n", sums, hex.EncodeToString(sum.Sum(nil)), name)
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

func (a *archive) line(ctx context.Context, o *orders.Order) ([]byte, error) {
	history, err := a.query.TransitionsOf(ctx, db.TransitionsOfParams{OrderNo: o.OrderNo, Before: math.MaxInt32, Most: math.MaxInt32})
	if err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	calls, err := a.query.CallsOf(ctx, db.CallsOfParams{OrderNo: o.OrderNo, After: math.MinInt32, Before: math.MaxInt32, Most: math.MaxInt32})
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
