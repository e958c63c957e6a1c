package webhooks

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"pawl/db"
	"pawl/internal/egress"
	"pawl/internal/events"
	"pawl/internal/orders"
	"pawl/internal/pg"
	"pawl/internal/signing"
)

// MostEndpoints is how many endpoints there may be: each has a part of the requests that a replica makes at one time.
const MostEndpoints = 64

// idPrefix stands before the number of an endpoint.
const idPrefix = "whe_"

// EndpointID is the id of an endpoint by its number.
func EndpointID(endpointNo int32) string { return idPrefix + strconv.Itoa(int(endpointNo)) }

// numberOf is the number of an endpoint by its id; 0: no endpoint has such an id.
func numberOf(id string) int32 {
	digits, ok := strings.CutPrefix(id, idPrefix)
	n, err := strconv.ParseInt(digits, 10, 32)
	if !ok || err != nil || n <= 0 || EndpointID(int32(n)) != id {
		return 0
	}
	return int32(n)
}

// The states of an endpoint. A deleted one is kept, but not shown, until its deliveries are removed.
const (
	Enabled  = "enabled"
	Disabled = "disabled"
	Deleted  = "deleted"
)

// The states of a delivery.
const (
	Pending   = "pending"   // it is due at a time, or waits for the one before it of its subject
	Delivered = "delivered" // an attempt was answered with 2xx
	Exhausted = "exhausted" // all attempts failed: it holds back its subject until a person acts
	Skipped   = "skipped"   // a person has given it up
)

// Entry is one attempt in the log of a delivery (db.WebhookDelivery.Log, a JSON array, oldest first).
type Entry struct {
	At        time.Time `json:"at"`
	Status    int       `json:"status,omitempty"`    // of the HTTP answer; 0: there was none
	LatencyMs int64     `json:"latencyMs,omitempty"` // until the answer was there
	Answer    string    `json:"answer,omitempty"`    // its beginning, up to 1 KiB
	Error     string    `json:"error,omitempty"`     // why there was no answer
}

const orderPrefix, itemPrefix = "order ", "item "

// OrderSubject is what the events of an order are kept in order for.
func OrderSubject(orderNo int64) string { return orderPrefix + strconv.FormatInt(orderNo, 10) }

// ItemSubject is what the events of an item are kept in order for.
func ItemSubject(item string) string { return itemPrefix + item }

// secretsOf are the secrets that what is sent to an endpoint is signed with at a time: two while one replaces the other.
func secretsOf(e *db.WebhookEndpoint, now time.Time) []string {
	secrets := []string{e.Secret}
	if e.PreviousSecret != nil && e.PreviousSecretUntil != nil && now.Before(*e.PreviousSecretUntil) {
		secrets = append(secrets, *e.PreviousSecret)
	}
	return secrets
}

// ErrTooMany: there are as many endpoints as there may be.
var ErrTooMany = errors.New("there are as many webhook endpoints as there may be")

// Endpoints is what people see and change of endpoints and their deliveries. Its methods are safe for concurrent use. All may
// return orders.ErrUnavailable, and all that name an endpoint or a delivery orders.ErrNotFound.
type Endpoints struct {
	query   *db.Queries
	reader  *orders.Reader
	options Options
}

// Options are what Endpoints is told.
type Options struct {
	Private bool                                         // endpoints may be on this machine and in private networks
	Latest  func(context.Context) (events.Cursor, error) // the end of the feed
	Now     func() time.Time                             // the time of the database
}

// NewEndpoints returns the endpoints of the database that the queries go to.
func NewEndpoints(query *db.Queries, reader *orders.Reader, o Options) *Endpoints {
	return &Endpoints{query, reader, o}
}

// Spec is what people say of an endpoint.
type Spec struct {
	URL, Description string
	Types            []string // of the events that it wants: exact ones, or order.*; none: all
}

