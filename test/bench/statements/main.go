// Command statements measures PostgreSQL's work for one order: the statements of the service (admit, charge, reserve,
// confirm) on one connection, in batches of several sizes, without the service. It measures the processor time of the
// connection's process, which varies less than wall-clock time on a busy machine, and compares variants of the schema
// and of the statements in turn.
//
//	go run ./statements                                             # as things are
//	go run ./statements --variant lean=no_check.sql,charge.sql      # beside them
//	go run ./statements --remote                                    # every step at a provider
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/procfs"

	"pawl/db"
	"pawl/engine/ledger"
	"pawl/fsm"
	"pawl/internal/pgembed"
	"pawl/migrations"
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
	remote bool
	files  [][]string // of each variant
	names  []string
}

// Nothing here waits for a disk, which takes hardly any processor time.
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
	flags.BoolVar(&o.remote, "remote", false, "the statements of orders whose steps are all done by a provider")
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
	if err := os.Chmod(folder, 0o711); err != nil { // the user of PostgreSQL must be able to enter it
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

// variant is a database, and the connection for its orders.
type variant struct {
	name    string
	conn    *pgx.Conn
	query   *db.Queries
	items   int
	remote  bool
	made    int // orders so far
	figures map[int][]figures
}

// open creates the database of a variant: migrations, then its files.
func open(ctx context.Context, server *pgembed.Server, number int, o options) (*variant, error) {
	admin, err := pgx.Connect(ctx, server.URL("postgres"))
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	defer admin.Close(ctx)
	url := server.URL(fmt.Sprintf("variant%d", number))
	if _, err := admin.Exec(ctx, fmt.Sprintf("CREATE DATABASE variant%d", number)); err != nil {
		return nil, fmt.Errorf("create database: %w", err)
	}
	if _, err := migrations.Up(ctx, url); err != nil {
		return nil, err
	}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	r := &replacing{Conn: conn, texts: map[string]string{}}
	for _, file := range o.files[number] {
		if err := r.read(ctx, file); err != nil {
			return nil, err
		}
	}
	return &variant{name: o.names[number], conn: conn, query: db.New(r), items: o.items, remote: o.remote, figures: map[int][]figures{}}, nil
}

// replacing is a connection that replaces some statements by others.
type replacing struct {
	*pgx.Conn
	texts map[string]string // by name
}

var named = regexp.MustCompile(`(?m)^-- name: (\w+).*$`)

// read reads a file of a variant.
func (r *replacing) read(ctx context.Context, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	starts := named.FindAllSubmatchIndex(text, -1)
	if starts == nil {
		if _, err := r.Conn.Exec(ctx, string(text)); err != nil {
			return fmt.Errorf("run %s: %w", file, err)
		}
	}
	for i, at := range starts {
		end := len(text)
		if i+1 < len(starts) {
			end = starts[i+1][0]
		}
		r.texts[string(text[at[2]:at[3]])] = strings.TrimRight(string(text[at[0]:end]), "; \n")
	}
	return nil
}

// Query sends a statement, or its replacement.
func (r *replacing) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	name := named.FindStringSubmatch(sql)[1]
	if other, ok := r.texts[name+"One"]; ok {
		if elements, ok := single(args); ok {
			return r.Conn.Query(ctx, other, elements...) //nolint:rowserrcheck // the reader of the rows does
		}
	}
	if other, ok := r.texts[name]; ok {
		sql = other
	}
	return r.Conn.Query(ctx, sql, args...) //nolint:rowserrcheck // the reader of the rows does
}

// single replaces the arrays in the arguments of a batch of one by their only elements.
func single(args []any) ([]any, bool) {
	out := make([]any, len(args))
	for i, arg := range args {
		out[i] = arg
		if v := reflect.ValueOf(arg); v.Kind() == reflect.Slice {
			if v.Len() != 1 {
				return nil, false
			}
			out[i] = v.Index(0).Interface()
		}
	}
	return out, true
}

// steps are the statements of an order.
var steps = []string{"admit", "charge", "reserve", "confirm"}

// figures are the figures per order, as the mean of a round, or sums before the division.
type figures struct {
	cpu  [4]float64 // microseconds, by step
	wal  float64    // bytes
	hot  float64    // HOT updates of its row
	wall float64    // microseconds
}

func (f figures) total() float64 { return f.cpu[0] + f.cpu[1] + f.cpu[2] + f.cpu[3] }

// add runs some batches of a size and adds their figures.
func (v *variant) add(ctx context.Context, sum *figures, size, sets int) error {
	if err := v.count(ctx, sum, -1); err != nil {
		return err
	}
	began := time.Now()
	for range sets {
		if err := v.set(ctx, size, sum); err != nil {
			return fmt.Errorf("variant %s, sets of %d: %w", v.name, size, err)
		}
	}
	sum.wall += float64(time.Since(began).Microseconds())
	return v.count(ctx, sum, 1)
}

