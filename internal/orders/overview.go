package orders

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/singleflight"

	"pawl/db"
	"pawl/fsm"
	"pawl/internal/pg"
)

const (
	// CountsMost is where the counts of Waiting and Overview stop.
	CountsMost = 10_000
	// FirstMost is where counts stop that look at each order, while a caller waits for them. The orders of lost replicas
	// are never counted further.
	FirstMost = 1000
	// OldestMost is how many of the oldest orders of each hold Waiting reads to find the longest wait.
	OldestMost = 100
)

// Backlog is what one replica knows about unfinished orders and no statement can cheaply find.
type Backlog struct {
	At      time.Time     // by the clock of the database
	Oldest  int64         // number of the oldest order that was overdue or that the replica drives; 0: none
	Overdue time.Duration // how long the most overdue order had been due when the replica last looked at all of them; 0: none
	Pooled  bool          // a pooler shares its connections, so that a replica is not known by its own
}

// Waiting counts the work that waits in the database, for all replicas together. Each number goes up to CountsMost.
type Waiting struct {
	Held                  map[string]Held // by hold, also those that no order has
	Overdue               time.Duration   // as in Backlog
	Unfinished            time.Duration   // age of the oldest order that is held, overdue, or driven by this replica; 0: none
	LateUndos             int64           // effects that were reported too late and are not undone yet
	ChargeOperations      int64           // refunds, captures and voids that are neither done nor failed
	OldestChargeOperation time.Duration   // age of the oldest of them that its provider has not accepted; 0: none

	Authorizations int64 // that are about to end, or should have ended, with something that is neither captured nor voided
}

// Held counts the orders with one hold.
type Held struct {
	Orders  int64
	Longest time.Duration // the longest wait among the OldestMost oldest orders
}

// Waiting asks the database. Errors: ErrUnavailable.
func (r *Reader) Waiting(ctx context.Context, b Backlog) (w Waiting, err error) {
	held, err := Read(ctx, r, r.query.OrdersHeldStats, db.OrdersHeldStatsParams{Most: CountsMost, Oldest: OldestMost})
	if err != nil {
		return w, Unavailable("count held orders", err)
	}
	open, err := Read(ctx, r, r.query.OpenWork, db.OpenWorkParams{OrderNo: b.Oldest, Most: CountsMost})
	if err != nil {
		return w, Unavailable("count open work", err)
	}
	w = Waiting{Held: map[string]Held{}, Overdue: b.Overdue, LateUndos: open.LateUndos, Authorizations: open.Authorizations,
		ChargeOperations: open.ChargeOperations, OldestChargeOperation: seconds(open.OldestChargeOperation)}
	oldest := open.OldestOrder
	for _, row := range held {
		w.Held[row.Hold] = Held{Orders: row.Orders, Longest: seconds(row.Longest)}
		oldest = max(oldest, row.Oldest)
	}
	w.Unfinished = seconds(oldest)
	return w, nil
}

func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }

// Overview describes all replicas together. Each number goes up to CountsMost.
type Overview struct {
	At time.Time
	Waiting
	Statuses []StatusCount // one for each state, in their order
	Oldest   *OldestOrder  // that has not ended; nil: none, or one that a crash may take back
	Replicas []Replica     // by name
	Lost     []LostReplica // that reported within an hour, did not end in order, and were not replaced or have orders
	Disputes []Disputed    // that are neither won nor lost, up to CountsMost

	Operations []WaitingOperations
	Groups     []HeldGroup // of the oldest orders of each hold; the one with the oldest order first
	Grouped    int64       // how many of each hold are in Groups and Statuses at most

	OrdersPerSecond float64        // that the replicas finish
	Steps           []ProviderStep // that the replicas have made calls for lately; by policy, step and route
	Ended           []Outage       // within an hour, of steps that do not fail now; the last one first
}

// HeldGroup counts held orders that wait for the same.
type HeldGroup struct {
	Status          fsm.State
	Hold            string
	Reason          string // of those held for attention, up to a colon
	Route, Currency string
	Trying          bool // the retry is under way, so that they are not held now
	Orders          int64
	Amount          string // of all of them; a decimal with the fraction digits of the currency
	Oldest          time.Time
	TriedSince      time.Time // when the first of them with an answer that counts as a retry was tried first; zero: none has one
}

