package client

import (
	"context"
	"iter"
	"time"
)

// Events follows the feed from filter.After on (without it, from the oldest event that is kept), and waits for what will
// happen. It ends when the loop is left, with the error of ctx when that ends, and with a Problem; outages do not end it.
// Of the problems, cursor_expired says in NextCursor where to go on. Keep the Cursor of the last event that was dealt
// with, and give it as After the next time.
func (c *Client) Events(ctx context.Context, filter ListEventsParams) iter.Seq2[Event, error] {
	if filter.Wait == "" {
		filter.Wait = longPoll
	}
	return func(yield func(Event, error) bool) {
		for params := filter; ; {
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
			if len(page.Events) == 0 && !page.More && time.Since(began) < time.Second {
				sleep(ctx, time.Second) // a service that does not wait, as it is shutting down
			}
		}
	}
}
