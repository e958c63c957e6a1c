package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pawl/internal/events"
	"pawl/internal/orders"
	"pawl/internal/pg"
)

var listEventsOperation = failing(huma.Operation{
	OperationID: "listEvents", Method: http.MethodGet, Path: "/api/events", Tags: []string{"events"},
	Summary: "List or stream events, in order",
	Description: "Every history entry of every order and every stock movement, once. The events of an order are in the order of their seq. " +
		"Continue at nextCursor, even if the page is empty. With wait, the response is sent with the first matching event, " +
		"or at once if too many of your requests are waiting. " +
		"With Accept: text/event-stream, events are sent as they happen, as server-sent events, each with its cursor " +
		"as id, and a heartbeat every 15 seconds. " +
		"A stream continues after Last-Event-ID, or else after the parameter after. Without either, it starts now. " +
		"With the role submit alone, the parameter order is required.",
}, "not_found", "invalid_parameter", "cursor_expired", "overloaded", "stopping", "unavailable", "internal")

type listEventsRequest struct {
	After  string   `query:"after" maxLength:"30" doc:"nextCursor of the previous page, or the cursor of an event. oldest: from the first event kept. latest: from now on." default:"oldest"`
	Order  string   `query:"order" doc:"Only events about this order."`
	Type   []string `query:"type" nullable:"false" maxItems:"20" doc:"Only events of these types, separated by commas. order.* matches all types that begin with order."`
	Status []state  `query:"status" nullable:"false" maxItems:"9" doc:"Only events that left their order in one of these statuses, separated by commas."`
	Limit  int32    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"Maximum number of events."`
	Wait   waitTime `query:"wait" doc:"How long to wait for an event, up to 60 seconds. Ignored by streams."`

	LastEventID string `header:"Last-Event-ID" maxLength:"30" doc:"For streams: the id of the last event received."`
}

func (in *listEventsRequest) limit() time.Duration { return in.Wait.duration() + readLimit }

type listEventsAnswer struct {
	CacheControl string `header:"Cache-Control" doc:"no-store."`
	Body         eventPage
}

type eventPage struct {
	_          struct{}    `nameHint:"EventPage"`
	Events     []wireEvent `json:"events" nullable:"false"`
	NextCursor string      `json:"nextCursor" doc:"Continue here."`
	More       bool        `json:"more" doc:"More events are available now."`
}

// wireEvent is an event as the API shows it.
type wireEvent struct{ json.RawMessage }

// Schema implements huma.SchemaProvider.
func (wireEvent) Schema(r huma.Registry) *huma.Schema {
	return r.Schema(reflect.TypeFor[events.Event](), true, "Event")
}

func wireEventOf(e *events.Event) wireEvent { return wireEvent{e.JSON()} }

func (s *server) listEvents(ctx context.Context, in *listEventsRequest) (*listEventsAnswer, error) {
	filter, err := in.filter()
	if err == nil {
		err = s.followable(ctx, in.Order)
	}
	if err != nil {
		return nil, err
	}
	stream := wantsStream(httpRequestOf(ctx))
	if stream {
		in.begin(httpRequestOf(ctx))
	}
	after, err := s.placeOf(ctx, in.After)
	if err != nil {
		return nil, err
	}
	if stream {
		return nil, s.streamEvents(ctx, after, filter)
	}
	out := &listEventsAnswer{CacheControl: "no-store"}
	atMost, place := mayWait(writerOf(ctx), httpRequestOf(ctx), in.Wait.duration())
	defer place.leave()
	switch {
	case atMost > 0:
		out.Body, err = s.awaitEvents(ctx, after, filter, in)
		if short := in.Wait.duration() < numberingLimit; short && err == nil && len(out.Body.Events) == 0 {
			out.Body, err = s.readCommitted(ctx, &pageQuery{after, filter, int(in.Limit)})
		}
	case in.After == "latest": // no event can follow it yet; asking for the latest cursor does not count as listening
		out.Body = eventPage{Events: []wireEvent{}, NextCursor: after.String()}
	default:
		out.Body, err = s.readCommitted(ctx, &pageQuery{after, filter, int(in.Limit)})
	}
	return out, err
}

// begin sets where a stream begins: after the last event that the caller received, or else where the request asks.
func (in *listEventsRequest) begin(r *http.Request) {
	if in.LastEventID != "" {
		in.After = in.LastEventID
	} else if !r.URL.Query().Has("after") {
		in.After = "latest"
	}
}

func (in *listEventsRequest) filter() (events.Filter, error) {
	if in.Order != "" && !possible(in.Order) {
		return events.Filter{}, invalidParameter("order", "invalid", "must be an order id")
	}
	f := events.Filter{OrderID: in.Order, Types: in.Type}
	for _, name := range in.Type {
		if !events.KnownType(name) {
			return f, invalidParameter("type", "unknown", "must be event types, order.* or stock.*")
		}
	}
	for _, status := range in.Status {
		f.Statuses = append(f.Statuses, string(status))
	}
	return f, nil
}

// placeOf is the cursor of a parameter.
func (s *server) placeOf(ctx context.Context, text string) (events.Cursor, error) {
	switch {
	case s.Events == nil: // without a database
		return events.Cursor{}, orders.ErrUnavailable
	case text == "oldest":
		return events.Cursor{}, nil
	case text == "latest":
		return s.Events.Reader().Latest(ctx)
	}
	after, err := events.ParseCursor(text)
	if err != nil {
		return after, invalidParameter("after", "invalid", "must be oldest, latest or a cursor of this feed")
	}
	return after, nil
}

// awaitEvents returns the next events, or none if the caller's time is up or the service stops.
func (s *server) awaitEvents(ctx context.Context, after events.Cursor, filter events.Filter, in *listEventsRequest) (page eventPage, err error) {
	listener, err := s.Events.Listen(ctx, after, filter)
	if err != nil {
		return page, err
	}
	defer listener.Close()
	up := time.NewTimer(in.Wait.duration())
	defer up.Stop()
	for waits := true; ; {
		found, news, err := s.hear(ctx, listener, int(in.Limit))
		if len(found) > 0 || !waits || errors.Is(err, orders.ErrStopping) {
			return eventPage{Events: found, NextCursor: listener.At().String(), More: listener.More()}, nil
		}
		if err != nil {
			return page, err
		}
		select {
		case <-news:
		case <-up.C:
			waits = false
		case <-ctx.Done():
			return page, ctx.Err()
		}
	}
}

// hear returns the events that a listener can get now, up to a limit.
func (s *server) hear(ctx context.Context, listener *events.Listener, limit int) (found []wireEvent, news <-chan struct{}, err error) {
	found = []wireEvent{}
	for {
		news, older, err := listener.Take(func(e *events.Kept) bool {
			found = append(found, wireEvent{e.JSON})
			return len(found) < limit
		})
		if err != nil || !older || len(found) > 0 {
			return found, news, err
		}
		release, err := s.lists.acquire(ctx, payerOf(writerOf(ctx)), 1)
		if err != nil {
			return found, nil, err
		}
		read, err := listener.Older(ctx, limit)
		release()
		if found = append(found, each(read, wireEventOf)...); err != nil || len(found) > 0 {
			return found, nil, err
		}
	}
}

// numberingLimit is the longest wait for events to be numbered. If there were no listeners, numbering takes a second
// or more. An older open transaction delays it until that ends.
const (
	numberingLimit = 5 * time.Second
	numberingPoll  = 50 * time.Millisecond
)

// pageQuery selects a page of the feed.
type pageQuery struct {
	after  events.Cursor
	filter events.Filter
	limit  int
}

// readCommitted reads a page. An empty page would be wrong if events were committed before the request but have no
// numbers yet: it waits until they have.
func (s *server) readCommitted(ctx context.Context, q *pageQuery) (page eventPage, err error) {
	page, unnumbered, err := s.readEvents(ctx, q, math.MaxInt64)
	if err != nil || unnumbered == 0 {
		return page, err
	}
	atMost, place := mayWait(writerOf(ctx), httpRequestOf(ctx), numberingLimit)
	defer place.leave()
	waiting, cancel := s.Events.Until(ctx)
	defer cancel()
	waiting, cancelTimeout := context.WithTimeout(waiting, atMost)
	defer cancelTimeout()
	for err == nil && unnumbered != 0 && waiting.Err() == nil {
		pg.Sleep(waiting, numberingPoll)
		page, unnumbered, err = s.readEvents(ctx, q, unnumbered)
	}
	return page, err
}

// readEvents reads a page in one of the places for lists. If the page is empty, unnumbered is the newest position, up
// to upTo, of the events that were committed before and have no number yet; otherwise it is 0.
func (s *server) readEvents(ctx context.Context, q *pageQuery, upTo int64) (page eventPage, unnumbered int64, err error) {
	release, err := s.lists.take(ctx, writerOf(ctx), httpRequestOf(ctx), 1)
	if err != nil {
		return page, 0, err
	}
	defer release()
	reader := s.Events.Reader()
	// This is read first: the page may then contain events that are numbered meanwhile.
	if unnumbered, err = reader.Unnumbered(ctx, upTo); err != nil {
		return page, 0, err
	}
	read, err := reader.After(ctx, q.after, q.filter, q.limit)
	if len(read.Events) > 0 || read.More {
		unnumbered = 0
	}
	return eventPage{Events: each(read.Events, wireEventOf), NextCursor: read.Next.String(), More: read.More}, unnumbered, err
}
