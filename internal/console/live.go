package console

import (
	"cmp"
	"context"
	"io"
	"net/http"
	"strconv"
	"time"

	"pawl/client"
)

// A page reloads when a stream tells it of changes, so that a busy service costs a page no more than a quiet one. The
// URL of the stream has the version on the page, so that no change is missed while it loads.
//
// Changes are polled. A listener to the feed would have every event numbered and read at once: with one page open,
// throughput fell by 3 to 8 %.
const pokeEvery = time.Second

// againEvery is how often a page about all orders is loaded: no more often if there are always changes, because nobody
// reads faster, nor less often without any: not all that it shows has an event, such as a breaker or the attempts of a
// delivery, and a count may have been read just before the last event.
const againEvery = 5 * time.Second

// pokes tells a page when it is outdated. Its URL has the version that it shows.
func (v *visit) pokes() error {
	return v.stream(v.version, cmp.Or(v.query("seq"), v.query("books"), v.query("totals"), v.query("after")))
}

// stream sends an event whenever the version differs from the one shown, until the page or the service is closed. A page
// about all orders gets the first at once, and one every few seconds from then on.
func (v *visit) stream(version func(context.Context) (string, error), shown string) error {
	now, err := version(v.r.Context())
	if err != nil {
		return err
	}
	stream := http.NewResponseController(v.w)
	_ = stream.SetReadDeadline(time.Time{}) // not supported by every writer
	header := v.w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Accel-Buffering", "no") // for nginx
	send := func(text string) bool {
		_, err := io.WriteString(v.w, text)
		return err == nil && stream.Flush() == nil
	}
	text, last := "retry: 3000\n\n", time.Now()                     // last: when the page was loaded
	followsAll := v.r.URL.Query().Has("after")                      // not only an order, or the books
	for ctx := v.r.Context(); err == nil; now, err = version(ctx) { // after an error the browser reconnects, and gets it
		pause := pokeEvery
		switch {
		case now != shown:
			text, shown, last = text+"event: poke\ndata:\n\n", now, time.Now()
			if followsAll {
				pause = againEvery
			}
		case followsAll && time.Since(last) >= againEvery:
			text, last = text+"event: again\ndata:\n\n", time.Now()
		}
		if !send(text) {
			return nil // the page is closed
		}
		text = ": still here\n\n"
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
	return nil
}

// version is that of what the page shows, as it is now.
func (v *visit) version(ctx context.Context) (string, error) {
	switch order, request := v.query("order"), v.query("request"); {
	case order != "":
		found, err := v.api.GetOrder(ctx, order)
		return versionOf(found, err, func(o *client.Order) string { return strconv.Itoa(o.Seq) })
	case v.query("books") != "":
		proof, err := v.api.GetVerification(ctx)
		return versionOf(proof, err, proofStep)
	case request != "":
		found, err := v.api.GetRequest(ctx, request, client.GetRequestParams{Limit: 1})
		return versionOf(found, err, totalsOf)
	}
	return v.latest(ctx)
}

func versionOf[T any](found *T, err error, version func(*T) string) (string, error) {
	if err != nil {
		return "", err
	}
	return version(found), nil
}

// latest is the cursor after all events.
func (v *visit) latest(ctx context.Context) (string, error) {
	page, err := v.api.ListEvents(ctx, client.ListEventsParams{After: "latest", Limit: 1})
	return versionOf(page, err, func(p *client.EventPage) string { return p.NextCursor })
}