// RetriedAt reports whether the orders are retried at a step.
func (g *HeldGroup) RetriedAt(step fsm.Step, route string) bool {
	return g.Hold == fsm.HoldRetry && g.Status.Step() == step && g.Route == route
}

// Disputed are the open disputes in a currency.
type Disputed = db.DisputesOpenRow

// WaitingOperations counts charge operations of a kind that several calls have not done.
type WaitingOperations = db.ChargeOperationsWaitingRow

// ProviderStep is a step that a provider does under a policy, or one route of its charge, in one replica or in all.
// The tags are those of a report in the database.
type ProviderStep struct {
	Policy       int32      `json:"policy"`
	Step         fsm.Step   `json:"step"`
	Route        string     `json:"route,omitempty"`        // of a charge with several; otherwise empty
	InFlight     int        `json:"inFlight"`               // calls under way or about to begin
	Queued       int        `json:"queued"`                 // orders that wait for a call
	Breaker      string     `json:"breaker"`                // one of BreakerStates; in all replicas: the worst
	FailingSince *time.Time `json:"failingSince,omitempty"` // when the first of the calls failed that have failed in a row; nil: they do not fail
	Host         string     `json:"host,omitempty"`         // that is called, with the port if the policy names one
	FailedAt     *time.Time `json:"failedAt,omitempty"`     // when the last call failed, if none has been answered since
	Failure      string     `json:"failure,omitempty"`      // its code, after the one of most failed calls since FailingSince
	WorkedAt     *time.Time `json:"workedAt,omitempty"`     // when the last call was answered, in one replica; nil: it was not

	Budget time.Duration `json:"budget"` // of its retries
}

// Outage is a time during which a provider failed at a step, or at one route of its charge, as one replica saw it or all
// did; or one during which replicas took over the orders of another one. The tags are those of a report in the database.
type Outage struct {
	Replica string    `json:"replica,omitempty"` // whose orders were taken over, in a report its owner; empty: a provider failed
	Step    fsm.Step  `json:"step,omitempty"`
	Route   string    `json:"route,omitempty"`
	Host    string    `json:"host,omitempty"`
	Failure string    `json:"failure,omitempty"` // the code of most failed calls
	Since   time.Time `json:"since"`
	Until   time.Time `json:"until"`
	Orders  []int64   `json:"orders"` // that waited or were taken over; CountsMost or more: there may be others

	Steps    []string `json:"-"` // with the route
	failures []string // at each of them

	Outcomes `json:"-"`
}

// Outcomes counts what became of Waited orders. Held: for a person. The rest goes on.
type Outcomes = db.OrdersByOutcomeRow

// BreakerStates are the states of a circuit breaker, the best first.
var BreakerStates = []string{"closed", "half_open", "open"}

// StatusCount is how many orders are in a state.
type StatusCount struct {
	Status fsm.State
	Orders int64
	More   bool // there may be more
}

// OldestOrder is an unfinished order. Hold is nil while a replica drives it.
type OldestOrder struct {
	OrderID   string
	Status    fsm.State
	Hold      *string
	CreatedAt time.Time
}

// Replica is a running service on the same database, known by the name of its connections.
type Replica struct {
	Name        string
	Connections int64
	Since       *time.Time // of its first report; nil: it has none yet
}

// LostReplica reported something, and then neither that it stops nor anything else.
type LostReplica struct {
	Name string
	At   time.Time // when it reported last

	Orders int64     // that it drove, and no other replica has taken over
	Until  time.Time // when the lease of the last of them ends

	TakenOver Outcomes

	owner    uuid.UUID
	since    time.Time // of its first report
	replaced bool
}

// lateAfter is the age of the last report at which a replica without connections is lost. Replicas report every two
// seconds. Behind a pooler, it is three times as long.
const lateAfter = 2500 * time.Millisecond

// OutagesFor is how long an outage that is over is shown.
const OutagesFor = time.Hour