// each divides the sums by the number of orders.
func (f figures) each(orders int) figures {
	for _, sum := range []*float64{&f.cpu[0], &f.cpu[1], &f.cpu[2], &f.cpu[3], &f.wal, &f.hot, &f.wall} {
		*sum /= float64(orders)
	}
	return f
}

// set moves one batch of new orders through all steps, and adds its figures.
func (v *variant) set(ctx context.Context, size int, f *figures) error {
	clock, err := v.cpu()
	if err != nil {
		return err
	}
	lap := func(step int) error {
		now, err := v.cpu()
		f.cpu[step] += float64(now-clock) / 1000
		clock = now
		return err
	}
	nos, err := v.admit(ctx, size)
	if err != nil {
		return err
	}
	if err := lap(0); err != nil {
		return err
	}
	for i, state := range []fsm.State{fsm.Charging, fsm.Reserving, fsm.Confirming} {
		moved, err := v.move(ctx, ledger.Batch{OrderNos: nos, Expected: state, Fence: 1, Seq: int32(i) + 1})
		if err != nil {
			return fmt.Errorf("%s: %w", steps[i+1], err)
		}
		if len(moved) != size {
			return fmt.Errorf("%s: %d of %d orders moved", steps[i+1], len(moved), size)
		}
		if err := lap(i + 1); err != nil {
			return err
		}
	}
	return nil
}

// move moves orders out of their state, which ends the call of a remote step and begins the next.
func (v *variant) move(ctx context.Context, batch ledger.Batch) ([]ledger.Moved, error) {
	if !v.remote {
		return ledger.Moves[batch.Expected](ctx, v.query, batch)
	}
	answers := make(map[int64]ledger.Answer, len(batch.OrderNos))
	for _, no := range batch.OrderNos {
		answers[no] = ledger.Answer{Reference: fmt.Sprintf("%s_%d", batch.Expected, no)}
	}
	return ledger.SaveResults(ctx, v.query, ledger.Results{Batch: batch, Outcome: fsm.Done, Step: batch.Expected.Step(),
		Executor: "http", Begins: batch.Expected != fsm.Confirming, Call: time.Second, Lease: 10 * time.Second, Of: answers})
}

var owner = uuid.New()

func (v *variant) admit(ctx context.Context, size int) ([]int64, error) {
	if v.remote {
		return v.admitRemote(ctx, size)
	}
	p := db.OrdersAdmitParams{Owner: owner, LeaseSeconds: 10}
	for range size {
		p.OrderIds = append(p.OrderIds, v.nextID())
		p.Amounts, p.Currencies = append(p.Amounts, "99.99"), append(p.Currencies, "USD")
		p.Items = append(p.Items, fmt.Sprintf("item %d", rand.IntN(v.items)))
		p.Quantities, p.Metadata = append(p.Quantities, 1), append(p.Metadata, "")
	}
	rows, err := ledger.Admit(ctx, v.query, p)
	return numbersOf(rows, err, size, func(row db.OrdersAdmitRow) int64 { return row.OrderNo })
}

// numbersOf are the numbers of the orders that an admission returned, which must be all.
func numbersOf[R any](rows []R, err error, size int, no func(R) int64) ([]int64, error) {
	if err == nil && len(rows) != size {
		err = fmt.Errorf("%d of %d orders admitted", len(rows), size)
	}
	if err != nil {
		return nil, fmt.Errorf("admit: %w", err)
	}
	nos := make([]int64, size)
	for i, row := range rows {
		nos[i] = no(row)
	}
	return nos, nil
}

// nextID is the id of the next order.
func (v *variant) nextID() string {
	v.made++
	return fmt.Sprintf("%016x%016x", uint64(v.made)*0x9E3779B97F4A7C15, v.made)
}

// admitRemote is admit for orders whose charges are called for at once.
func (v *variant) admitRemote(ctx context.Context, size int) ([]int64, error) {
	p := db.OrdersAdmitWithTermsParams{Owner: owner, LeaseSeconds: 10, Begins: true, Waits: true}
	for range size {
		p.OrderIds = append(p.OrderIds, v.nextID())
		p.Amounts, p.Currencies = append(p.Amounts, "99.99"), append(p.Currencies, "USD")
		p.Items = append(p.Items, fmt.Sprintf("item %d", rand.IntN(v.items)))
		p.Quantities, p.Metadata, p.Policies = append(p.Quantities, 1), append(p.Metadata, ""), append(p.Policies, 1)
		p.Lines, p.CustomerIds, p.PaymentMethods = append(p.Lines, ""), append(p.CustomerIds, ""), append(p.PaymentMethods, "")
		p.StartAts, p.CompleteBys = append(p.StartAts, time.Time{}), append(p.CompleteBys, time.Time{})
		p.CompleteSeconds, p.TtlSeconds = append(p.CompleteSeconds, 0), append(p.TtlSeconds, 0)
		p.ConcurrencyKeys, p.Approvals = append(p.ConcurrencyKeys, ""), append(p.Approvals, false)
		p.ApprovalReasons, p.ApprovalSeconds = append(p.ApprovalReasons, ""), append(p.ApprovalSeconds, 0)
	}
	rows, err := v.query.OrdersAdmitWithTerms(ctx, p)
	return numbersOf(rows, err, size, func(row db.OrdersAdmitWithTermsRow) int64 { return row.WrittenOrder.OrderNo })
}

