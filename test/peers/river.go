package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// River is a queue of jobs. An order is a job of three steps, and each step commits its effect and its progress together
// (https://riverqueue.com/docs/resumable-jobs, https://riverqueue.com/docs/transactional-job-completion). The caller
// waits in the process that works on the job.
var riverPeer = peer{name: "River", code: runRiver, effects: true, patience: 90 * time.Second}

type job struct{ order }

func (job) Kind() string { return "order" }

type riverWorker struct {
	river.WorkerDefaults[job]
	pool    *pgxpool.Pool
	waiters sync.Map // of order ids: chan struct{}
}

// Work returns no error of a step: River finds it in ctx.
func (w *riverWorker) Work(ctx context.Context, j *river.Job[job]) error {
	for i, step := range steps {
		river.ResumableStep(ctx, step.name, nil, func(ctx context.Context) error {
			return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, step.sql, step.args(j.Args.order)...); err != nil {
					return err
				}
				if i == len(steps)-1 {
					_, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, j)
					return err
				}
				_, err := river.ResumableSetStepTx[*riverpgxv5.Driver](ctx, tx, j)
				return err
			})
		})
	}
	river.ResumableStep(ctx, "answer", nil, func(context.Context) error {
		if waiter, found := w.waiters.LoadAndDelete(j.Args.ID); found {
			close(waiter.(chan struct{}))
		}
		return nil
	})
	return nil
}

func runRiver(ctx context.Context) error {
	pool, err := openPool(ctx)
	if err != nil {
		return err
	}
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, nil)
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	w := &riverWorker{pool: pool}
	workers := river.NewWorkers()
	river.AddWorker(workers, w)
	client, err := river.NewClient(driver, &river.Config{
		// By default, jobs are fetched every 100 ms at most, and those of a dead process are rescued after an hour.
		FetchCooldown: time.Millisecond, FetchPollInterval: 10 * time.Millisecond,
		JobTimeout: 5 * time.Second, RescueStuckJobsAfter: 10 * time.Second,
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 4 * poolSize}},
		Workers: workers,
		Logger:  slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return fmt.Errorf("configure: %w", err)
	}
	if err := client.Start(ctx); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	return serve(func(ctx context.Context, o order) error {
		done := make(chan struct{})
		w.waiters.Store(o.ID, done)
		inserted, err := client.Insert(ctx, job{o}, &river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true}})
		if err == nil && inserted.UniqueSkippedAsDuplicate {
			err = awaitConfirmation(ctx, pool, o.ID)
		} else if err == nil {
			select {
			case <-done:
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
		w.waiters.Delete(o.ID)
		return err
	})
}

// awaitConfirmation waits for a job that an earlier request inserted.
func awaitConfirmation(ctx context.Context, pool *pgxpool.Pool, orderID string) error {
	for {
		var done bool
		err := pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM confirmations WHERE order_id = $1)`, orderID).Scan(&done)
		if err != nil || done {
			return err
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}