// Overview asks the database at most once a second for all callers. Errors: ErrUnavailable.
func (r *Reader) Overview(ctx context.Context, b Backlog) (Overview, error) {
	return r.overview.get(ctx, r.later, func(ctx context.Context, most int32) (v Overview, cut bool, err error) {
		v, err = r.readOverview(ctx, b, most)
		return v, slices.ContainsFunc(v.Statuses, func(c StatusCount) bool { return c.More && c.Orders < CountsMost }), err
	})
}

// readOverview looks at as many orders of each hold, and of those that are driven.
func (r *Reader) readOverview(ctx context.Context, b Backlog, most int32) (v Overview, err error) {
	if v.Waiting, err = r.Waiting(ctx, b); err != nil {
		return v, err
	}
	counts := map[fsm.State]StatusCount{}
	if err := r.countUnfinished(ctx, &v, counts, most); err != nil {
		return v, Unavailable("count unfinished orders", err)
	}
	if err := r.countEnded(ctx, counts, most); err != nil {
		return v, Unavailable("count orders that have ended", err)
	}
	for _, state := range fsm.States() {
		count := counts[state]
		count.Status = state
		v.Statuses = append(v.Statuses, count)
	}
	late := lateAfter
	if b.Pooled {
		late *= 3
	}
	reports, err := Read(ctx, r, r.query.ReplicaReports, db.ReplicaReportsParams{LateSeconds: late.Seconds(), Most: FirstMost})
	var replicas []db.ServerReplicasRow
	if err == nil { // after the reports: whoever has reported is connected
		replicas, err = Read(ctx, r, r.query.ServerReplicas, pg.ServiceName)
	}
	for _, row := range replicas {
		v.Replicas = append(v.Replicas, Replica{strings.TrimSpace(strings.TrimPrefix(row.Name, pg.ServiceName)), row.Connections, nil})
	}
	if err == nil {
		v.Disputes, err = Read(ctx, r, r.query.DisputesOpen, CountsMost)
	}
	if err == nil {
		v.Operations, err = Read(ctx, r, r.query.ChargeOperationsWaiting, CountsMost)
	}
	v.At = b.At
	if err == nil {
		err = v.addReports(reports)
	}
	if err == nil {
		err = r.followOutages(ctx, &v)
	}
	return v, Unavailable("list replicas", err)
}

// addReports adds up what the replicas have reported.
func (v *Overview) addReports(rows []db.ReplicaReportsRow) error {
	for _, row := range rows {
		var ended []Outage
		var steps []ProviderStep
		if err := errors.Join(json.Unmarshal(row.Outages, &ended), json.Unmarshal(row.Steps, &steps)); err != nil {
			return fmt.Errorf("read report of a replica: %w", err)
		}
		v.Ended = append(v.Ended, ended...)
		if row.Name == "" {
			continue
		}
		connected := slices.IndexFunc(v.Replicas, func(c Replica) bool { return strings.HasPrefix(c.Name+" ", row.Name+" ") })
		if connected >= 0 {
			v.Replicas[connected].Since = &row.Since // of processes with the same name, that of the last
		} else if !row.Late { // it may have been killed
			v.Replicas = append(v.Replicas, Replica{Name: row.Name, Since: &row.Since})
		}
		if row.Late && connected < 0 {
			v.Lost = append(v.Lost, LostReplica{Name: row.Name, At: row.At, Orders: row.Orders, Until: row.Until, owner: row.Owner, since: row.Since})
		} else if !row.Silent {
			v.OrdersPerSecond += row.OrdersPerSecond
			for _, step := range steps {
				v.Steps = addStep(v.Steps, step)
			}
		}
	}
	markReplaced(v.Lost, rows)
	for i := range v.Steps {
		v.Steps[i].forget()
	}
	v.Ended = joined(slices.DeleteFunc(v.Ended, func(o Outage) bool { return v.At.Sub(o.Until) >= OutagesFor || v.goesOn(&o) }))
	slices.SortFunc(v.Steps, func(a, b ProviderStep) int {
		return cmp.Or(cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Step, b.Step), cmp.Compare(a.Route, b.Route))
	})
	return nil
}

