package webhooks_test

import (
	"errors"
	"testing"
	"time"

	"pawl/db"
	"pawl/internal/orders"
	"pawl/internal/webhooks"
	"pawl/test/dbtest"
)

// TestAddresses has to which addresses events may be sent, as whoever makes an endpoint is told.
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

// bundle is the endpoints of a database of the test's own.
type bundle struct {
	*webhooks.Endpoints
	*dbtest.Database
	query  *db.Queries
	newest int64 // the last event of the feed
}

func endpoints(t *testing.T, private bool) *bundle {
	t.Helper()
	d := dbtest.New(t)
	b := &bundle{Database: d, query: db.New(d.Pool), newest: 41}
	b.Endpoints = webhooks.NewEndpoints(b.query, orders.NewReader(t.Context(), b.query), webhooks.Options{
		Private: private, Latest: b.last, Now: time.Now,
	})
	return b
}
