package webhooks_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pawl/db"
	"pawl/internal/events"
	"pawl/internal/orders"
	"pawl/internal/signing"
	"pawl/internal/webhooks"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// make makes an endpoint.
func (b *bundle) make(url string) db.WebhookEndpoint {
	b.Helper()
	made, err := b.Create(b.Context(), webhooks.Spec{URL: url}, webhooks.By{Actor: "test"})
	assert.NoError(b.T, err)
	return made
}

func by(requestID string) webhooks.By {
	return webhooks.By{Actor: "token:ops", OnBehalfOf: "maria", Reason: "a test", RequestID: requestID}
}

// TestEndpointIsMadeOnce: a repeated request gets the same secret; no other request does.
func TestEndpointIsMadeOnce(t *testing.T) {
	t.Parallel()
	b := endpoints(t, true)
	want := webhooks.Spec{URL: "http://127.0.0.1:9/hook", Description: "the shop", Types: []string{"order.*"}}
	first, err := b.Create(t.Context(), want, by("1"))
	if err != nil || !strings.HasPrefix(first.Secret, "whsec_") || first.EventNo != 41 || first.CreatedBy != "token:ops" {
		t.Fatalf("%+v, %v", first, err)
	}
	again, err := b.Create(t.Context(), want, by("1"))
	if err != nil || again.EndpointNo != first.EndpointNo || again.Secret != first.Secret {
		t.Errorf("again: %+v, %v", again, err)
	}
	var at sync.WaitGroup
	for range 8 { // the same request at once, as by a caller whose answers are lost
		at.Go(func() {
			if made, err := b.Create(t.Context(), want, by("2")); err != nil || made.Secret == "" {
				t.Errorf("%+v, %v", made, err)
			}
		})
	}
	at.Wait()
	assert.Equal(t, one[int](b.shop, `SELECT count(*) FROM webhook_endpoints`), 2, "endpoints")
	want.Description = "another"
	assert.ErrorIs(t, assert.Err(b.Create(t.Context(), want, by("1"))), orders.ErrKeyReused, "another payload:")
	id := webhooks.EndpointID(first.EndpointNo)
	read, err := b.Get(t.Context(), id)
	if all, listErr := b.List(t.Context()); err != nil || listErr != nil || len(all) != 2 || read.Secret+all[0].Secret != "" || read.Url != first.Url {
		t.Errorf("%+v, %v; %+v, %v", read, err, all, listErr)
	}
	for _, absent := range []string{"whe_0", "whe_01", "whe_99", "whe_x", "1", ""} {
		assert.ErrorIs(t, assert.Err(b.Get(t.Context(), absent)), orders.ErrNotFound, absent)
	}
}

// TestSecretsOverlap: the one before is kept until its time is over. A rotation whose answer was lost is not done again,
// which would forget the secret that the receiver has.
func TestSecretsOverlap(t *testing.T) {
	t.Parallel()
	b := endpoints(t, true)
	made := b.make("http://127.0.0.1:9/hook")
	id := webhooks.EndpointID(made.EndpointNo)
	rotated, err := b.RotateSecret(t.Context(), id, time.Hour, by("1"))
	again, err2 := b.RotateSecret(t.Context(), id, time.Hour, by("1"))
	if err != nil || err2 != nil || rotated.Secret == made.Secret || again.Secret != rotated.Secret {
		t.Fatalf("%v %v: %+v, again %+v", err, err2, rotated, again)
	}
	if n := one[int](b.shop, `SELECT count(*) FROM webhook_endpoints WHERE secret = $1 AND previous_secret = $2
		AND previous_secret_until > now() + interval '50 minutes'`,
		rotated.Secret, made.Secret); n != 1 {
		t.Error("the secret before is not kept")
	}
	assert.NoError(t, assert.Err(b.RotateSecret(t.Context(), id, 0, by("2"))))
	if n := one[int](b.shop, `SELECT count(*) FROM webhook_endpoints WHERE previous_secret IS NULL AND version = 3`); n != 1 {
		t.Error("a secret that others know is kept")
	}
	if late, err := b.RotateSecret(t.Context(), id, time.Hour, by("1")); err != nil || late.Secret != "" {
		t.Errorf("the secret of another request is shown: %q, %v", late.Secret, err)
	}
}

// TestChangesOfEndpoints: only of the version that was read, each once, and who made them is known afterwards.
func TestChangesOfEndpoints(t *testing.T) {
	t.Parallel()
	b := endpoints(t, true)
	id := webhooks.EndpointID(b.make("http://127.0.0.1:9/hook").EndpointNo)
	want := webhooks.Spec{URL: "http://127.0.0.1:9/other", Types: []string{"stock.set"}}
	changed, err := b.Change(t.Context(), webhooks.At{ID: id, Version: new(int32(1))}, want, by("1"))
	if err != nil || changed.Url != want.URL || !slices.Equal(changed.Types, want.Types) || changed.Version != 2 || changed.Secret != "" {
		t.Errorf("%+v, %v", changed, err)
	}
	if again, err := b.Change(t.Context(), webhooks.At{ID: id, Version: new(int32(1))}, want, by("1")); err != nil || again.Version != 2 {
		t.Errorf("again: %+v, %v", again, err)
	}
	if _, err := b.Change(t.Context(), webhooks.At{ID: id, Version: new(int32(1))}, want, by("2")); !errors.Is(err, orders.ErrPrecondition) {
		t.Error("another has changed it:", err)
	}
	disabled, err := b.Stop(t.Context(), webhooks.At{ID: id}, webhooks.Disabled, by("3"))
	if err != nil || disabled.State != webhooks.Disabled || disabled.DisabledReason == nil || disabled.DisabledAt == nil {
		t.Errorf("%+v, %v", disabled, err)
	}
	if enabled, err := b.Enable(t.Context(), id, false, by("4")); err != nil || enabled.State != webhooks.Enabled || enabled.DisabledAt != nil {
		t.Errorf("%+v, %v", enabled, err)
	}
	for range 2 {
		if _, err := b.Stop(t.Context(), webhooks.At{ID: id}, webhooks.Deleted, by("5")); err != nil {
			t.Error("deleted, twice:", err)
		}
	}
	if _, err := b.Stop(t.Context(), webhooks.At{ID: id}, webhooks.Deleted, by("6")); !errors.Is(err, orders.ErrNotFound) {
		t.Error("deleted by another request:", err)
	}
	var events []string
	if err := b.Pool.QueryRow(t.Context(), `SELECT array_agg(event ORDER BY at) FROM books.access_log
		WHERE subject = $1 AND (actor, on_behalf_of, detail) = ('token:ops', 'maria', 'a test')`, id).Scan(&events); err != nil ||
		!slices.Equal(events, []string{"webhook_endpoint_changed", "webhook_endpoint_disabled", "webhook_endpoint_enabled", "webhook_endpoint_deleted"}) {
		t.Errorf("the access log has %q, %v", events, err)
	}
}

