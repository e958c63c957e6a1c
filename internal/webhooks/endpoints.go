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
	"slices"
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

// MostEndpoints is the maximum number of endpoints: each has a part of the concurrent requests of a replica.
const MostEndpoints = 64

// idPrefix precedes the number of an endpoint in its id.
const idPrefix = "whe_"

// EndpointID is the id of the endpoint with a number.
func EndpointID(endpointNo int32) string { return idPrefix + strconv.Itoa(int(endpointNo)) }

// numberOf is the number of the endpoint with an id, or 0 for an invalid id.
func numberOf(id string) int32 {
	digits, ok := strings.CutPrefix(id, idPrefix)
	n, err := strconv.ParseInt(digits, 10, 32)
	if !ok || err != nil || n <= 0 || EndpointID(int32(n)) != id {
		return 0
	}
	return int32(n)
}

// The states of an endpoint. A deleted endpoint is kept, but hidden, until its deliveries are removed.
const (
	Enabled  = "enabled"
	Disabled = "disabled"
	Deleted  = "deleted"
)

// The states of a delivery.
const (
	Pending   = "pending"   // due at some time, or waiting for an earlier delivery of its subject
	Delivered = "delivered" // answered with 2xx
	Exhausted = "exhausted" // all attempts failed; later deliveries of the subject wait until a person acts
	Skipped   = "skipped"   // given up by a person
)

// Entry is one attempt in the log of a delivery (db.WebhookDelivery.Log, a JSON array, oldest first).
type Entry struct {
	At        time.Time `json:"at"`
	Status    int       `json:"status,omitempty"`    // of the HTTP answer; 0: none
	LatencyMs int64     `json:"latencyMs,omitempty"` // until the answer
	Answer    string    `json:"answer,omitempty"`    // its beginning, up to 1 KiB
	Error     string    `json:"error,omitempty"`     // why there was no answer
}

// ByPerson is how the reason of an endpoint begins that a person has disabled.
const ByPerson = "by "

// LastFailure is the last failed attempt of an endpoint, or nil if its last attempt succeeded.
func LastFailure(e *db.WebhookEndpoint) *Entry {
	var last *Entry
	if json.Unmarshal(e.LastFailure, &last) != nil { // there is none
		return nil
	}
	return last
}

const orderPrefix, itemPrefix = "order ", "item "

// orderSubject is the subject of an order's events, which are delivered in order.
func orderSubject(orderNo int64) string { return orderPrefix + strconv.FormatInt(orderNo, 10) }

// itemSubject is the subject of an item's events, which are delivered in order.
func itemSubject(item string) string { return itemPrefix + item }

// secretsOf are the secrets that sign the messages to an endpoint at a time: two during a rotation.
func secretsOf(e *db.WebhookEndpoint, now time.Time) []string {
	secrets := []string{e.Secret}
	if e.PreviousSecret != nil && e.PreviousSecretUntil != nil && now.Before(*e.PreviousSecretUntil) {
		secrets = append(secrets, *e.PreviousSecret)
	}
	return secrets
}

// ErrTooMany is returned by Create if there are MostEndpoints.
var ErrTooMany = errors.New("too many webhook endpoints")

// Endpoints manages endpoints and their deliveries. Its methods are safe for concurrent use. All may return
// orders.ErrUnavailable, and those with an endpoint or delivery as argument orders.ErrNotFound.
type Endpoints struct {
	query   *db.Queries
	reader  *orders.Reader
	options Options
}

// Options configures Endpoints.
type Options struct {
	Private bool                                         // allow endpoints on this machine and in private networks
	Latest  func(context.Context) (events.Cursor, error) // the end of the feed
	Now     func() time.Time                             // the time of the database
}

// NewEndpoints returns the endpoints of a database.
func NewEndpoints(query *db.Queries, reader *orders.Reader, o Options) *Endpoints {
	return &Endpoints{query, reader, o}
}

// Spec is the configuration of an endpoint.
type Spec struct {
	URL, Description string
	Types            []string // of the events to send: exact ones, or order.*; empty: all
}

// Create creates an endpoint for events from now on. It returns the endpoint with its secret, also for a repeated
// request, until the secret is rotated. Errors: *AddressRefused, ErrTooMany, orders.ErrKeyReused.
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
			Actor: r.Actor, OnBehalfOf: db.Optional(r.OnBehalfOf), Reason: db.Optional(r.Reason),
			RequestID: r.RequestID, Fingerprint: r.fingerprint,
			Most: MostEndpoints, Url: want.URL, Description: db.Optional(want.Description), Types: listOf(want.Types),
			Secret: signing.NewSecret(), EventNo: latest.No,
		})
		return db.WebhookEndpoint(made), err
	})
	return s.answer(ctx, made, before, err)
}

