package books

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"pawl/db"
	"pawl/internal/pg"
)

// Verification runs Verify in the background of a service. It stores its progress and its reports in the database, for
// all replicas. Its methods are safe for concurrent use.
type Verification struct {
	pool Database
	cfg  VerificationConfig

	life    context.Context
	end     context.CancelFunc
	running sync.WaitGroup
	mu      sync.Mutex // held by Start and Stop
}

// VerificationConfig configures a Verification.
type VerificationConfig struct {
	Options Options      // without Background, Progress and Provider
	Log     *slog.Logger // nil: discarded
	// At returns the provider with books at some addresses, in the form of Provider.Compared. nil: nothing is compared.
	At func(ctx context.Context, addresses []string) (*Provider, error)
	// Named returns the addresses that can be compared with before they ever were. nil: none.
	Named func(ctx context.Context) ([]string, error)
}

// Stored is a stored verification, without its report. If it neither runs nor is reported, it could not read everything,
// which says nothing about the books. Failure is why; empty: its process ended.
type Stored = db.VerificationsRow

// StoredReport is the report of a stored verification.
type StoredReport struct {
	Number     int64
	StartedBy  string
	FinishedAt time.Time
	Report
}

// Errors of Start: after Stop, and for an address that is not among Providers.
var (
	ErrStopped = errors.New("verification was stopped")
	ErrAddress = errors.New("no such provider")
)

// NewVerification returns a verification that does nothing until Start.
func NewVerification(pool Database, cfg VerificationConfig) *Verification {
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	v := &Verification{pool: pool, cfg: cfg}
	v.life, v.end = context.WithCancel(context.Background())
	return v
}

// Providers returns the addresses that Start can compare with: those of the newest comparisons, and those that are
// named. So a caller of Start can't have the service call any other. Errors: those of the database.
func (v *Verification) Providers(ctx context.Context) (addresses []string, err error) {
	if v.cfg.At == nil {
		return nil, nil
	}
	addresses, err = pg.Repeat(ctx, ctx, db.New(v.pool).VerificationProviders)
	if err == nil && v.cfg.Named != nil {
		var named []string
		named, err = v.cfg.Named(ctx)
		addresses = append(addresses, named...)
	}
	slices.Sort(addresses)
	return slices.Compact(addresses), err
}

// Start begins a verification on behalf of a principal, unless one is under way on any replica. It also compares the
// books with those at some addresses. Errors: ErrStopped, ErrAddress, and those of the database.
func (v *Verification) Start(ctx context.Context, by string, compare ...string) error {
	provider, err := v.providerAt(ctx, compare)
	if err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.life.Err() != nil {
		return ErrStopped
	}
	started, err := begin(ctx, v.pool, db.VerificationStartParams{StartedBy: by})
	if err == nil && started.number != 0 {
		v.running.Go(func() { v.run(started, provider) })
	}
	return err
}

func (v *Verification) providerAt(ctx context.Context, addresses []string) (*Provider, error) {
	if len(addresses) == 0 {
		return nil, nil
	}
	known, err := v.Providers(ctx)
	if err != nil {
		return nil, err
	}
	for _, address := range addresses {
		if !slices.Contains(known, address) {
			return nil, fmt.Errorf("%w: %s", ErrAddress, address)
		}
	}
	return v.cfg.At(ctx, addresses)
}

// Verdict sums up what is stored.
type Verdict = db.VerificationVerdictRow

// Verdict returns what the newest report and the newest comparisons say. Errors: those of the database.
func (v *Verification) Verdict(ctx context.Context) (Verdict, error) {
	return pg.Repeat(ctx, ctx, db.New(v.pool).VerificationVerdict)
}

// Stop ends a verification of this process, and waits for it. Start then returns ErrStopped.
func (v *Verification) Stop() {
	v.mu.Lock()
	v.end()
	v.mu.Unlock()
	v.running.Wait()
}

// List returns up to most stored verifications with smaller numbers than before, newest first. Errors: those of the
// database.
func (v *Verification) List(ctx context.Context, before int64, most int32) ([]Stored, error) {
	return read(ctx, db.New(v.pool).Verifications, db.VerificationsParams{Before: before, Most: most})
}

// Last returns the newest verification, or nil.
func (v *Verification) Last(ctx context.Context) (*Stored, error) {
	list, err := v.List(ctx, math.MaxInt64, 1)
	if len(list) == 0 {
		return nil, err
	}
	return &list[0], nil
}

// Report returns the report of a verification, with number 0 the newest report; nil: there is none. Errors: those of the
// database.
func (v *Verification) Report(ctx context.Context, number int64) (*StoredReport, error) {
	row, err := read(ctx, db.New(v.pool).VerificationReport, number)
	if err != nil {
		if errors.Is(err, pgx.ErrNoRows) {
			err = nil
		}
		return nil, err
	}
	found := &StoredReport{Number: row.Number, StartedBy: row.StartedBy, FinishedAt: *row.FinishedAt}
	return found, v.decode(ctx, row.Report, found)
}

// decode reads a stored report, and marks the orders that have changed since.
func (v *Verification) decode(ctx context.Context, text []byte, into *StoredReport) error {
	if err := json.Unmarshal(text, &into.Report); err != nil {
		return fmt.Errorf("decode report %d: %w", into.Number, err)
	}
	params := db.OrdersChangedSinceParams{Since: into.FinishedAt}
	for _, check := range into.Checks {
		for _, o := range check.Offenders {
			params.OrderIds = append(params.OrderIds, o.ID)
		}
	}
	if len(params.OrderIds) == 0 {
		return nil
	}
	changed, err := read(ctx, db.New(v.pool).OrdersChangedSince, params)
	for _, check := range into.Checks {
		for i := range check.Offenders {
			check.Offenders[i].Changed = slices.Contains(changed, check.Offenders[i].ID)
		}
	}
	return err
}