func TestTooManyEndpoints(t *testing.T) {
	t.Parallel()
	b := endpoints(t, true)
	b.exec(`INSERT INTO webhook_endpoints (url, event_no, created_by, secret)
		SELECT 'http://127.0.0.1:9/', 0, 'test', 'whsec_' FROM generate_series(1, $1::integer)`, webhooks.MostEndpoints)
	assert.ErrorIs(t, assert.Err(b.Create(t.Context(), webhooks.Spec{URL: "http://127.0.0.1:9/"}, by("1"))), webhooks.ErrTooMany)
}

// TestTestEvent: it is signed, and what came back is told, also by an endpoint that is disabled or not there.
func TestTestEvent(t *testing.T) {
	t.Parallel()
	b := endpoints(t, true)
	var secret string
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := make([]byte, r.ContentLength)
		_, _ = r.Body.Read(body)
		if err := signing.Verify(secret, r.Header, body, time.Now()); err != nil || !strings.Contains(string(body), `"type":"webhook_endpoint.test"`) {
			t.Errorf("%s: %v", body, err)
		}
		w.WriteHeader(http.StatusTeapot)
		_, _ = w.Write([]byte("thanks, " + secret))
	}))
	t.Cleanup(receiver.Close)
	made := b.make(receiver.URL)
	secret = made.Secret
	id := webhooks.EndpointID(made.EndpointNo)
	assert.NoError(t, assert.Err(b.Stop(t.Context(), webhooks.At{ID: id}, webhooks.Disabled, by("1"))))
	sent, err := b.Test(t.Context(), id)
	if err != nil || sent.Delivered() || sent.Status != http.StatusTeapot ||
		!strings.HasPrefix(sent.Answer, "thanks, ") || strings.Contains(sent.Answer, secret[6:]) {
		t.Errorf("%+v, %v", sent, err)
	}
	receiver.Close()
	if sent, err = b.Test(t.Context(), id); err != nil || sent.Status != 0 || sent.Error == "" {
		t.Errorf("nobody there: %+v, %v", sent, err)
	}
	assert.Equal(t, one[int](b.shop, `SELECT count(*) FROM webhook_deliveries`), 0, "deliveries are stored")
}

// TestAddresses: Create rejects URLs to which no events may be sent.
func TestAddresses(t *testing.T) {
	t.Parallel()
	for private, s := range map[bool]*webhooks.Endpoints{true: endpoints(t, true).Endpoints, false: endpoints(t, false).Endpoints} {
		for _, c := range []struct {
			url              string
			always, privates bool
		}{
			{"https://1.1.1.1/hook", true, true},
			{"https://not-there.example/hook", true, true}, // it may be there when it is dialed
			{"http://1.1.1.1/hook", false, true},
			{"https://127.0.0.1/hook", false, true},
			{"https://localhost/hook", false, true},
			{"https://[::ffff:10.0.0.1]/hook", false, true},
			{"https://169.254.169.254/latest", false, false},
			{"https://[fd00:ec2::254]/latest", false, false},
			{"https://0.0.0.0/", false, false},
			{"https://1.1.1.1:65535/", true, true},
			{"https://1.1.1.1:65536/", false, false},
			{"https://1.1.1.1:0/", false, false},
		} {
			want := c.always || private && c.privates
			_, err := s.Create(t.Context(), webhooks.Spec{URL: c.url}, webhooks.By{Actor: "test"})
			var refused *webhooks.AddressRefused
			if (err == nil) != want || err != nil && !errors.As(err, &refused) {
				t.Errorf("%s, private ones %v: %v", c.url, private, err)
			}
		}
	}
}

// bundle is what people see and change of the endpoints of a database, in which nothing is delivered.
type bundle struct {
	*shop
	*webhooks.Endpoints
}

func endpoints(t *testing.T, private bool) *bundle {
	t.Helper()
	s := &shop{t, dbtest.New(t)}
	return &bundle{s, s.people(private)}
}

// newest is the last event of the feed, as Endpoints is told.
const newest = 41

func (s *shop) people(private bool) *webhooks.Endpoints {
	s.Helper()
	query := db.New(s.open())
	return webhooks.NewEndpoints(query, orders.NewReader(context.WithoutCancel(s.Context()), query), webhooks.Options{
		Private: private, Now: time.Now,
		Latest: func(context.Context) (events.Cursor, error) { return events.Cursor{No: newest}, nil },
	})
}
