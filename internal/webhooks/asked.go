package webhooks

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"pawl/db"
	"pawl/internal/orders"
	"pawl/internal/pg"
)

// By is who asks for a change, and why. A request that comes again from the same actor with the same id is answered, and not
// done again.
type By struct {
	Actor      string // the principal
	OnBehalfOf string // for whom it says that it asks; may be empty
	Reason     string
	RequestID  string // empty: nobody will ask again
}

// request is a change that somebody asks for, as it is known when it comes again.
type request struct {
	By
	fingerprint []byte
	refused     func() error // why it was not done; nil: something has changed meanwhile, and it may be done now
}

// requestFor makes a request of what is asked for, each part of which counts when it comes again.
func requestFor(by By, refused func() error, what ...any) *request {
	text, _ := json.Marshal([]any{what, by.OnBehalfOf, by.Reason}) // it can always be encoded
	sum := sha256.Sum256(text)
	by.RequestID = cmp.Or(by.RequestID, rand.Text()) // by which this process finds out about a lost answer
	return &request{by, sum[:], refused}
}

// requestTries bounds how often a statement is sent whose answer was lost, or whose endpoint was written at the same moment.
const requestTries = 50

// once has a statement do what a request asks for, unless it was done before: then it returns what is known of that. Errors: that of
// refused, orders.ErrKeyReused, orders.ErrUnavailable; after the last, it may have been done.
func once[T any](ctx context.Context, s *Endpoints, r *request, do func() (T, error)) (done T, before *db.WebhookChangeByRequestRow, err error) {
	for try := range requestTries {
		if try > 0 {
			pg.Sleep(ctx, min(time.Millisecond<<min(try, 7), 100*time.Millisecond))
		}
		done, err = do()
		switch {
		case errors.Is(err, pgx.ErrNoRows), pg.Describe(err) == "23505 webhook_changes_request":
			before, err = s.seen(ctx, r)
			if before == nil && err == nil {
				err = r.refused()
			}
			if before != nil || err != nil {
				return done, before, err
			}
		case err == nil, errors.Is(err, orders.ErrNotFound), pg.FaultOf(err) == pg.Bad:
			return done, nil, err
		case ctx.Err() != nil:
			return done, nil, orders.Unavailable("change webhook endpoint", err)
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
