package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pawl/access"
	"pawl/events"
	"pawl/orders"
)

var listEventsOperation = failing(huma.Operation{
	OperationID: "listEvents", Method: http.MethodGet, Path: "/api/events", Tags: []string{"events"},
	Summary: "Read what happened, in the order in which it happened",
	Description: "Every row of the history of every order, and every stock movement, once. The events of an order come in the order of their seq. " +
		"Go on with nextCursor, also when the page is empty: filters move it, too. With wait the answer comes with the first event that the filters choose.",
}, "invalid_parameter", "cursor_expired", "overloaded", "unavailable", "internal")

type listEventsRequest struct {
	After  string   `query:"after" maxLength:"30" doc:"nextCursor of the page before, or the cursor of an event. oldest: from the first event that is kept. latest: what comes from now on." default:"oldest"`
	Order  string   `query:"order" doc:"Only events about this order."`
	Type   []string `query:"type" nullable:"false" maxItems:"20" doc:"Only events of one of these types, with commas between them: order.completed, or order.* for all that begin so."`
	Status []state  `query:"status" nullable:"false" maxItems:"9" doc:"Only events of orders after which they are in one of these statuses, with commas between them."`
	Limit  int32    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"How many events to answer with at most."`
	Wait   waitTime `query:"wait" doc:"How long to wait for an event. Up to 60 seconds."`
}

// Resolve lifts the read deadline of the connection, which would end a request that waits.
func (in *listEventsRequest) Resolve(ctx huma.Context) []error {
	if in.Wait.duration() > 0 {
		_ = ctx.SetReadDeadline(time.Time{}) // not every writer has a connection
	}
	return nil
}

func (in *listEventsRequest) limit() time.Duration { return in.Wait.duration() + readLimit }

type listEventsAnswer struct {
	CacheControl string `header:"Cache-Control" doc:"no-store: there may be more a moment later."`
	Body         struct {
		Events     []events.Event `json:"events" nullable:"false"`
		NextCursor string         `json:"nextCursor" doc:"To go on behind all that was looked at." example:"29411432.17"`
		More       bool           `json:"more" doc:"There is more to look at right now."`
	} `nameHint:"EventPage"`
}

func (s *server) listEvents(ctx context.Context, in *listEventsRequest) (*listEventsAnswer, error) {
	filter, err := in.filter()
	if err != nil {
		return nil, err
	}
	after, err := s.placeOf(ctx, in.After)
	if err != nil {
		return nil, err
	}
	page, err := s.awaitEvents(ctx, after, filter, in)
	if err != nil {
		return nil, err
	}
	out := &listEventsAnswer{CacheControl: "no-store"}
	out.Body.Events, out.Body.NextCursor, out.Body.More = page.Events, page.Next.String(), page.More
	if out.Body.Events == nil {
		out.Body.Events = []events.Event{}
	}
	return out, nil
}

func (in *listEventsRequest) filter() (events.Filter, error) {
	if in.Order != "" && !possible(in.Order) {
		return events.Filter{}, invalidParameter("order", "invalid", "must be the id of an order")
	}
	f := events.Filter{OrderID: in.Order, Types: in.Type}
	for _, name := range in.Type {
		if !events.KnownType(name) {
			return f, invalidParameter("type", "unknown", "must be types of events, or order.* or stock.*")
		}
	}
	for _, status := range in.Status {
		f.Statuses = append(f.Statuses, string(status))
	}
	return f, nil
}

// placeOf is the cursor that a parameter stands for.
func (s *server) placeOf(ctx context.Context, text string) (events.Cursor, error) {
	switch {
	case s.events == nil: // without a database
		return events.Cursor{}, orders.ErrUnavailable
	case text == "oldest":
		return events.Cursor{}, nil
	case text == "latest":
		return s.events.Latest(ctx)
	}
	after, err := events.ParseCursor(text)
	if err != nil {
		return after, invalidParameter("after", "invalid", "must be oldest, latest, or a cursor of the feed")
	}
	return after, nil
}

// eventsPause is how long a caller who waits for events is left before the next look.
const eventsPause = 100 * time.Millisecond

// awaitEvents reads pages until one has an event or the caller's time is up.
func (s *server) awaitEvents(ctx context.Context, after events.Cursor, filter events.Filter, in *listEventsRequest) (events.Page, error) {
	for until := time.Now().Add(in.Wait.duration()); ; {
		page, err := s.readEvents(ctx, after, filter, int(in.Limit))
		if err != nil || len(page.Events) > 0 || time.Now().After(until) {
			return page, err
		}
		if after = page.Next; !page.More {
			orders.Sleep(ctx, min(eventsPause, time.Until(until)))
		}
	}
}

// readEvents reads a page in one of the places for lists.
func (s *server) readEvents(ctx context.Context, after events.Cursor, filter events.Filter, limit int) (events.Page, error) {
	release, err := s.lists.acquire(ctx, access.Network(fromOf(writerOf(ctx)).address), 1)
	if err != nil {
		return events.Page{}, err
	}
	defer release()
	return s.events.After(ctx, after, filter, limit)
}
