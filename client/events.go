package client

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"iter"
	"net/http"
	"strconv"
	"strings"
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

// ErrSignature is returned for a webhook that is not signed with any of the secrets, or not about now. It does not say
// what is wrong: who guesses is told nothing.
var ErrSignature = errors.New("the signature of the webhook does not fit")

// webhookTolerance is how far the clocks may be apart, and how late a webhook may come.
const webhookTolerance = 5 * time.Minute

// minWebhookKey is the shortest key, in bytes. With a shorter one, or none, anybody could sign.
const minWebhookKey = 16

// VerifyWebhook returns nil if a webhook was signed with one of the secrets (whsec_…) at about this time, as Standard
// Webhooks 1.0.0 says. Body is that of the request, byte by byte. While a secret is being replaced, give both. A webhook
// may come more than once: its header Webhook-Id is the same each time.
func VerifyWebhook(secrets []string, header http.Header, body []byte, now time.Time) error {
	id, at := header.Get("Webhook-Id"), header.Get("Webhook-Timestamp")
	seconds, err := strconv.ParseInt(at, 10, 64)
	if err != nil || id == "" || now.Sub(time.Unix(seconds, 0)).Abs() > webhookTolerance {
		return ErrSignature
	}
	for _, secret := range secrets {
		key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
		if err != nil || len(key) < minWebhookKey {
			return errors.New("secret of the webhook: what follows whsec_ is not base64 of 16 bytes or more")
		}
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + at + "."))
		mac.Write(body)
		want := []byte("v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)))
		for given := range strings.FieldsSeq(header.Get("Webhook-Signature")) {
			if hmac.Equal([]byte(given), want) {
				return nil
			}
		}
	}
	return ErrSignature
}
