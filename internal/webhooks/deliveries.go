package webhooks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"pawl/db"
	"pawl/internal/orders"
)

// ErrFinished is the error of skipping a delivery that was delivered or skipped.
var ErrFinished = errors.New("the delivery is finished")

// Filter selects deliveries of an endpoint.
type Filter struct {
	State   string // empty: any
	OrderID string // only about this order; empty: any
	Item    string // only about the stock of this item; can't be combined with OrderID
	Before  int64  // only with a lower number
	Limit   int32
}

// Delivery is a delivery as the API shows it.
type Delivery struct {
	db.WebhookDeliveriesListRow
	Log     []Entry                          // the last 20 attempts, oldest first; not in lists
	Changes []db.WebhookChangesOfDeliveryRow // by people, oldest first; not in lists
}

// Item is the item whose stock the delivery is about, or empty.
func (d *Delivery) Item() string {
	if item, is := strings.CutPrefix(d.Subject, itemPrefix); is {
		return item
	}
	return ""
}

// Deliveries returns deliveries of an endpoint, newest first.
func (s *Endpoints) Deliveries(ctx context.Context, endpointID string, f Filter) ([]Delivery, error) {
	if _, err := s.Get(ctx, endpointID); err != nil {
		return nil, err
	}
	q := db.WebhookDeliveriesListParams{EndpointNo: numberOf(endpointID), State: f.State, Before: f.Before, Most: f.Limit}
	if f.Item != "" {
		q.Subject = itemSubject(f.Item)
	}
	if f.OrderID != "" {
		o, err := s.reader.Get(ctx, f.OrderID)
		if err != nil {
			return nil, err
		}
		q.Subject = orderSubject(o.OrderNo)
	}
	rows, err := orders.Read(ctx, s.reader, s.query.WebhookDeliveriesList, q)
	all := make([]Delivery, len(rows))
	for i, row := range rows {
		all[i].WebhookDeliveriesListRow = row
	}
	return all, orders.Unavailable("list deliveries", err)
}

// DeliveriesOf returns the deliveries of the newest events of an order, at all endpoints, newest event first. It always
// includes the first unfinished delivery of each endpoint, because the order's other deliveries wait for it.
func (s *Endpoints) DeliveriesOf(ctx context.Context, orderID string, limit int32) ([]Delivery, error) {
	o, err := s.reader.Get(ctx, orderID)
	if err != nil {
		return nil, err
	}
	rows, err := orders.Read(ctx, s.reader, s.query.WebhookDeliveriesOfSubject, db.WebhookDeliveriesOfSubjectParams{
		Subject: orderSubject(o.OrderNo), OrderID: orderID, Most: limit})
	all := make([]Delivery, len(rows))
	for i, row := range rows {
		all[i].WebhookDeliveriesListRow = db.WebhookDeliveriesListRow(row)
	}
	return all, orders.Unavailable("list deliveries of an order", err)
}

// Delivery returns one delivery with its attempts.
func (s *Endpoints) Delivery(ctx context.Context, endpointID string, deliveryNo int64) (Delivery, error) {
	which := db.WebhookDeliveryShowParams{EndpointNo: numberOf(endpointID), DeliveryNo: deliveryNo}
	row, err := orders.Read(ctx, s.reader, s.query.WebhookDeliveryShow, which)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return Delivery{}, s.noDelivery(ctx, which)
	case err != nil:
		return Delivery{}, orders.Unavailable("read delivery", err)
	}
	d := Delivery{WebhookDeliveriesListRow: db.WebhookDeliveriesListRow{
		EndpointNo: row.EndpointNo, DeliveryNo: row.DeliveryNo, EventID: row.EventID, Type: row.Type, Subject: row.Subject,
		State: row.State, Attempts: row.Attempts, CreatedAt: row.CreatedAt, DueAt: row.DueAt, AttemptedAt: row.AttemptedAt,
		FinishedAt: row.FinishedAt, OrderID: row.OrderID,
	}}
	if err := json.Unmarshal(row.Log, &d.Log); err != nil {
		return d, fmt.Errorf("read delivery: %w", err)
	}
	if last := len(d.Log) - 1; last >= 0 {
		d.Status, d.Error = int32(d.Log[last].Status), d.Log[last].Error
	}
	d.Changes, err = orders.Read(ctx, s.reader, s.query.WebhookChangesOfDelivery, db.WebhookChangesOfDeliveryParams(which))
	return d, orders.Unavailable("read delivery", err)
}