// At identifies an endpoint and the version it must have; nil: any.
type At struct {
	ID      string
	Version *int32
}

// Change replaces the configuration of an endpoint, if it still has the version. Unsent deliveries go to the new URL.
// Errors: *AddressRefused, orders.ErrPrecondition, orders.ErrKeyReused.
func (s *Endpoints) Change(ctx context.Context, at At, want Spec, by By) (db.WebhookEndpoint, error) {
	if err := s.checkAddress(ctx, want.URL); err != nil {
		return db.WebhookEndpoint{}, err
	}
	return s.change(ctx, at, by, db.WebhookEndpointChangeParams{
		Verb: "changed", Url: &want.URL, Description: db.Optional(want.Description), Types: listOf(want.Types),
	})
}

// Stop disables or deletes (state) an endpoint, if it still has the version. Errors: orders.ErrPrecondition,
// orders.ErrKeyReused.
func (s *Endpoints) Stop(ctx context.Context, at At, state string, by By) (db.WebhookEndpoint, error) {
	return s.change(ctx, at, by, db.WebhookEndpointChangeParams{Verb: state})
}

// RotateSecret gives an endpoint a new secret and returns it. For the time of overlap, deliveries are also signed with
// the previous one. Errors: orders.ErrKeyReused.
func (s *Endpoints) RotateSecret(ctx context.Context, id string, overlap time.Duration, by By) (db.WebhookEndpoint, error) {
	return s.change(ctx, At{ID: id}, by, db.WebhookEndpointChangeParams{
		Verb: "secret_rotated", Secret: new(signing.NewSecret()), OverlapSeconds: overlap.Seconds(),
	})
}

// Enable enables an endpoint, which continues where it stopped, or skips all events until now. Errors:
// orders.ErrKeyReused.
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
		p.RequestID, p.Fingerprint, p.EndpointNo, p.Version = r.RequestID, r.fingerprint, now.EndpointNo, now.Version
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

// look returns a function that reads an endpoint, if it has the version.
func (s *Endpoints) look(ctx context.Context, at At) func() (db.WebhookEndpoint, error) {
	return func() (db.WebhookEndpoint, error) {
		now, err := s.endpoint(ctx, numberOf(at.ID))
		if err == nil && at.Version != nil && now.Version != *at.Version {
			err = orders.ErrPrecondition
		}
		return now, err
	}
}