// overlap is how long before the last report of a replica the one in its place may have started, as in a rolling update.
const overlap = time.Minute

// markReplaced marks the lost replicas of which no order waits to be taken over, and in whose place a younger one has started,
// whether or not that was lost as well. Each replica replaces one.
func markReplaced(lost []LostReplica, successors []db.ReplicaReportsRow) {
	slices.SortFunc(lost, func(a, b LostReplica) int { return b.At.Compare(a.At) }) // the last has the fewest successors
	for n := range lost {
		l := &lost[n]
		i := slices.IndexFunc(successors, func(s db.ReplicaReportsRow) bool { return s.Since.After(l.since) && s.Since.After(l.At.Add(-overlap)) })
		if i >= 0 {
			successors = slices.Delete(successors, i, i+1)
		}
		l.replaced = i >= 0 && l.Orders == 0
	}
}

// addStep adds the step of a replica to the sum of the replicas before.
func addStep(sum []ProviderStep, step ProviderStep) []ProviderStep {
	i := slices.IndexFunc(sum, func(s ProviderStep) bool {
		return s.Policy == step.Policy && s.Step == step.Step && s.Route == step.Route
	})
	if i < 0 {
		return append(sum, step)
	}
	s := &sum[i]
	s.InFlight += step.InFlight
	s.Queued += step.Queued
	if slices.Index(BreakerStates, step.Breaker) > slices.Index(BreakerStates, s.Breaker) {
		s.Breaker = step.Breaker
	}
	if s.FailingSince == nil || step.FailingSince != nil && step.FailingSince.Before(*s.FailingSince) {
		s.FailingSince = step.FailingSince
	}
	if s.FailedAt == nil || step.FailedAt != nil && step.FailedAt.After(*s.FailedAt) {
		s.FailedAt, s.Failure = step.FailedAt, step.Failure
	}
	if s.WorkedAt == nil || step.WorkedAt != nil && step.WorkedAt.After(*s.WorkedAt) {
		s.WorkedAt = step.WorkedAt
	}
	return sum
}

// forget drops failures after which a call worked at another replica, unless the circuit breaker is open.
func (s *ProviderStep) forget() {
	if s.FailedAt != nil && s.WorkedAt != nil && s.WorkedAt.After(*s.FailedAt) && s.Breaker != "open" {
		s.FailingSince, s.FailedAt, s.Failure = nil, nil, ""
	}
}

// goesOn reports whether calls of a step still fail at a replica, so that an outage is not over.
func (v *Overview) goesOn(o *Outage) bool {
	return slices.ContainsFunc(v.Steps, func(s ProviderStep) bool {
		return s.Step == o.Step && s.Route == o.Route && s.FailingSince != nil && s.FailingSince.Before(o.Until)
	})
}

// joined joins what replicas saw of a step or of a host in one time, or took over from one replica: the same orders
// waited at several of them. The last outage comes first.
func joined(parts []Outage) (all []Outage) {
	slices.SortFunc(parts, func(a, b Outage) int { return b.Until.Compare(a.Until) })
	for _, one := range parts {
		step := strings.TrimSpace(string(one.Step) + " " + one.Route)
		at := slices.IndexFunc(all, func(o Outage) bool {
			return o.Replica == one.Replica && (o.Replica != "" || !one.Until.Before(o.Since) && (slices.Contains(o.Steps, step) || o.Host != "" && o.Host == one.Host))
		})
		if at < 0 {
			at, all = len(all), append(all, one)
		}
		o := &all[at]
		if one.Since.Before(o.Since) {
			o.Since = one.Since
		}
		o.Orders = slices.Concat(o.Orders, one.Orders)
		slices.Sort(o.Orders)
		o.Orders = slices.Compact(o.Orders)
		if !slices.Contains(o.Steps, step) { // the last cause of each counts
			o.Steps, o.failures = append(o.Steps, step), append(o.failures, step+": "+one.Failure)
			if one.Failure != o.Failure {
				o.Failure = strings.Join(o.failures, "; ")
			}
		}
	}
	return all
}

