// Command bench measures the service against a hand-written baseline: one load, one
// PostgreSQL, one table of figures. It drives the real binaries over HTTP and imports
// nothing of the service but what runs a PostgreSQL.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := bench(ctx, os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

var errFigures = errors.New("errors, or books that do not balance: see below the table")

func bench(ctx context.Context, args []string) (err error) {
	o, err := parseOptions(args)
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "pawl-bench-")
	if err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	c, err := o.cluster(ctx, folder)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop(context.WithoutCancel(ctx))) }()
	b, err := newPlan(ctx, o, c, folder)
	if err != nil {
		return err
	}
	err = b.all(ctx)
	b.report.print(os.Stdout)
	if err == nil && b.report.failed() {
		err = errFigures
	}
	return err
}
