package books_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"pawl/db"
	"pawl/engine/ledger"
	"pawl/fsm"
	"pawl/internal/books"
	"pawl/test/dbtest"
)

// Whatever the statements of the service do to orders, in whatever order, is in order.
func TestEveryLegalHistoryVerifiesClean(t *testing.T) {
	t.Parallel()
	base := newShop(t)
	dbtest.Check(t, func(r *rapid.T) {
		s := *base
		s.failer = r
		s.sql("SET LOCAL pawl.archive = on; TRUNCATE orders, transitions, charges, refunds, reservations, inventory, stock_movements RESTART IDENTITY")
		s.last = nil
		var ids []string
		pick := func() string { return rapid.SampledFrom(ids).Draw(r, "order") }
		begin := func(admit func(id, item string)) {
			ids = append(ids, fmt.Sprintf("order %d", len(ids)))
			admit(ids[len(ids)-1], rapid.SampledFrom([]string{"lamp", "sofa"}).Draw(r, "item"))
		}
		begin(s.admit)
		r.Repeat(map[string]func(*rapid.T){
			"admit":         func(*rapid.T) { begin(s.admit) },
			"admit to wait": func(*rapid.T) { begin(s.admitToWait) },
			"move":          func(*rapid.T) { s.moveUnlessFinal(pick()) },
			"move again":    func(*rapid.T) { s.moveUnlessFinal(pick()) },
			"drive": func(*rapid.T) {
				for id := pick(); s.moveUnlessFinal(id); {
				}
			},
			"stop":      func(*rapid.T) { s.stop(pick()) },
			"take over": func(*rapid.T) { s.takeOver(pick()) },
			"hold": func(*rapid.T) {
				if id := pick(); !s.order(id).Status.Final() {
					s.hold(id)
				}
			},
			"redrive": func(*rapid.T) { s.redrive(pick()) },
			"stock": func(*rapid.T) {
				s.stock(rapid.SampledFrom([]string{"lamp", "sofa"}).Draw(r, "item"), rapid.Int64Range(0, 9).Draw(r, "on hand"))
			},
		})
		size := rapid.Int32Range(1, 20).Draw(r, "range")
		if report := s.verify(books.Options{RangeSize: size}); len(offenders(report)) > 0 {
			r.Fatalf("found %v", offenders(report))
		}
	})
}

// moveUnlessFinal makes the next move, if there is one that needs no person.
func (s *shop) moveUnlessFinal(id string) bool {
	o := s.order(id)
	if o.Status.Final() || o.Hold != nil {
		return false
	}
	s.move(id)
	return true
}

// While several writers move sets of the same orders and items, every range shows
// the books in order: a move is in a snapshot whole, or not at all.
func TestVerifyFindsNothingWhileOrdersMove(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for i := range 5 {
		s.stock(fmt.Sprintf("item %d", i), 150)
	}
	ctx, stop := context.WithCancel(s.ctx)
	var writers sync.WaitGroup
	for n := range 3 {
		w := &writer{pool: s.pool, q: s.q, owner: uuid.New(), random: rand.New(rand.NewPCG(uint64(n), 1)), name: fmt.Sprint(n)}
		writers.Go(func() {
			if err := w.run(ctx, 40); err != nil && ctx.Err() == nil {
				t.Errorf("writer %d: %v", n, err)
			}
		})
	}
	finished := make(chan struct{})
	go func() { defer close(finished); writers.Wait() }()
	defer func() { stop(); <-finished }()
	for {
		if report := s.verify(books.Options{RangeSize: 64}); len(offenders(report)) > 0 {
			t.Errorf("found %+v", report)
			return
		}
		select {
		case <-finished:
			report := s.verify(books.Options{})
			if !report.OK() || report.Orders["completed"] == 0 || report.Orders["failed"] == 0 || report.Orders["canceled"] == 0 {
				t.Errorf("at the end %v, found %v", report.Orders, offenders(report))
			}
			return
		default:
		}
	}
}

// writer admits sets of orders and drives them as the service does.
type writer struct {
	pool   *pgxpool.Pool
	q      *db.Queries
	owner  uuid.UUID
	random *rand.Rand
	name   string
}

func (w *writer) run(ctx context.Context, sets int) error {
	for set := range sets {
		if err := w.admit(ctx, set); err != nil {
			return fmt.Errorf("admit: %w", err)
		}
	}
	return nil
}

// admit brings 16 orders to their ends, but for those that are held.
func (w *writer) admit(ctx context.Context, set int) error {
	params := db.OrdersAdmitParams{Owner: w.owner, LeaseSeconds: 60}
	for i := range 16 {
		params.OrderIds = append(params.OrderIds, fmt.Sprintf("%s/%d/%02d", w.name, set, i))
		params.Amounts = append(params.Amounts, fmt.Sprintf("%d.%02d", w.random.IntN(1000), w.random.IntN(100)))
		params.Currencies = append(params.Currencies, []string{"EUR", "USD", "CHF"}[w.random.IntN(3)])
		params.Items = append(params.Items, fmt.Sprintf("item %d", w.random.IntN(6)))
		params.Quantities = append(params.Quantities, 1+w.random.Int32N(3))
		params.Metadata = append(params.Metadata, "")
	}
	admitted, err := w.q.OrdersAdmit(ctx, params)
	if err != nil {
		return err
	}
	var numbers []int64
	for _, order := range admitted {
		numbers = append(numbers, order.OrderNo)
	}
	for {
		if err := w.disturb(ctx, params.OrderIds[w.random.IntN(16)], numbers); err != nil {
			return err
		}
		if left, err := w.move(ctx, numbers); err != nil || left == 0 {
			return err
		}
	}
}

// disturb stops an order, or hands some back and takes them over.
func (w *writer) disturb(ctx context.Context, id string, numbers []int64) error {
	if w.random.IntN(3) > 0 {
		return stop(ctx, w.pool, id)
	}
	some := numbers[w.random.IntN(len(numbers)):]
	if _, err := w.q.LeasesRelease(ctx, db.LeasesReleaseParams{OrderNos: some, Owner: w.owner}); err != nil {
		return err
	}
	_, err := w.q.LeasesClaim(ctx, db.LeasesClaimParams{OrderNos: some, Owner: w.owner, LeaseSeconds: 60})
	return err
}

// version is what a set of orders has in common.
type version struct {
	state fsm.State
	fence int64
	seq   int32
}

// move makes one move of every order that has one, and returns how many had.
func (w *writer) move(ctx context.Context, numbers []int64) (left int, err error) {
	orders, err := w.q.OrdersByNo(ctx, db.OrdersByNoParams{OrderNos: numbers})
	if err != nil {
		return 0, err
	}
	sets := map[version][]int64{}
	for _, row := range orders {
		if o := row; !o.Status.Final() && o.Hold == nil {
			v := version{o.Status, o.Fence, o.Seq}
			sets[v] = append(sets[v], o.OrderNo)
			left++
		}
	}
	for v, set := range sets {
		if _, err := ledger.Moves[v.state](ctx, w.q, ledger.Batch{OrderNos: set, Expected: v.state, Fence: v.fence, Seq: v.seq}); err != nil {
			return 0, fmt.Errorf("move from %s: %w", v.state, err)
		}
	}
	return left, nil
}
