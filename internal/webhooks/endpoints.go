package webhooks

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"pawl/db"
	"pawl/internal/events"
	"pawl/internal/orders"
	"pawl/internal/signing"
)

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
	r := requestFor(by, func() error {
		all, err := s.List(ctx)
		if err == nil && len(all) >= MostEndpoints {
			return ErrTooMany
		}
		return err
	}, "create", want)
	made, before, err := once(ctx, s, r, func() (db.WebhookEndpoint, error) {
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
	r := requestFor(by, s.unless(ctx, at), "change", at.ID, want)
	changed, before, err := once(ctx, s, r, func() (db.WebhookEndpoint, error) {
		return s.query.WebhookEndpointChange(ctx, db.WebhookEndpointChangeParams{
			Actor: r.Actor, OnBehalfOf: db.Optional(r.OnBehalfOf), Reason: db.Optional(r.Reason), RequestID: r.RequestID, Fingerprint: r.fingerprint,
			EndpointNo: numberOf(at.ID), IfVersion: at.Version, Url: want.URL, Description: db.Optional(want.Description), Types: listOf(want.Types),
		})
	})
	return shown(s.answer(ctx, changed, before, err))
}

// Stop disables an endpoint, or deletes it (state), if it is still at the version. Errors:
// orders.ErrPrecondition, orders.ErrKeyReused.
func (s *Endpoints) Stop(ctx context.Context, at At, state string, by By) (db.WebhookEndpoint, error) {
	r := requestFor(by, s.unless(ctx, at), state, at.ID)
	stopped, before, err := once(ctx, s, r, func() (db.WebhookEndpoint, error) {
		return s.query.WebhookEndpointStop(ctx, db.WebhookEndpointStopParams{
			Actor: r.Actor, OnBehalfOf: db.Optional(r.OnBehalfOf), Reason: db.Optional(r.Reason), RequestID: r.RequestID, Fingerprint: r.fingerprint,
			EndpointNo: numberOf(at.ID), IfVersion: at.Version, State: state,
		})
	})
	if before != nil && state == Deleted {
		return db.WebhookEndpoint{}, nil
	}
	return shown(s.answer(ctx, stopped, before, err))
}

// RotateSecret gives an endpoint another secret, which is in the answer. Deliveries are signed with the one before, too, as long
// as overlap says. Errors: orders.ErrKeyReused.
func (s *Endpoints) RotateSecret(ctx context.Context, id string, overlap time.Duration, by By) (db.WebhookEndpoint, error) {
	r := requestFor(by, s.unless(ctx, At{ID: id}), "rotate", id, overlap)
	rotated, before, err := once(ctx, s, r, func() (db.WebhookEndpoint, error) {
		return s.query.WebhookSecretRotate(ctx, db.WebhookSecretRotateParams{
			Actor: r.Actor, OnBehalfOf: db.Optional(r.OnBehalfOf), Reason: db.Optional(r.Reason), RequestID: r.RequestID, Fingerprint: r.fingerprint,
			EndpointNo: numberOf(id), Secret: signing.NewSecret(), OverlapSeconds: overlap.Seconds(),
		})
	})
	return s.answer(ctx, rotated, before, err)
}

// Enable has an endpoint sent to again: from where it stood, or past all events until now. Errors: orders.ErrKeyReused.
func (s *Endpoints) Enable(ctx context.Context, id string, fromNow bool, by By) (db.WebhookEndpoint, error) {
	latest, err := s.options.Latest(ctx)
	if err != nil {
		return db.WebhookEndpoint{}, err
	}
	r := requestFor(by, s.unless(ctx, At{ID: id}), "enable", id, fromNow)
	enabled, before, err := once(ctx, s, r, func() (db.WebhookEndpoint, error) {
		seq, err := s.seq(ctx, id)
		if err != nil {
			return db.WebhookEndpoint{}, err
		}
		return s.query.WebhookEndpointEnable(ctx, db.WebhookEndpointEnableParams{
			Actor: r.Actor, OnBehalfOf: db.Optional(r.OnBehalfOf), Reason: db.Optional(r.Reason), RequestID: r.RequestID, Fingerprint: r.fingerprint,
			EndpointNo: numberOf(id), Seq: seq, FromNow: fromNow, EventNo: latest.No,
		})
	})
	return shown(s.answer(ctx, enabled, before, err))
}

// unless says why a change was not made of an endpoint that was to be at a version.
func (s *Endpoints) unless(ctx context.Context, at At) func() error {
	return func() error {
		now, err := s.Get(ctx, at.ID)
		if err == nil && at.Version != nil && now.Version != *at.Version {
			return orders.ErrPrecondition
		}
		return err
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

// seq is what a statement compares that goes by what is stored of an endpoint's deliveries.
func (s *Endpoints) seq(ctx context.Context, id string) (int64, error) {
	row, err := s.endpoint(ctx, numberOf(id))
	return row.Seq, err
}

// shown is an endpoint without its secrets.
func shown(e db.WebhookEndpoint, err error) (db.WebhookEndpoint, error) {
	e.Secret, e.PreviousSecret = "", nil
	return e, err
}

// listOf is never nil, which is NULL.
func listOf(types []string) []string { return append([]string{}, types...) }
