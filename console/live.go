package console

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"pawl/client"
)

// A page hears when something has changed, and loads itself anew. What has changed it does not hear: one poke stands for
// all that happened in a second, so that a busy service costs a page no more than a quiet one. The address of the stream says
// what the page shows, so that a page also hears of what happened while it was on its way.
const (
	pokeEvery = time.Second
	waitLong  = "5s" // of one call. The next one finds out whether the session has ended
)

// pokes answers with server-sent events until the person has gone, or the service does.
func (v *visit) pokes() error {
	next, err := v.changes()
	if err != nil {
		return err
	}
	return v.stream(next)
}

// stream pokes whenever next reports a change.
func (v *visit) stream(next func(context.Context) (bool, error)) error {
	stream := http.NewResponseController(v.w)
	_ = stream.SetReadDeadline(time.Time{}) // not every writer has a connection
	header := v.w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Accel-Buffering", "no") // of nginx
	text := "retry: 3000\n\n"
	for ctx := v.r.Context(); ; {
		if _, err := io.WriteString(v.w, text); err != nil || stream.Flush() != nil {
			return nil //nolint:nilerr // the person has gone
		}
		changed, err := next(ctx)
		if err != nil {
			return nil //nolint:nilerr // the browser comes again, and hears why
		}
		if text = ": still here\n\n"; changed {
			text = "event: poke\ndata:\n\n"
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pokeEvery):
		}
	}
}

// changes returns what waits for the next change, and reports false where there was none for a while.
func (v *visit) changes() (func(context.Context) (bool, error), error) {
	if id := v.query("order"); id != "" {
		order, err := v.api.GetOrder(v.r.Context(), id, nil)
		if err != nil {
			return nil, err
		}
		order.Seq = number(v.query("seq"))
		return func(ctx context.Context) (bool, error) {
			changed, err := v.api.GetOrder(ctx, id, &client.GetOrderParams{Wait: waitLong, IfNoneMatch: order.ETag()})
			if errors.Is(err, client.ErrNotModified) {
				return false, nil
			}
			if err == nil {
				order = changed
			}
			return true, err
		}, nil
	}
	if v.query("books") != "" {
		return v.proofSteps(), nil
	}
	at := v.query("after")
	return func(ctx context.Context) (bool, error) {
		now, err := v.latest(ctx)
		if err != nil {
			return false, err
		}
		if now != at { // something has happened since the last poke
			at = now
			return true, nil
		}
		page, err := v.api.ListEvents(ctx, &client.ListEventsParams{After: at, Wait: waitLong, Limit: 1})
		if err != nil {
			return false, err
		}
		at = page.NextCursor
		return len(page.Events) > 0, nil
	}, nil
}

// latest is the place behind all events.
func (v *visit) latest(ctx context.Context) (string, error) {
	page, err := v.api.ListEvents(ctx, &client.ListEventsParams{After: "latest", Limit: 1})
	if err != nil {
		return "", err
	}
	return page.NextCursor, nil
}