// Create makes an endpoint for the events from now on. Its secret is in the answer, also when the request comes again, until
// another one takes its place. Errors: *AddressRefused, ErrTooMany, orders.ErrKeyReused.
func (s *Endpoints) Create(ctx context.Context, want Spec, by By) (db.WebhookEndpoint, error) {
	if err := s.checkAddress(ctx, want.URL); err != nil {
		return db.WebhookEndpoint{}, err
	}
	latest, err := s.options.Latest(ctx)
	if err != nil {
		return db.WebhookEndpoint{}, err
	}
	room := func() (none db.WebhookEndpoint, err error) {
		all, err := s.List(ctx)
		if err == nil && len(all) >= MostEndpoints {
			err = ErrTooMany
		}
		return none, err
	}
	r := requestFor(by, room, "create", want)
	made, before, err := once(ctx, s, r, func(db.WebhookEndpoint) (db.WebhookEndpoint, error) {
		made, err := s.query.WebhookEndpointCreate(ctx, db.WebhookEndpointCreateParams{
			Actor: r.Actor, OnBehalfOf: db.Optional(r.OnBehalfOf), Reason: db.Optional(r.Reason), RequestID: r.RequestID, Fingerprint: r.fingerprint,
			Most: MostEndpoints, Url: want.URL, Description: db.Optional(want.Description), Types: listOf(want.Types),
			Secret: signing.NewSecret(), EventNo: latest.No,
		})
		return db.WebhookEndpoint(made), err
	})
	return s.answer(ctx, made, before, err)
}

// At names an endpoint and the version that it must still be at; nil: any.
type At struct {
	ID      string
	Version *int32
}

// Change has an endpoint be what is said, if it is still at the version. What was not sent yet goes to the new
// URL. Errors: *AddressRefused, orders.ErrPrecondition, orders.ErrKeyReused.
func (s *Endpoints) Change(ctx context.Context, at At, want Spec, by By) (db.WebhookEndpoint, error) {
	if err := s.checkAddress(ctx, want.URL); err != nil {
		return db.WebhookEndpoint{}, err
	}
	return s.change(ctx, at, by, db.WebhookEndpointChangeParams{
		Verb: "changed", Url: &want.URL, Description: db.Optional(want.Description), Types: listOf(want.Types),
	})
}

// Stop disables an endpoint, or deletes it (state), if it is still at the version. Errors: orders.ErrPrecondition,
// orders.ErrKeyReused.
func (s *Endpoints) Stop(ctx context.Context, at At, state string, by By) (db.WebhookEndpoint, error) {
	return s.change(ctx, at, by, db.WebhookEndpointChangeParams{Verb: state})
}

// RotateSecret gives an endpoint another secret, which is in the answer. Deliveries are signed with the one before, too, as long
// as overlap says. Errors: orders.ErrKeyReused.
func (s *Endpoints) RotateSecret(ctx context.Context, id string, overlap time.Duration, by By) (db.WebhookEndpoint, error) {
	return s.change(ctx, At{ID: id}, by, db.WebhookEndpointChangeParams{
		Verb: "secret_rotated", Secret: new(signing.NewSecret()), OverlapSeconds: overlap.Seconds(),
	})
}

// Enable has events sent to an endpoint again: from where it stood, or past all events until now. Errors: orders.ErrKeyReused.
func (s *Endpoints) Enable(ctx context.Context, id string, fromNow bool, by By) (db.WebhookEndpoint, error) {
	latest, err := s.options.Latest(ctx)
	if err != nil {
		return db.WebhookEndpoint{}, err
	}
	return s.change(ctx, At{ID: id}, by, db.WebhookEndpointChangeParams{Verb: Enabled, FromNow: fromNow, EventNo: latest.No})
}

func (s *Endpoints) change(ctx context.Context, at At, by By, p db.WebhookEndpointChangeParams) (db.WebhookEndpoint, error) {
	r := requestFor(by, s.look(ctx, at), at.ID, p.Verb, p.Url, p.Description, p.Types, p.OverlapSeconds, p.FromNow)
	changed, before, err := once(ctx, s, r, func(now db.WebhookEndpoint) (db.WebhookEndpoint, error) {
		p.Actor, p.OnBehalfOf, p.Reason = r.Actor, db.Optional(r.OnBehalfOf), db.Optional(r.Reason)
		p.RequestID, p.Fingerprint, p.EndpointNo, p.Seq, p.Version = r.RequestID, r.fingerprint, now.EndpointNo, now.Seq, now.Version
		return s.query.WebhookEndpointChange(ctx, p)
	})
	if before != nil && p.Verb == Deleted {
		return db.WebhookEndpoint{}, nil
	}
	changed, err = s.answer(ctx, changed, before, err)
	if p.Secret == nil {
		return shown(changed, err)
	}
	return changed, err
}