// Comparison is the newest comparison with some providers, and what it found at these.
type Comparison struct {
	Providers []string // see Provider.Compared; without those that a newer comparison is about, too
	StoredReport
}

// Comparisons returns the newest comparison with each provider, newest first, without money and orders. What is left of
// an older one is not returned if nothing was compared there. With an order, it returns those that found a violation of
// it, and nothing else of them. Errors: those of the database.
func (v *Verification) Comparisons(ctx context.Context, orderID string) (list []Comparison, err error) {
	rows, err := pg.Repeat(ctx, ctx, db.New(v.pool).VerificationComparisons)
	for _, row := range rows {
		c := Comparison{row.Providers, StoredReport{Number: row.Number, StartedBy: row.StartedBy, FinishedAt: *row.FinishedAt}}
		if err := v.decode(ctx, row.Report, &c.StoredReport); err != nil {
			return nil, err
		}
		if c.narrow(orderID) {
			list = append(list, c)
		}
	}
	return list, err
}

// narrow leaves what is about its providers, and about an order if one is given, and reports whether something is left.
func (c *Comparison) narrow(orderID string) bool {
	elsewhere := func(provider string) bool { return provider != "" && !slices.Contains(c.Providers, provider) }
	c.Differ = slices.DeleteFunc(c.Differ, elsewhere)
	c.Steps = slices.DeleteFunc(c.Steps, func(s VerificationStep) bool { return elsewhere(s.Provider) })
	for i := range c.Checks {
		check, named := &c.Checks[i], len(c.Checks[i].Offenders)
		check.Offenders = slices.DeleteFunc(check.Offenders, func(o VerificationOffender) bool {
			return elsewhere(o.Provider) || orderID != "" && o.ID != orderID
		})
		if left := len(check.Offenders); left < named {
			check.Violations, check.Money = int64(left), nil // they are of others, too
		}
	}
	c.Checks = slices.DeleteFunc(c.Checks, func(check VerificationCheck) bool {
		return !check.OfProvider() || check.Violations == 0 || orderID != "" && check.Name == unsettled
	})
	if orderID != "" {
		return len(c.Checks) > 0
	}
	return len(c.Providers) == len(c.Compared) || len(c.Differ) > 0 || slices.ContainsFunc(c.Steps, func(s VerificationStep) bool { return s.Compared > 0 })
}

func (v *Verification) run(started *storing, provider *Provider) {
	options := v.cfg.Options
	options.Background, options.Provider = true, provider
	report, err := started.verify(v.life, options)
	if !report.OK() {
		v.cfg.Log.Error("the books are wrong", "checks", report.Wrong())
	} else if err == nil {
		v.cfg.Log.Info("the books are right", "seconds", report.Seconds)
	}
	if err != nil && v.life.Err() == nil {
		v.cfg.Log.Error("verify books", "error", err)
	}
}

// VerifyAndStore is Verify, and stores its report, beside those of other processes. The role needs the privileges of the
// service.
func VerifyAndStore(ctx context.Context, pool Database, by string, opt Options) (Report, error) {
	started, err := begin(ctx, pool, db.VerificationStartParams{StartedBy: by, Beside: true})
	if err != nil {
		return Report{}, err
	}
	return started.verify(ctx, opt)
}

// storing is a verification that is under way.
type storing struct {
	pool   Database
	number int64

	mu          sync.Mutex // guards:
	done, total int64
}

func begin(ctx context.Context, pool Database, params db.VerificationStartParams) (*storing, error) {
	number, err := db.New(pool).VerificationStart(ctx, params)
	if err != nil {
		return nil, fmt.Errorf("store verification: %w", err)
	}
	return &storing{pool: pool, number: number}, nil
}

const (
	storeEvery = time.Second
	storeLimit = 5 * time.Second
)

// verify runs Verify. It stores the end even if ctx has ended, unless the database is away for long.
func (s *storing) verify(ctx context.Context, opt Options) (Report, error) {
	told := opt.Progress
	opt.Progress = func(done, total int64) {
		s.mu.Lock()
		s.done, s.total = done, total
		s.mu.Unlock()
		if told != nil {
			told(done, total)
		}
	}
	telling, stop := context.WithCancel(ctx)
	var teller sync.WaitGroup
	teller.Go(func() { s.tell(telling) })
	report, err := Verify(ctx, s.pool, opt)
	stop()
	teller.Wait()
	params := db.VerificationFinishParams{Number: s.number, Done: s.done, Total: s.total, Wrong: report.Wrong(), Compared: report.Compared, Differ: report.Differ, Others: report.Others}
	if report.Checks != nil { // also if a provider could not be reached
		text, _ := json.Marshal(report) //nolint:errchkjson // strings and numbers
		params.Report = db.Optional(string(text))
	}
	if err != nil {
		params.Failure = db.Optional(err.Error())
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeLimit)
	defer cancel()
	_, stored := pg.Repeat(ctx, ctx, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, db.New(s.pool).VerificationFinish(ctx, params)
	})
	if stored != nil {
		err = errors.Join(err, fmt.Errorf("store report: %w", stored))
	}
	return report, err
}

// tell stores every second how far the verification is, which also shows that it is under way. It may have to wait for
// the one connection of the pool.
func (s *storing) tell(ctx context.Context) {
	tick := time.NewTicker(storeEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s.mu.Lock()
		params := db.VerificationProgressParams{Number: s.number, Done: s.done, Total: s.total}
		s.mu.Unlock()
		_ = db.New(s.pool).VerificationProgress(ctx, params)
	}
}
