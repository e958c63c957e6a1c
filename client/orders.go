package client

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Final reports whether the status of an order can no longer change.
func (s Status) Final() bool {
	return s == StatusCompleted || s == StatusFailed || s == StatusCanceled
}

// ETag is the version of the order, for If-Match and If-None-Match.
func (o *Order) ETag() string { return strconv.Quote(strconv.Itoa(o.Seq)) }

// What says what was ordered, for people: the item and its quantity, or the first lines, without tax, shipping, fees and
// discounts, unless there is nothing else.
func (o *Order) What() string {
	const most = 3
	if o.Lines == nil {
		return fmt.Sprintf("%d × %s", o.Quantity, o.Item)
	}
	goods := slices.DeleteFunc(slices.Clone(o.Lines), func(l Line) bool { return l.Kind != "" })
	if len(goods) == 0 {
		goods = o.Lines
	}
	var text []string
	for _, l := range goods[:min(len(goods), most)] {
		text = append(text, fmt.Sprintf("%d × %s", l.Quantity, l.Item))
	}
	if more := len(goods) - most; more > 0 {
		text = append(text, fmt.Sprintf("%d more", more))
	}
	return strings.Join(text, ", ")
}

// Process sends an order, and returns it when it is final, or when the service stops waiting for it. The order ID is
// the idempotency key; if it is empty, Process creates one.
func (c *Client) Process(ctx context.Context, body ProcessBody) (*Order, error) {
	if body.OrderID == "" {
		body.OrderID = NewID()
	}
	return c.ProcessOrder(ctx, body)
}

// ProcessAndWait sends an order and waits until it is final, even if that takes an approval. When ctx ends first, it
// returns the last known order, if any, and the error.
func (c *Client) ProcessAndWait(ctx context.Context, body ProcessBody) (*Order, error) {
	order, err := c.Process(ctx, body)
	if err != nil {
		return nil, err
	}
	return c.WaitFor(ctx, order)
}

// longPoll is how long the service waits for a change.
const longPoll = "30s"

// WaitFor waits until an order is final. When ctx ends first, it returns the last known order, and the error. Outages
// do not end it.
func (c *Client) WaitFor(ctx context.Context, order *Order) (*Order, error) {
	for next, err := range c.Watch(ctx, order) {
		if err != nil {
			return order, err
		}
		order = next
	}
	return order, nil
}

// Watch yields an order and each later version of it, until it is final. It ends after the first error, such as the
// error of ctx; outages do not end it.
func (c *Client) Watch(ctx context.Context, order *Order) iter.Seq2[*Order, error] {
	return func(yield func(*Order, error) bool) {
		changed := true
		for (!changed || yield(order, nil)) && !order.Status.Final() {
			began := time.Now()
			next, err := c.GetOrder(ctx, order.OrderID, retryForever, GetOrderParams{Wait: longPoll, IfNoneMatch: order.ETag()})
			switch changed = err == nil; {
			case changed:
				order = next
				continue
			case errors.Is(err, ErrNotModified) && (time.Since(began) > time.Second || sleep(ctx, time.Second)):
				continue // the pause is for a service that does not wait
			case errors.Is(err, ErrNotModified):
				err = context.Cause(ctx)
			}
			yield(order, err)
			return
		}
	}
}

// OrderVerb is a change of an order, by its name in allowedActions, such as cancel or refund, or dispute. Body is that of its
// operation.
type OrderVerb struct {
	OrderID, Name string
	Body          any
}

// ApplyVerb requests a change of an order. All take CancelOrderParams.
func (c *Client) ApplyVerb(ctx context.Context, v OrderVerb, options ...CallOption) (*Order, error) {
	name := cmp.Or(map[string]string{"refund": "refunds", "capture": "captures", "dispute": "disputes"}[v.Name], v.Name)
	path := fmt.Sprintf("/api/orders/%s/%s", url.PathEscape(v.OrderID), name)
	return call[Order](ctx, c, request{http.MethodPost, path, CancelOrderParams{}, v.Body}, options)
}

// Orders yields the orders of a filter, newest first, from its cursor on. It ends after the first error.
func (c *Client) Orders(ctx context.Context, filter ListOrdersParams) iter.Seq2[Order, error] {
	return pages(filter.Cursor, func(cursor string) (*OrderPage, error) {
		filter.Cursor = cursor
		return c.ListOrders(ctx, filter)
	}, func(p *OrderPage) ([]Order, string) { return p.Orders, p.NextCursor })
}

// OrdersCSV yields the orders of a filter as CSV, newest first, from its cursor on: each text has some lines, and only
// the first begins with the names of the columns. It ends after the first error.
func (c *Client) OrdersCSV(ctx context.Context, filter ListOrdersParams) iter.Seq2[[]byte, error] {
	filter.Format = "csv"
	return c.tables(ctx, "/api/orders", func(cursor string) any {
		filter.Cursor = cmp.Or(cursor, filter.Cursor)
		return filter
	})
}