// cpu is the processor time of the connection's process so far, in nanoseconds.
func (v *variant) cpu() (uint64, error) {
	process, err := procfs.NewProc(int(v.conn.PgConn().PID()))
	if err != nil {
		return 0, fmt.Errorf("look at the process of PostgreSQL: %w", err)
	}
	stat, err := process.Schedstat()
	return stat.RunningNanoseconds, err
}

// count adds, with a sign, the bytes of log written so far, and the HOT updates of orders.
func (v *variant) count(ctx context.Context, sum *figures, sign float64) error {
	var wal, hot float64
	_, err := v.conn.Exec(ctx, "SELECT pg_stat_force_next_flush()")
	if err == nil {
		err = v.conn.QueryRow(ctx, `SELECT (pg_current_wal_insert_lsn() - '0/0')::float8,
			(SELECT n_tup_hot_upd::float8 FROM pg_stat_user_tables WHERE schemaname = 'pawl' AND relname = 'orders')`).Scan(&wal, &hot)
	}
	if err != nil {
		return fmt.Errorf("read counters: %w", err)
	}
	sum.wal, sum.hot = sum.wal+sign*wal, sum.hot+sign*hot
	return nil
}

// atOnce is how many batches of a variant are run in a row: few, because the speed of a shared machine changes within
// seconds.
const atOnce = 5

// compare measures all variants in turn, so that other work of the machine affects all of them, and prints medians.
func compare(ctx context.Context, o options, variants []*variant) error {
	for round := range o.rounds + 1 { // the first one makes the plans and is not counted
		for _, size := range o.sizes {
			sums, err := inTurn(ctx, o, variants, size)
			if err != nil {
				return err
			}
			for i, v := range variants {
				if round > 0 {
					v.figures[size] = append(v.figures[size], sums[i])
				}
			}
		}
	}
	return report(o, variants)
}

// inTurn runs one round of all variants with one size.
func inTurn(ctx context.Context, o options, variants []*variant, size int) ([]figures, error) {
	sums := make([]figures, len(variants))
	turns := max(1, o.orders/size/atOnce)
	if size == 1 {
		turns = max(1, turns/4)
	}
	for range turns {
		for _, i := range rand.Perm(len(variants)) {
			if err := variants[i].add(ctx, &sums[i], size, atOnce); err != nil {
				return nil, err
			}
		}
	}
	for i := range sums {
		sums[i] = sums[i].each(turns * atOnce * size)
	}
	return sums, nil
}

// report prints a table for each size. The ratio is to the first variant in the same round.
func report(o options, variants []*variant) error {
	for _, size := range o.sizes {
		fmt.Printf("\nsets of %d, µs of PostgreSQL for each order, medians of %d rounds\n", size, o.rounds)
		w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(w, "variant\tadmit\tcharge\treserve\tconfirm\tall\tratio\tof\tto\tWAL B\tHOT\twall µs\t")
		for _, v := range variants {
			of := func(figure func(figures) float64) float64 { return median(v.figures[size], figure) }
			fmt.Fprintf(w, "%s\t", v.name)
			for step := range steps {
				fmt.Fprintf(w, "%.1f\t", of(func(f figures) float64 { return f.cpu[step] }))
			}
			ratios := make([]float64, o.rounds)
			for i, f := range v.figures[size] {
				ratios[i] = f.total() / variants[0].figures[size][i].total()
			}
			slices.Sort(ratios)
			fmt.Fprintf(w, "%.1f\t%.3f\t%.2f\t%.2f\t%.0f\t%.2f\t%.0f\t\n", of(figures.total),
				ratios[len(ratios)/2], ratios[0], ratios[len(ratios)-1],
				of(func(f figures) float64 { return f.wal }), of(func(f figures) float64 { return f.hot }), of(func(f figures) float64 { return f.wall }))
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	return nil
}

func median(rounds []figures, figure func(figures) float64) float64 {
	values := make([]float64, len(rounds))
	for i, f := range rounds {
		values[i] = figure(f)
	}
	slices.Sort(values)
	return values[len(values)/2]
}
