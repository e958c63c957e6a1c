// Command statements measures what PostgreSQL works for one order: the statements of the service (admit, charge, reserve,
// confirm) on one connection, in sets of several sizes, without the service around them. It counts the processor time of
// that connection's process, which a busy machine stretches less than time on the clock, and compares variants of the
// schema and of the statements with each other, in turn.
//
//	go run ./statements                                             # as things are
//	go run ./statements --variant lean=no_check.sql,charge.sql      # beside them
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"pawl/internal/pgembed"
)

const help = `Measures the processor time of PostgreSQL for each order, by statement, in sets of several sizes.

A variant is a database of its own: the migrations, and then its files. A file that has a
line "-- name: OrdersCharge" holds statements to use instead of those of that name, with
the same parameters ($1, $2, …); after a name that ends in One (OrdersChargeOne), it is
used for sets of one order only, and each array is then its one element. Any other file is
run once on the database.

Flags:
`

type options struct {
	sizes  []int
	orders int
	rounds int
	items  int
	files  [][]string // of each variant
	names  []string
}

// Nothing here waits for a disk: that takes time on the clock, and hardly any of the processor's.
var settings = map[string]string{
	"shared_buffers": "512MB", "max_wal_size": "8GB", "min_wal_size": "1GB", "checkpoint_timeout": "1h", "fsync": "off",
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := measure(ctx, os.Args[1:])
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "statements:", err)
		os.Exit(1)
	}
}

func parse(args []string) (options, error) {
	o := options{names: []string{"base"}, files: [][]string{nil}}
	flags := flag.NewFlagSet("statements", flag.ContinueOnError)
	flags.Usage = func() { fmt.Fprint(flags.Output(), help); flags.PrintDefaults() }
	sizes := flags.String("sizes", "1,16,64", "orders in one set")
	flags.IntVar(&o.orders, "orders", 2000, "most orders of one round; sets of one do a quarter of them")
	flags.IntVar(&o.rounds, "rounds", 9, "how often every variant is measured with every size, in turn")
	flags.IntVar(&o.items, "items", 10_000, "different items")
	flags.Func("variant", "name=file.sql[,file.sql…], to be measured beside the base; may be repeated", func(text string) error {
		name, files, _ := strings.Cut(text, "=")
		o.names, o.files = append(o.names, name), append(o.files, strings.FieldsFunc(files, func(r rune) bool { return r == ',' }))
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	for text := range strings.SplitSeq(*sizes, ",") {
		size, err := strconv.Atoi(text)
		if err != nil || size < 1 {
			return o, fmt.Errorf("%q is not the size of a set", text)
		}
		o.sizes = append(o.sizes, size)
	}
	return o, nil
}

func measure(ctx context.Context, args []string) (err error) {
	o, err := parse(args)
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "pawl-statements-")
	if err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	if err := os.Chmod(folder, 0o711); err != nil { // the user of PostgreSQL must get through
		return err
	}
	server, err := pgembed.Start(ctx, pgembed.Config{Dir: folder + "/postgres", BinDir: os.Getenv("PAWL_PG_BIN"), Settings: settings})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop(context.WithoutCancel(ctx))) }()
	var variants []*variant
	for i, name := range o.names {
		v, err := open(ctx, server, i, o)
		if err != nil {
			return fmt.Errorf("variant %s: %w", name, err)
		}
		defer v.conn.Close(context.WithoutCancel(ctx))
		variants = append(variants, v)
	}
	return compare(ctx, o, variants)
}
