package console

import (
	"net/http/httptest"
	"strings"
	"testing"

	"pawl/client"
)

// TestCounts: a number may be larger only where the API stopped counting.
func TestCounts(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{
		count(7): "7", count(999): "999", count(int64(10_000)): "10,000", count(1_234_567): "1,234,567",
		upTo(9_999): "9,999", upTo(countedTo): "10,000+", atLeast(5_000, true): "5,000+",
	} {
		if got != want {
			t.Errorf("%s instead of %s", got, want)
		}
	}
}

// TestHeaderNamesThePerson by the address that people know, and says in the title who that is in the history.
func TestHeaderNamesThePerson(t *testing.T) {
	t.Parallel()
	v := &visit{console: &console{assets: newAssets()}, r: httptest.NewRequestWithContext(t.Context(), "GET", "/console", nil)}
	for _, c := range []struct {
		me   client.Caller
		want string
	}{
		{client.Caller{Name: "token:maria", Roles: []string{"read"}}, `<span title="Your roles: read"><bdi>token:maria</bdi></span>`},
		{client.Caller{Name: "oidc:https://id.example.com#u-17", Email: "maria@example.com", Roles: []string{"read"}},
			`<span title="oidc:https://id.example.com#u-17. Your roles: read"><bdi>maria@example.com</bdi></span>`},
	} {
		w := httptest.NewRecorder()
		v.w, v.me = w, &c.me
		if err := v.show("problem", page{Data: client.Problem{}}); err != nil || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%v, want %s in %s", err, c.want, w.Body)
		}
	}
}
