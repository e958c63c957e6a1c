package endpoint_test

import (
	"net/http"
	"strconv"
	"testing"
	"time"

	"pawl/fsm"
	"pawl/internal/provider"
)

// The clock of the machine may be wrong: what others compare with theirs goes by the clock of the call.
func TestClockOfTheCall(t *testing.T) {
	t.Parallel()
	at := time.Date(2031, 5, 6, 7, 8, 9, 0, time.UTC)
	signed := ""
	_, url := lay(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		signed = r.Header.Get("Webhook-Timestamp")
		w.Header()["Date"] = nil // read by our own then
		w.Header().Set("Retry-After", at.Add(time.Hour).Format(http.TimeFormat))
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	c := aCall(fsm.Charge)
	c.Clock = func() time.Time { return at }
	result := atURL(url, fsm.Charge, secretOf(t, secretText)).Do(t.Context(), c)
	if retry, _ := result.(provider.Retry); retry.After != time.Hour {
		t.Errorf("%+v, want to wait for an hour", result)
	}
	if signed != strconv.FormatInt(at.Unix(), 10) {
		t.Errorf("signed at %s, want %d", signed, at.Unix())
	}
}