// noDelivery says whether the endpoint or the delivery does not exist.
func (s *Endpoints) noDelivery(ctx context.Context, which db.WebhookDeliveryShowParams) error {
	if _, err := s.endpoint(ctx, which.EndpointNo); err != nil {
		return err
	}
	at := "delivery at " + EndpointID(which.EndpointNo) + " with the number"
	return &orders.NotFound{What: at, Name: strconv.FormatInt(which.DeliveryNo, 10)}
}

// Resend sends a delivery again as if it were new, whatever its state: at once, or when earlier deliveries of its order
// or item are finished. Errors: orders.ErrKeyReused.
func (s *Endpoints) Resend(ctx context.Context, endpointID string, deliveryNo int64, by By) (Delivery, error) {
	r := requestFor(by, s.lookAtDelivery(ctx, endpointID, deliveryNo, false), "resend", endpointID, deliveryNo)
	if _, _, err := s.resend(ctx, r, db.WebhookDeliveriesResendParams{DeliveryNo: &deliveryNo}); err != nil {
		return Delivery{}, err
	}
	return s.Delivery(ctx, endpointID, deliveryNo)
}

// RecoverMost is the maximum number of deliveries that Recover resends.
const RecoverMost = 10_000

// Recover resends the deliveries of an endpoint that were exhausted since a time, oldest first, and returns how many.
// If it returns RecoverMost, there may be more. Errors: orders.ErrKeyReused.
func (s *Endpoints) Recover(ctx context.Context, endpointID string, since time.Time, by By) (int, error) {
	r := requestFor(by, s.look(ctx, At{ID: endpointID}), "recover", since.UTC(), endpointID)
	recovered, before, err := s.resend(ctx, r, db.WebhookDeliveriesResendParams{Since: since, Most: RecoverMost})
	if before != nil && before.Deliveries != nil {
		recovered = *before.Deliveries
	}
	return int(recovered), err
}

func (s *Endpoints) resend(ctx context.Context, r *request, p db.WebhookDeliveriesResendParams,
) (int32, *db.WebhookChangeByRequestRow, error) {
	return once(ctx, s, r, func(now db.WebhookEndpoint) (int32, error) {
		p.Actor, p.OnBehalfOf, p.Reason = r.Actor, db.Optional(r.OnBehalfOf), db.Optional(r.Reason)
		p.RequestID, p.Fingerprint, p.EndpointNo = r.RequestID, r.fingerprint, now.EndpointNo
		return s.query.WebhookDeliveriesResend(ctx, p)
	})
}

// Skip gives up a delivery, so that later ones continue. Errors: ErrFinished, orders.ErrKeyReused.
func (s *Endpoints) Skip(ctx context.Context, endpointID string, deliveryNo int64, by By) (Delivery, error) {
	r := requestFor(by, s.lookAtDelivery(ctx, endpointID, deliveryNo, true), "skip", endpointID, deliveryNo)
	_, _, err := once(ctx, s, r, func(now db.WebhookEndpoint) (int64, error) {
		return s.query.WebhookDeliverySkip(ctx, db.WebhookDeliverySkipParams{
			Actor: r.Actor, OnBehalfOf: db.Optional(r.OnBehalfOf), Reason: db.Optional(r.Reason),
			RequestID: r.RequestID, Fingerprint: r.fingerprint,
			EndpointNo: now.EndpointNo, DeliveryNo: deliveryNo,
		})
	})
	if err != nil {
		return Delivery{}, err
	}
	return s.Delivery(ctx, endpointID, deliveryNo)
}

// lookAtDelivery returns a function that reads the endpoint of a delivery, which must exist, or even be unfinished.
func (s *Endpoints) lookAtDelivery(ctx context.Context, endpointID string, deliveryNo int64, unfinished bool) func() (db.WebhookEndpoint, error) {
	return func() (db.WebhookEndpoint, error) {
		now, err := s.endpoint(ctx, numberOf(endpointID))
		if err != nil {
			return now, err
		}
		d, err := s.Delivery(ctx, endpointID, deliveryNo)
		if err == nil && unfinished && d.FinishedAt != nil {
			err = ErrFinished
		}
		return now, err
	}
}
