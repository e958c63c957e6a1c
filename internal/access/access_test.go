package access_test

import (
	"errors"
	"net/netip"
	"testing"

	"pawl/db"
	"pawl/internal/access"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

func open(t *testing.T) (*access.Control, *dbtest.Database) {
	t.Helper()
	d := dbtest.New(t)
	return control(t, d.Pool), d
}

func control(t *testing.T, on db.DBTX) *access.Control {
	t.Helper()
	c, err := access.New(t.Context(), db.New(on), access.Config{})
	assert.NoError(t, err)
	t.Cleanup(c.Stop)
	return c
}

// TestOpenService has who uses a service in which no token was ever made.
func TestOpenService(t *testing.T) {
	t.Parallel()
	c, _ := open(t)
	here, there := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.7")
	for _, q := range []struct {
		name    string
		request access.Request
		want    *access.Principal // nil: nobody
	}{
		{"this machine", access.Request{Address: here, Local: true}, access.Local},
		{"another machine", access.Request{Address: there}, access.Anonymous},
		{"through a proxy on this machine", access.Request{Address: here, Forwarded: true}, nil},
		{"a token that is none", access.Request{Address: here, Local: true, Authorization: "Bearer secret"}, nil},
		{"a password", access.Request{Address: here, Local: true, Authorization: "Basic YTpi"}, nil},
	} {
		p, err := c.Identify(t.Context(), q.request)
		var stranger *access.NotIdentified
		if p != q.want || q.want == nil && !errors.As(err, &stranger) {
			t.Errorf("%s: %+v, %v", q.name, p, err)
		}
	}
	if !c.Open(t.Context()) {
		t.Error("not open")
	}
}

// TestStopped: who asks after Stop is told that nobody can tell.
func TestStopped(t *testing.T) {
	t.Parallel()
	c, d := open(t)
	shop := create(t, d, "shop", access.Submit)
	c.Stop()
	if p, err := c.Identify(t.Context(), bearer(shop.Token)); p != nil || !errors.Is(err, access.ErrUnavailable) {
		t.Error(p, err)
	}
}