// look returns a function that reads an endpoint, if it is at the version.
func (s *Endpoints) look(ctx context.Context, at At) func() (db.WebhookEndpoint, error) {
	return func() (db.WebhookEndpoint, error) {
		now, err := s.endpoint(ctx, numberOf(at.ID))
		if err == nil && at.Version != nil && now.Version != *at.Version {
			err = orders.ErrPrecondition
		}
		return now, err
	}
}

// answer is the endpoint after a change, or as it is now if the change was made before: then it has its secret only where that
// change has made it.
func (s *Endpoints) answer(ctx context.Context, now db.WebhookEndpoint, before *db.WebhookChangeByRequestRow, err error) (db.WebhookEndpoint, error) {
	if err != nil {
		return db.WebhookEndpoint{}, err
	}
	if before == nil {
		return now, nil
	}
	now, err = s.endpoint(ctx, before.EndpointNo)
	if !before.MadeTheSecret {
		return shown(now, err)
	}
	return now, err
}

// List returns all endpoints, without their secrets.
func (s *Endpoints) List(ctx context.Context) ([]db.WebhookEndpoint, error) {
	rows, err := orders.Read(ctx, s.reader, func(ctx context.Context, _ struct{}) ([]db.WebhookEndpoint, error) {
		return s.query.WebhookEndpointsList(ctx)
	}, struct{}{})
	for i := range rows {
		rows[i], _ = shown(rows[i], nil)
	}
	return rows, orders.Unavailable("list webhook endpoints", err)
}

// Get returns an endpoint, without its secrets.
func (s *Endpoints) Get(ctx context.Context, id string) (db.WebhookEndpoint, error) {
	return shown(s.endpoint(ctx, numberOf(id)))
}

// endpoint reads an endpoint with its secrets. Number 0 is that of none.
func (s *Endpoints) endpoint(ctx context.Context, no int32) (db.WebhookEndpoint, error) {
	row, err := orders.Read(ctx, s.reader, s.query.WebhookEndpointGet, no)
	if errors.Is(err, pgx.ErrNoRows) {
		return row, notFound(no)
	}
	return row, orders.Unavailable("read webhook endpoint", err)
}

// notFound says that there is no endpoint of a number; 0: what was given can't be the id of one.
func notFound(no int32) error {
	e := &orders.NotFound{What: "webhook endpoint"}
	if no > 0 {
		e.Name = EndpointID(no)
	}
	return e
}

// shown is an endpoint without its secrets.
func shown(e db.WebhookEndpoint, err error) (db.WebhookEndpoint, error) {
	e.Secret, e.PreviousSecret = "", nil
	return e, err
}

// listOf is never nil, which is NULL.
func listOf(types []string) []string { return append([]string{}, types...) }

// By says who requests a change, and why. A request repeated by the same actor with the same id is answered, and not
// done again.
type By struct {
	Actor      string // the principal
	OnBehalfOf string // for whom it says that it asks; may be empty
	Reason     string
	RequestID  string // empty: it will not be repeated
}

// request is a change that is asked for.
type request struct {
	By
	fingerprint []byte                             // identifies it when it comes again
	look        func() (db.WebhookEndpoint, error) // whether it can be done, and the endpoint with which the statement compares
}

// requestFor makes a request of what is asked for, all of which counts when it comes again.
func requestFor(by By, look func() (db.WebhookEndpoint, error), what ...any) *request {
	text, _ := json.Marshal([]any{what, by.OnBehalfOf, by.Reason}) // it can always be encoded
	sum := sha256.Sum256(text)
	by.RequestID = cmp.Or(by.RequestID, rand.Text()) // by which this process finds out about a lost answer
	return &request{by, sum[:], look}
}

// requestTries bounds how often a statement is sent whose answer was lost, or whose endpoint was written at the same moment.
const requestTries = 50