// followOutages counts what became of the orders that waited or were taken over. An outage of which none has completed
// is left out: others' calls may succeed while theirs still fail.
func (r *Reader) followOutages(ctx context.Context, v *Overview) error {
	var waited db.OrdersByOutcomeParams
	for i, o := range v.Ended {
		waited.OrderNos = append(waited.OrderNos, o.Orders...)
		waited.Ofs = append(waited.Ofs, slices.Repeat([]int32{int32(i)}, len(o.Orders))...)
	}
	rows, err := Read(ctx, r, r.query.OrdersByOutcome, waited)
	for _, row := range rows {
		v.Ended[row.Of].Outcomes = row
	}
	v.Ended = slices.DeleteFunc(v.Ended, func(o Outage) bool { return o.Replica == "" && o.Waited > 0 && o.Completed == 0 })
	v.placeTakeOvers()
	return err
}

// placeTakeOvers gives the counts of orders that were taken over to the lost replica that drove them. Once another replica
// is in its place, they are an outage that has ended. Orders that were taken over from a slow replica are not told.
func (v *Overview) placeTakeOvers() {
	ended := v.Ended[:0]
	for _, o := range v.Ended {
		i := slices.IndexFunc(v.Lost, func(l LostReplica) bool { return l.owner.String() == o.Replica })
		if i >= 0 {
			v.Lost[i].TakenOver = o.Outcomes
			o.Replica, o.Since, o.Steps = v.Lost[i].Name, v.Lost[i].At, []string{}
		}
		if o.Replica == "" || i >= 0 && v.Lost[i].replaced {
			ended = append(ended, o)
		}
	}
	v.Ended, v.Lost = ended, slices.DeleteFunc(v.Lost, func(l LostReplica) bool { return l.replaced })
}

func (r *Reader) countUnfinished(ctx context.Context, v *Overview, counts map[fsm.State]StatusCount, most int32) error {
	v.Grouped = int64(most)
	rows, err := Read(ctx, r, r.query.OrdersUnfinished, most)
	if err != nil {
		return err
	}
	v.countHeld(rows)
	if len(rows) == 0 {
		return nil
	}
	if oldest := rows[0]; oldest.Hold != nil || r.settles(ctx, oldest.OrderID) {
		v.Oldest = &OldestOrder{oldest.OrderID, oldest.Status, oldest.Hold, oldest.CreatedAt}
	}
	cut := false // orders were left out, of any unfinished state
	for _, row := range rows {
		counts[row.Status] = StatusCount{Orders: min(counts[row.Status].Orders+row.Orders, CountsMost)}
		cut = cut || row.DrivenCut
		if row.Hold != nil || row.Again {
			hold := fsm.HoldRetry
			if row.Hold != nil {
				hold = *row.Hold
			}
			cut = cut || v.MoreThanGrouped(hold)
			v.Groups = append(v.Groups, HeldGroup{row.Status, hold, row.Reason, row.Route, row.Currency, row.Again, row.Orders, row.Amount, row.CreatedAt, row.TriedSince})
		}
	}
	for _, state := range fsm.States() {
		if count := counts[state]; !state.Final() {
			count.More = cut || count.Orders == CountsMost
			counts[state] = count
		}
	}
	return nil
}

// countHeld has all numbers of a hold be of one statement, unless it has more orders than that looked at.
func (v *Overview) countHeld(rows []db.OrdersUnfinishedRow) {
	grouped := map[string]int64{}
	for _, row := range rows {
		if row.Hold != nil {
			grouped[*row.Hold] += row.Orders
		}
	}
	for hold, held := range v.Held {
		if held.Orders = grouped[hold]; held.Orders < v.Grouped {
			v.Held[hold] = held
		}
	}
}

// MoreThanGrouped reports whether there may be more orders with a hold than in its groups.
func (v *Overview) MoreThanGrouped(hold string) bool { return v.Held[hold].Orders >= v.Grouped }

// settles reports whether an order that was seen is soon durable, with all that was seen of it.
func (r *Reader) settles(ctx context.Context, orderID string) bool {
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	_, err := r.GetDurable(ctx, orderID)
	return err == nil
}