// answer is the endpoint after a change, or its current state if the request is a repetition. In that case it includes
// the secret only if the first request created it.
func (s *Endpoints) answer(ctx context.Context, now db.WebhookEndpoint, before *db.WebhookChangeByRequestRow, err error,
) (db.WebhookEndpoint, error) {
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

// Backlog is how many events an endpoint has not got yet.
type Backlog struct {
	Events int64
	More   bool  // there may be more
	passed int64 // events that were looked at, and have no deliveries yet
}

// Undelivered counts the events that endpoints have not got yet, by the numbers of the endpoints: stored deliveries, and
// what will be sent of the next events of the feed, among orders.CountsMost each. Errors: ErrUnavailable.
func (s *Endpoints) Undelivered(ctx context.Context, endpointNos ...int32) (map[int32]Backlog, error) {
	rows, err := orders.Read(ctx, s.reader, s.query.WebhookBacklogs, db.WebhookBacklogsParams{Most: orders.CountsMost, EndpointNos: endpointNos})
	counts := map[int32]Backlog{}
	for _, row := range rows {
		b := counts[row.EndpointNo]
		if !row.Stored {
			b.passed += row.Events
		}
		name := events.TypeOf(row.FromStatus, row.ToStatus, row.Verb, row.Actor)
		if row.Stock {
			name = events.TypeOfStock(row.ToStatus)
		}
		if row.Stored || wants(row.Types, name) {
			b.Events += row.Events
		}
		b.More = b.More || max(b.passed, row.Events) >= orders.CountsMost
		counts[row.EndpointNo] = b
	}
	return counts, orders.Unavailable("count undelivered events", err)
}

// wants reports whether an endpoint with these types gets events of a type: those about how Pawl drives orders only if it
// names them.
func wants(types []string, name string) bool {
	return slices.Contains(types, name) || events.MatchesType(types, name) && !events.Driving(name)
}

// endpoint reads an endpoint with its secrets. No endpoint has number 0.
func (s *Endpoints) endpoint(ctx context.Context, no int32) (db.WebhookEndpoint, error) {
	row, err := orders.Read(ctx, s.reader, s.query.WebhookEndpointGet, no)
	if errors.Is(err, pgx.ErrNoRows) {
		return row, notFound(no)
	}
	return row, orders.Unavailable("read webhook endpoint", err)
}

// notFound is the error for an endpoint that does not exist. Number 0 means an invalid id.
func notFound(no int32) error {
	e := &orders.NotFound{What: "webhook endpoint"}
	if no > 0 {
		e.Name = EndpointID(no)
	}
	return e
}

// shown returns an endpoint without its secrets.
func shown(e db.WebhookEndpoint, err error) (db.WebhookEndpoint, error) {
	e.Secret, e.PreviousSecret = "", nil
	return e, err
}

// listOf is never nil, which is NULL.
func listOf(types []string) []string { return append([]string{}, types...) }

// By says who requests a change, and why. Repeating a request with the same actor and id has no further effect.
type By struct {
	Actor      string // the principal
	OnBehalfOf string // as stated by the actor; may be empty
	Reason     string
	RequestID  string // empty: the request is never repeated
}

// request is a requested change.
type request struct {
	By
	fingerprint []byte                             // identifies the request when it is repeated
	look        func() (db.WebhookEndpoint, error) // checks the request, and reads the endpoint whose version the statement compares
}

// requestFor makes a request. A repetition must have the same parts.
func requestFor(by By, look func() (db.WebhookEndpoint, error), what ...any) *request {
	text, _ := json.Marshal([]any{what, by.OnBehalfOf, by.Reason}) // it can always be encoded
	sum := sha256.Sum256(text)
	by.RequestID = cmp.Or(by.RequestID, rand.Text()) // to find out whether a statement was executed whose reply was lost
	return &request{by, sum[:], look}
}

// requestTries bounds how often a statement is sent whose reply was lost, or whose endpoint was written meanwhile.
const requestTries = 50

// once executes a request, or returns the result of the first execution. Errors: those of look, orders.ErrKeyReused,
// orders.ErrUnavailable; after the last, the request may have been executed.
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
			case errors.Is(err, pgx.ErrNoRows), pg.Describe(err) == "23505 webhook_changes_request":
				// The request was done before, or the endpoint has changed since look.
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

// seen is the result of an earlier execution of a request, or nil.
func (s *Endpoints) seen(ctx context.Context, r *request) (*db.WebhookChangeByRequestRow, error) {
	params := db.WebhookChangeByRequestParams{RequestID: r.RequestID, Actor: r.Actor}
	before, err := orders.Read(ctx, s.reader, s.query.WebhookChangeByRequest, params)
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

// AddressRefused is the error of a URL that must not be requested.
type AddressRefused struct{ Reason string }

func (a *AddressRefused) Error() string { return a.Reason }

// resolveLimit is the timeout of the DNS lookup when an endpoint is created.
const resolveLimit = 3 * time.Second

// checkAddress returns *AddressRefused for a URL that must not be requested, to report mistakes early. Every connection
// is checked again, because a name may resolve to another address by then. A name that does not resolve is accepted.
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
	addresses, _ := net.DefaultResolver.LookupNetIP(ctx, "ip", u.Hostname()) // none on an error
	for _, address := range addresses {
		if err := egress.Check(address, s.options.Private); err != nil {
			return &AddressRefused{fmt.Sprintf("must lead elsewhere: %v", err)}
		}
	}
	return nil
}

// testType is the type of test events.
const testType = "webhook_endpoint.test"

// TestSent is the result of a test event.
type TestSent struct {
	EventID string
	Attempt
}

// Test sends a test event to an endpoint now, whatever its state, and returns the result. Nothing is stored.
func (s *Endpoints) Test(ctx context.Context, id string) (TestSent, error) {
	e, err := s.endpoint(ctx, numberOf(id))
	if err != nil {
		return TestSent{}, err
	}
	sender := newSender(s.options.Private)
	defer sender.CloseIdleConnections()
	now := s.options.Now()
	m := message{ID: "evt_test_" + strings.ToLower(rand.Text()), Type: testType, Timestamp: now.UTC()}
	m.Data.EndpointID = id
	return TestSent{m.ID, sender.send(ctx, &e, signing.Message{ID: m.ID, Body: m.json()}, now)}, nil
}