// MoneyMovementsCSV yields movements of money as CSV, in pages of lines; the first begins with the names of the columns.
// It ends after the first error.
func (c *Client) MoneyMovementsCSV(ctx context.Context, filter ListMoneyMovementsParams) iter.Seq2[[]byte, error] {
	filter.Format = "csv"
	return c.tables(ctx, "/api/money-movements", func(cursor string) any {
		filter.Cursor = cmp.Or(cursor, filter.Cursor)
		return filter
	})
}

// MoneyMovements yields movements of money. It ends after the first error.
func (c *Client) MoneyMovements(ctx context.Context, filter ListMoneyMovementsParams) iter.Seq2[MoneyMovement, error] {
	return pages(filter.Cursor, func(cursor string) (*MoneyMovementPage, error) {
		filter.Cursor = cursor
		return c.ListMoneyMovements(ctx, filter)
	}, func(p *MoneyMovementPage) ([]MoneyMovement, string) { return p.Movements, p.NextCursor })
}

// Period is the span of a month such as 2026-11, or a day such as 2026-11-26, in UTC. to is exclusive.
func Period(name string) (from, to time.Time, err error) {
	if from, err = time.Parse("2006-01", name); err == nil {
		return from, from.AddDate(0, 1, 0), nil
	}
	if from, err = time.Parse(time.DateOnly, name); err != nil {
		return from, to, fmt.Errorf("a period is a month such as 2026-11, or a day such as 2026-11-26, not %q", name)
	}
	return from, from.AddDate(0, 0, 1), nil
}

// tables yields the pages of a list as CSV. page returns the parameters of the page after a cursor.
func (c *Client) tables(ctx context.Context, path string, page func(cursor string) any) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for first, cursor := true, ""; first || cursor != ""; first = false {
			var text []byte
			var answer http.Response
			err := c.do(ctx, request{http.MethodGet, path, page(cursor), nil}, &text, []CallOption{WithResponse(&answer)})
			if _, lines, named := bytes.Cut(text, []byte("\r\n")); named && !first {
				text = lines
			}
			if !yield(text, err) || err != nil {
				return
			}
			next, _ := url.Parse(strings.TrimPrefix(strings.TrimSuffix(answer.Header.Get("Link"), `>; rel="next"`), "<"))
			cursor = next.Query().Get("cursor")
		}
	}
}

// BooksCSV returns a table of a stored verification of the books as CSV: days, movements or months.
func (c *Client) BooksCSV(ctx context.Context, number int64, table GetVerificationReportParamsTable) (text []byte, err error) {
	params := GetVerificationReportParams{Format: "csv", Table: table}
	err = c.do(ctx, request{http.MethodGet, fmt.Sprintf("/api/verifications/%d", number), params, nil}, &text, nil)
	return text, err
}

// Items yields the items with known stock, by name. It ends after the first error.
func (c *Client) Items(ctx context.Context) iter.Seq2[Item, error] {
	return pages("", func(cursor string) (*ItemPage, error) {
		return c.ListInventory(ctx, ListInventoryParams{Cursor: cursor})
	}, func(p *ItemPage) ([]Item, string) { return p.Items, p.NextCursor })
}

// Deliveries yields the deliveries of a webhook endpoint, newest first. It ends after the first error.
func (c *Client) Deliveries(ctx context.Context, endpoint string, filter ListDeliveriesParams) iter.Seq2[Delivery, error] {
	return pages(filter.Cursor, func(cursor string) (*DeliveryPage, error) {
		filter.Cursor = cursor
		return c.ListDeliveries(ctx, endpoint, filter)
	}, func(p *DeliveryPage) ([]Delivery, string) { return p.Deliveries, p.NextCursor })
}

// Transitions yields the history of an order after a seq (0: from the beginning), oldest first. The first error ends
// it.
func (c *Client) Transitions(ctx context.Context, orderID string, after int) iter.Seq2[Transition, error] {
	return pages(after, func(after int) (*History, error) {
		return c.ListTransitions(ctx, orderID, ListTransitionsParams{After: after})
	}, func(p *History) ([]Transition, int) {
		if len(p.Transitions) == 0 { // a history has no nextCursor: an empty page ends it
			return nil, 0
		}
		return p.Transitions, p.Transitions[len(p.Transitions)-1].Seq
	})
}

// pages yields the rows of all pages. read reads the page after a cursor; split returns its rows, and the cursor of the
// next page, zero if there is none.
func pages[P, T any, C comparable](at C, read func(C) (*P, error), split func(*P) ([]T, C)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		var end C
		for cursor, more := at, true; more; more = cursor != end {
			page, err := read(cursor)
			if err != nil {
				yield(none, err)
				return
			}
			var rows []T
			rows, cursor = split(page)
			for _, row := range rows {
				if !yield(row, nil) {
					return
				}
			}
		}
	}
}