// settleLimit is short: while a standby is away, people need the overview most.
const settleLimit = 200 * time.Millisecond

// countEnded looks for completed orders among twice as many of the newest, unless it has found CountsMost within the
// last hour.
func (r *Reader) countEnded(ctx context.Context, counts map[fsm.State]StatusCount, most int32) error {
	p := db.OrdersEndedParams{Most: CountsMost}
	many := time.Now().Unix() < r.manyCompleted.Load()
	if !many {
		p.Newest = 2 * most
	}
	row, err := Read(ctx, r, r.query.OrdersEnded, p)
	if err != nil {
		return err
	}
	if many || row.Completed >= CountsMost {
		if !many {
			r.manyCompleted.Store(time.Now().Add(time.Hour).Unix())
		}
		row.Completed = CountsMost
	}
	all := row.Completed + row.Failed + row.Canceled
	counts[fsm.Failed] = StatusCount{Orders: row.Failed, More: row.Failed >= CountsMost}
	counts[fsm.Canceled] = StatusCount{Orders: row.Canceled, More: row.Canceled >= CountsMost}
	counts[fsm.Completed] = StatusCount{Orders: row.Completed, More: all >= int64(most)}
	return nil
}

// shared is a read whose result serves all callers for a while, so that many viewers of a large database cost a replica
// little. Nobody waits for one that takes long: a caller gets the last result, as long as it is not too old, or one that
// counts less far, and meanwhile it is read.
type shared[T any] struct {
	reads singleflight.Group
	last  atomic.Pointer[result[T]]
}

// reading reads a value whose counts stop at a number. cut: at least one did.
type reading[T any] func(ctx context.Context, most int32) (value T, cut bool, err error)

type result[T any] struct {
	value        T
	until, stale time.Time // it is good until then; then it is given to callers while it is read again, and later not at all
}

const (
	sharedFor   = time.Second             // how long a result is good, at least
	sharedTimes = 50                      // and this many times as long as the read took
	sharedMost  = 2500 * time.Millisecond // but no longer, even if the machine is busy
	sharedSlow  = 50 * time.Millisecond   // a read that nobody is to wait for: its result may be twice as old
	sharedLimit = 10 * time.Second        // how long a read may take
)

// get returns the last result while it is good, or reads. A caller that leaves does not end the read for the others.
// later does something in the background.
func (s *shared[T]) get(ctx context.Context, later func(func()), read reading[T]) (T, error) {
	last, now := s.last.Load(), time.Now()
	if last == nil || !now.Before(last.stale) {
		most := int32(CountsMost)
		if last == nil || last.slow() {
			most = FirstMost
		}
		var err error
		if last, err = s.again(ctx, read, most); err != nil {
			var none T
			return none, err
		}
	}
	if !now.Before(last.until) {
		later(func() { _, _ = s.again(ctx, read, CountsMost) }) // after an error, the last result becomes too old
	}
	return last.value, nil
}

// slow reports whether nobody is to wait until it is read again.
func (r *result[T]) slow() bool { return r.stale.After(r.until) }

// again reads, unless another read is under way or has just ended. A result that is cut is good for nobody else if one
// that counts further is possible.
func (s *shared[T]) again(ctx context.Context, read reading[T], most int32) (*result[T], error) {
	found, err, _ := s.reads.Do(strconv.Itoa(int(most)), func() (any, error) {
		if last := s.last.Load(); last != nil && time.Now().Before(last.until) {
			return last, nil
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sharedLimit)
		defer cancel()
		began := time.Now()
		value, cut, err := read(ctx, most)
		if err != nil {
			return nil, err
		}
		now, took := time.Now(), time.Since(began)
		good := min(max(sharedFor, sharedTimes*took), sharedMost)
		last := &result[T]{value, now.Add(good), now.Add(good)}
		switch {
		case cut && most < CountsMost:
			last.until = time.Time{}
		case took > sharedSlow:
			last.stale = now.Add(2 * good)
		}
		s.last.Store(last)
		return last, nil
	})
	last, _ := found.(*result[T])
	return last, err
}
