package webhooks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"pawl/db"
)

// Errors of what people ask for.
var (
	ErrNotFound = errors.New("there is no such endpoint or delivery")
	ErrFinished = errors.New("the delivery is finished")
	ErrBusy     = errors.New("the endpoint is written too often at the moment")
)

// By is who asks for something, and why.
type By struct{ Actor, Reason string }

func (by By) entry(verb string) []byte {
	text, _ := json.Marshal(Entry{At: time.Now().UTC(), Verb: verb, Actor: by.Actor, Reason: by.Reason}) // it can always be encoded
	return text
}

// Resend has a delivery sent again, whatever became of it, as if it was new: at once, or when those before it of its subject are
// finished. Errors: ErrNotFound, ErrBusy.
func Resend(ctx context.Context, query *db.Queries, endpointNo int32, deliveryNo int64, by By) (again db.WebhookDelivery, err error) {
	err = write(ctx, query, endpointNo, func(seq int64) error {
		again, err = query.WebhookDeliveryAgain(ctx, db.WebhookDeliveryAgainParams{
			EndpointNo: endpointNo, Seq: seq, DeliveryNo: deliveryNo, Entry: by.entry("resend"),
		})
		return reason(ctx, query, db.WebhookDeliveryGetParams{EndpointNo: endpointNo, DeliveryNo: deliveryNo}, false, err)
	})
	return again, wrap("resend delivery", err)
}

// Skip gives up a delivery for good, so that those behind it go on. Errors: ErrNotFound, ErrFinished, ErrBusy.
func Skip(ctx context.Context, query *db.Queries, endpointNo int32, deliveryNo int64, by By) (skipped db.WebhookDelivery, err error) {
	err = write(ctx, query, endpointNo, func(seq int64) error {
		row, err := query.WebhookDeliverySkip(ctx, db.WebhookDeliverySkipParams{
			EndpointNo: endpointNo, Seq: seq, DeliveryNo: deliveryNo, Entry: by.entry("skip"), Actor: by.Actor, Reason: by.Reason,
		})
		skipped = db.WebhookDelivery(row)
		return reason(ctx, query, db.WebhookDeliveryGetParams{EndpointNo: endpointNo, DeliveryNo: deliveryNo}, true, err)
	})
	return skipped, wrap("skip delivery", err)
}

// recoverMost is how many deliveries one statement has sent again.
const recoverMost = 1000

// Recover has all deliveries of an endpoint sent again that were given up since a time, and returns how many. Errors: ErrNotFound, ErrBusy.
func Recover(ctx context.Context, query *db.Queries, endpointNo int32, since time.Time, by By) (recovered int, err error) {
	for {
		var row db.WebhookDeliveriesRecoverRow
		err := write(ctx, query, endpointNo, func(seq int64) error {
			row, err = query.WebhookDeliveriesRecover(ctx, db.WebhookDeliveriesRecoverParams{
				EndpointNo: endpointNo, Seq: seq, Since: since, Entry: by.entry("recover"), Most: recoverMost,
			})
			return err
		})
		recovered += int(row.Recovered)
		if err != nil || row.Recovered < recoverMost {
			return recovered, wrap("recover deliveries", err)
		}
	}
}

// tries is how often a statement is sent that meets an endpoint that was written meanwhile.
const tries = 50

// write sends a statement that goes by what it reads of an endpoint's deliveries. No row: its owner, or somebody else, has
// written since, so it is sent again.
func write(ctx context.Context, query *db.Queries, endpointNo int32, statement func(seq int64) error) error {
	for range tries {
		endpoint, err := query.WebhookEndpointGet(ctx, endpointNo)
		if errors.Is(err, pgx.ErrNoRows) {
			return ErrNotFound
		}
		if err != nil {
			return err
		}
		if err = statement(endpoint.Seq); !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
	}
	return ErrBusy
}

// reason says why a statement about a delivery had no row, if it was not the endpoint.
func reason(ctx context.Context, query *db.Queries, key db.WebhookDeliveryGetParams, unfinished bool, err error) error {
	if !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	d, absent := query.WebhookDeliveryGet(ctx, key)
	switch {
	case errors.Is(absent, pgx.ErrNoRows):
		return ErrNotFound
	case absent != nil:
		return absent
	case d.FinishedAt != nil && unfinished:
		return ErrFinished
	}
	return err
}

func wrap(what string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
