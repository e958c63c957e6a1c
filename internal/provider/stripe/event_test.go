package stripe_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stripe/stripe-go/v85/webhook"

	"pawl/internal/provider/stripe"
	"pawl/test/assert"
)

func TestReadEvent(t *testing.T) {
	t.Parallel()
	const secret, metadata = "whsec_1", `{"pawl_installation":"8c5b0d5e-5f0a-4f5c-9a54-2f1d1c7c9d11","pawl_order":" a","pawl_generation":"3"}`
	at := time.Unix(1_700_000_000, 0) // long ago: the clock is the caller's
	event := func(object string) []byte {
		return fmt.Appendf(nil, `{"object":"event","id":"evt_1","api_version":"2019-01-01","type":"any","data":{"object":%s}}`, object)
	}
	sign := func(payload []byte) string {
		return webhook.GenerateTestSignedPayload(&webhook.UnsignedPayload{Payload: payload, Secret: secret, Timestamp: at}).Header
	}
	ours := event(`{"object":"payment_intent","id":"pi_1","metadata":` + metadata + `}`)
	hint := stripe.Hint{Installation: uuid.MustParse("8c5b0d5e-5f0a-4f5c-9a54-2f1d1c7c9d11"), OrderID: " a", Generation: 3, Reference: "pi_1"}

	for name, payload := range map[string][]byte{
		"of an intent":                ours,
		"of a charge":                 event(`{"object":"charge","id":"ch_1","payment_intent":"pi_1","metadata":` + metadata + `}`),
		"of a refund, in full":        event(`{"object":"refund","id":"re_1","payment_intent":{"id":"pi_1"},"metadata":` + metadata + `}`),
		"with a status that lies":     event(`{"object":"payment_intent","status":"succeeded","id":"pi_1","metadata":` + metadata + `}`),
		"signed minutes ago, as sent": append(ours[:len(ours):len(ours)], '\n'),
	} {
		t.Run("an event "+name+" names the order", func(t *testing.T) {
			t.Parallel()
			got, err := stripe.ReadEvent(payload, sign(payload), secret, at.Add(4*time.Minute))
			assert.True(t, err == nil && got == hint, got, err)
		})
	}
	got, err := stripe.ReadEvent(ours, sign(ours), secret, at.Add(-4*time.Minute))
	assert.True(t, err == nil && got == hint, "by a clock that goes a little behind", got, err)
	for kind, ended := range map[string]bool{"payment_intent.canceled": true, "charge.expired": true, "charge.captured": false} {
		payload := []byte(strings.Replace(string(ours), `"any"`, `"`+kind+`"`, 1))
		if got, err := stripe.ReadEvent(payload, sign(payload), secret, at); err != nil || got.Ended != ended || got.OrderID != hint.OrderID {
			t.Errorf("%s: %+v, %v; want that the authorization has ended: %v", kind, got, err, ended)
		}
	}
	for name, object := range map[string]string{
		"without our metadata": `{"object":"payment_intent","id":"pi_1","metadata":{"order":"a"}}`,
		"without an intent":    `{"object":"charge","id":"ch_1","payment_intent":null,"metadata":` + metadata + `}`,
		"of something else":    `{"object":"balance"}`,
		"with other metadata":  `{"object":"payment_intent","id":"pi_1","metadata":[1]}`,
		"with a strange place": strings.Replace(`{"object":"payment_intent","id":"pi_1","metadata":`+metadata+`}`, "8c5b", "?", 1),
		"with a strange call":  strings.Replace(`{"object":"payment_intent","id":"pi_1","metadata":`+metadata+`}`, `"3"`, `"-3"`, 1),
		"with no number of it": strings.Replace(`{"object":"payment_intent","id":"pi_1","metadata":`+metadata+`}`, `"3"`, `"3e9"`, 1),
	} {
		t.Run("an event "+name+" is not ours", func(t *testing.T) {
			t.Parallel()
			payload := event(object)
			got, err := stripe.ReadEvent(payload, sign(payload), secret, at)
			assert.ErrorIs(t, err, stripe.ErrNotOurs, got)
		})
	}
	for name, try := range map[string]func() (stripe.Hint, error){
		"of another body": func() (stripe.Hint, error) {
			return stripe.ReadEvent(event(`{"id":"pi_1"}`), sign(ours), secret, at)
		},
		"one blank more": func() (stripe.Hint, error) {
			return stripe.ReadEvent(append(ours[:len(ours):len(ours)], ' '), sign(ours), secret, at)
		},
		"with another key":  func() (stripe.Hint, error) { return stripe.ReadEvent(ours, sign(ours), "whsec_2", at) },
		"with no key":       func() (stripe.Hint, error) { return stripe.ReadEvent(ours, sign(ours), "", at) },
		"without signature": func() (stripe.Hint, error) { return stripe.ReadEvent(ours, "", secret, at) },
		"too old": func() (stripe.Hint, error) {
			return stripe.ReadEvent(ours, sign(ours), secret, at.Add(6*time.Minute))
		},
		"of the future": func() (stripe.Hint, error) {
			return stripe.ReadEvent(ours, sign(ours), secret, at.Add(-6*time.Minute))
		},
		"of the future, among others": func() (stripe.Hint, error) {
			return stripe.ReadEvent(ours, fmt.Sprintf("t=%d,%s", at.AddDate(1, 0, 0).Unix(), sign(ours)), secret, at)
		},
		"of no event at all": func() (stripe.Hint, error) {
			return stripe.ReadEvent([]byte("{}"), sign([]byte("{}")), secret, at)
		},
		"without data": func() (stripe.Hint, error) {
			payload := []byte(`{"object":"event"}`)
			hint, err := stripe.ReadEvent(payload, sign(payload), secret, at)
			if errors.Is(err, stripe.ErrNotOurs) { // genuine, and about nothing
				err = errors.New("not ours")
			}
			return hint, err
		},
	} {
		t.Run("what is signed "+name+" is refused", func(t *testing.T) {
			t.Parallel()
			got, err := try()
			assert.True(t, err != nil && !errors.Is(err, stripe.ErrNotOurs), got, err)
		})
	}
}
