package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/dbos-inc/dbos-transact-golang/dbos"
)

// DBOS is a library. Each step is a transaction that commits the effect and the checkpoint together, because the effects
// are in the database of DBOS (https://docs.dbos.dev/golang/tutorials/transaction-tutorial).
var dbosPeer = peer{name: "DBOS", code: runDBOS, effects: true, patience: atOnce}

func runDBOS(ctx context.Context) error {
	pool, err := openPool(ctx)
	if err != nil {
		return err
	}
	app, err := dbos.NewContext(ctx, dbos.Config{
		AppName: "peers", SystemDBPool: pool, Logger: slog.New(slog.DiscardHandler),
		// A process with the same name and version continues the workflows of the one before it.
		ExecutorID: "1", ApplicationVersion: "1",
	})
	if err != nil {
		return fmt.Errorf("configure: %w", err)
	}
	database, err := dbos.NewDataSource(app, pool)
	if err != nil {
		return fmt.Errorf("open data source: %w", err)
	}
	workflow := func(ctx dbos.Context, o order) (string, error) {
		for _, step := range steps {
			_, err := dbos.RunAsTransaction(ctx, database, func(ctx context.Context, tx dbos.Tx) (string, error) {
				_, err := tx.Exec(ctx, step.sql, step.args(o)...)
				return "", err
			})
			if err != nil {
				return "", err
			}
		}
		return "completed", nil
	}
	dbos.RegisterWorkflow(app, workflow, dbos.WithWorkflowName("order"))
	if err := dbos.Launch(app); err != nil {
		return fmt.Errorf("launch: %w", err)
	}
	return serve(func(_ context.Context, o order) error {
		handle, err := dbos.RunWorkflow(app, workflow, o, dbos.WithWorkflowID(o.ID))
		if err != nil {
			return err
		}
		_, err = handle.GetResult()
		return err
	})
}