// once does what a request asks for, unless it was done before: then it returns what is known of that. Errors: that of look,
// orders.ErrKeyReused, orders.ErrUnavailable; after the last, it may have been done.
func once[T any](ctx context.Context, s *Endpoints, r *request, do func(db.WebhookEndpoint) (T, error)) (
	done T, before *db.WebhookChangeByRequestRow, err error,
) {
	for try := range requestTries {
		if try > 0 {
			pg.Sleep(ctx, min(time.Millisecond<<min(try, 7), 100*time.Millisecond))
		}
		now, refused := r.look()
		if refused == nil {
			done, err = do(now)
			switch {
			case errors.Is(err, pgx.ErrNoRows), pg.Describe(err) == "23505 webhook_changes_request": // done before, or written since look
			case err == nil, pg.FaultOf(err) == pg.Bad:
				return done, nil, err
			case ctx.Err() != nil:
				return done, nil, orders.Unavailable("change webhook endpoint", err)
			default:
				continue
			}
		}
		if before, err = s.seen(ctx, r); before != nil || err != nil {
			return done, before, err
		}
		if refused != nil {
			return done, nil, refused
		}
	}
	return done, nil, fmt.Errorf("change webhook endpoint: %w", cmp.Or(orders.Unavailable("send statement", err), orders.ErrUnavailable))
}

// seen is what a request did when it came before; nil: it did not come.
func (s *Endpoints) seen(ctx context.Context, r *request) (*db.WebhookChangeByRequestRow, error) {
	before, err := orders.Read(ctx, s.reader, s.query.WebhookChangeByRequest, db.WebhookChangeByRequestParams{RequestID: r.RequestID, Actor: r.Actor})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, orders.Unavailable("read webhook change", err)
	case string(before.Fingerprint) != string(r.fingerprint):
		return nil, orders.ErrKeyReused
	}
	return &before, nil
}

// AddressRefused is the error of a URL to which nothing may be sent.
type AddressRefused struct{ Reason string }

func (a *AddressRefused) Error() string { return a.Reason }

// resolveLimit is how long a name may take to be looked up when an endpoint is made.
const resolveLimit = 3 * time.Second

// checkAddress returns *AddressRefused for a URL to which nothing may be sent, so that a mistake is reported at once. What
// decides is the address that is dialed: a name may lead elsewhere by then. One that leads nowhere now may lead somewhere then.
func (s *Endpoints) checkAddress(ctx context.Context, text string) error {
	u, err := url.Parse(text)
	if err != nil {
		return &AddressRefused{"must be a URL"}
	}
	if u.Scheme == "http" && !s.options.Private {
		return &AddressRefused{"must be https: others could read what is sent by http. With --allow-private it may be http"}
	}
	if port, err := strconv.ParseUint(cmp.Or(u.Port(), "1"), 10, 16); err != nil || port == 0 {
		return &AddressRefused{"must have a port from 1 to 65535"}
	}
	ctx, cancel := context.WithTimeout(ctx, resolveLimit)
	defer cancel()
	addresses, _ := net.DefaultResolver.LookupNetIP(ctx, "ip", u.Hostname()) // none, where it leads nowhere
	for _, address := range addresses {
		if err := egress.Check(address, s.options.Private); err != nil {
			return &AddressRefused{fmt.Sprintf("must lead elsewhere: %v", err)}
		}
	}
	return nil
}

// TestType is the type of the events that only tell whether an endpoint can be reached.
const TestType = "webhook_endpoint.test"

// TestSent is what came of a test event.
type TestSent struct {
	EventID string
	Attempt
}

// Test sends a test event to an endpoint now, whatever its state is, and returns what came back. Nothing of it is kept.
func (s *Endpoints) Test(ctx context.Context, id string) (TestSent, error) {
	e, err := s.endpoint(ctx, numberOf(id))
	if err != nil {
		return TestSent{}, err
	}
	sender := NewSender(s.options.Private)
	defer sender.Close()
	now := s.options.Now()
	m := message{ID: "evt_test_" + strings.ToLower(rand.Text()), Type: TestType, Timestamp: now.UTC()}
	m.Data.EndpointID = id
	return TestSent{m.ID, sender.Send(ctx, &e, signing.Message{ID: m.ID, Body: m.json()}, now)}, nil
}
