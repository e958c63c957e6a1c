package client

import (
	"cmp"
	"context"
	"iter"
	"time"
)

// Events follows the feed behind filter.After: a cursor, "oldest", or "latest", which it is if it is empty. It goes through
// what there is, and waits for what will happen. It ends when the loop is left, with the error of ctx when that ends, and
// with a Problem; outages do not end it. Of the problems, cursor_expired says in NextCursor where to go on. Keep the
// Cursor of the last event that was dealt with, and give it as After the next time.
func (c *Client) Events(ctx context.Context, filter ListEventsParams) iter.Seq2[Event, error] {
	filter.After, filter.Wait = cmp.Or(filter.After, latest), cmp.Or(filter.Wait, longPoll)
	return func(yield func(Event, error) bool) {
		for params := filter; ; {
			if params.Wait = filter.Wait; params.After == latest {
				params.Wait = "" // an answer that is lost later has a place to go on from
			}
			began := time.Now()
			page, err := c.ListEvents(ctx, &params, retryForever)
			if err != nil {
				yield(Event{}, err)
				return
			}
			for _, event := range page.Events {
				if !yield(event, nil) {
					return
				}
			}
			params.After = page.NextCursor
			if params.Wait != "" && len(page.Events) == 0 && !page.More && time.Since(began) < time.Second {
				sleep(ctx, time.Second) // a service that does not wait, as it is shutting down
			}
		}
	}
}

// latest is the place behind all events that there are.
const latest = "latest"
