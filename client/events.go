package client

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Events follows the feed after filter.After: a cursor, "oldest", or "latest", which is the default. It yields existing
// events and waits for new ones. It ends when the loop does, with the error of ctx, or with a Problem; outages do not
// end it. After the problem cursor_expired, NextCursor says where to continue. Store the Cursor of the last event that
// was processed, to pass it as After the next time.
func (c *Client) Events(ctx context.Context, filter ListEventsParams) iter.Seq2[Event, error] {
	filter.After, filter.Wait = cmp.Or(filter.After, latest), cmp.Or(filter.Wait, longPoll)
	return func(yield func(Event, error) bool) {
		for params := filter; ; {
			if params.Wait = filter.Wait; params.After == latest {
				params.Wait = "" // to get a cursor at once, from which to continue after a lost answer
			}
			began := time.Now()
			page, err := c.ListEvents(ctx, retryForever, params)
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
				sleep(ctx, time.Second) // the service does not wait while it is shutting down
			}
		}
	}
}

// latest is the cursor after all existing events.
const latest = "latest"

// ErrSignature is returned for a webhook without a valid and recent signature. It does not say what is wrong, because
// that could help an attacker.
var ErrSignature = errors.New("invalid webhook signature")

// webhookTolerance is how much clocks may differ and how late a webhook may arrive.
const webhookTolerance = 5 * time.Minute

// minWebhookKey is the shortest key, in bytes. A shorter one could be guessed.
const minWebhookKey = 16

// VerifyWebhook returns the event of a webhook that was recently signed with one of the secrets (whsec_…), as defined by
// Standard Webhooks 1.0.0, and otherwise ErrSignature. body is the body of the request, byte by byte. While a secret is being rotated, pass both. A webhook
// may arrive more than once, each time with the same header Webhook-Id.
func VerifyWebhook(secrets []string, header http.Header, body []byte, now time.Time) (*Event, error) {
	if err := verify(secrets, header, body, now); err != nil {
		return nil, err
	}
	event := new(Event)
	if err := json.Unmarshal(body, event); err != nil {
		return nil, fmt.Errorf("decode webhook: %w", err)
	}
	return event, nil
}

func verify(secrets []string, header http.Header, body []byte, now time.Time) error {
	id, at := header.Get("Webhook-Id"), header.Get("Webhook-Timestamp")
	seconds, err := strconv.ParseInt(at, 10, 64)
	if err != nil || id == "" || now.Sub(time.Unix(seconds, 0)).Abs() > webhookTolerance {
		return ErrSignature
	}
	for _, secret := range secrets {
		key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
		if err != nil || len(key) < minWebhookKey {
			return errors.New("webhook secret must be whsec_ and base64 of at least 16 bytes")
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
