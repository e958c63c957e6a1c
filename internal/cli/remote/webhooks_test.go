package remote_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"pawl/client"
	"pawl/test/assert"
)

// receiver is an endpoint, which answers with what it is told to, and counts.
type receiver struct {
	url           string
	status, asked atomic.Int32
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{}
	r.status.Store(http.StatusNoContent)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		r.asked.Add(1)
		w.WriteHeader(int(r.status.Load()))
	}))
	t.Cleanup(server.Close)
	r.url = server.URL
	return r
}

// awaitDelivery waits until the newest delivery of an endpoint that a filter finds is so.
func awaitDelivery(t *testing.T, url, filter string, so func(client.Delivery) bool) (number int64) {
	t.Helper()
	for until := time.Now().Add(2 * time.Minute); time.Now().Before(until); {
		var out bytes.Buffer
		assert.NoError(t, execute(t.Context(), &out, url, "webhooks deliveries whe_1 -o json --limit 1 "+filter))
		var d client.Delivery
		if out.Len() > 0 {
			assert.NoError(t, json.Unmarshal(out.Bytes(), &d))
			if so(d) {
				return d.Delivery
			}
		}
		<-time.After(20 * time.Millisecond)
	}
	t.Fatal("in vain: ", filter)
	return 0
}

func TestWebhooks(t *testing.T) {
	t.Parallel()
	url, at := service(t), newReceiver(t)
	for _, s := range []step{
		{"webhooks create " + at.url + " --type order.completed --description shop", "",
			`(?s)^endpoint +whe_1\nurl +http://127.0.0.1:.*types +order.completed\n.*\nsecret +whsec_\S+\n$`},
		{"webhooks create ftp://127.0.0.1", "422", `^$`},
		{"webhooks list", "", `^endpoint .*\nwhe_1 +enabled +http://127.0.0.1:\d+ +order.completed +0 +-\n$`},
		{"webhooks change whe_1 --type order.failed,order.completed", "",
			`(?s)\nurl +http://127.0.0.1:\d+\ndescription +shop\ntypes +order.failed,order.completed\n`},
		{"webhooks change whe_1 " + at.url + "/hook --all-types", "", `(?s)\nurl +http://127.0.0.1:\d+/hook\ndescription +shop\ntypes +all\n`},
		{"webhooks change whe_1 --description till --type order.completed", "",
			`(?s)\nurl +http://127.0.0.1:\d+/hook\ndescription +till\ntypes +order.completed\n`},
		{"webhooks change whe_1 ftp://127.0.0.1", "422", `^$`},
		{"webhooks change whe_9 --description x", "404", `^$`},
		{"webhooks change whe_1 --type order.failed --all-types", "none of the others can be", `^$`},
		{"webhooks show whe_1", "", `(?s)\nstate +enabled\n.*\ncreated +\S+Z by local\n$`},
		{"webhooks rotate whe_1 --overlap 1h", "", `\nsecret +whsec_\S+\nprevious secret +valid until \S+Z\n$`},
		{"webhooks rotate whe_1 --overlap 0s", "", `\nsecret +whsec_\S+\n$`},
		{"webhooks test whe_1", "", `^event +evt_test_\S+\nstatus +204\nlatency +\d+ ms\n$`},
		{"orders process order-1 --amount 5 --item lamp", "", `completed`},
	} {
		s.try(t, url)
	}
	number := awaitDelivery(t, url, "--state delivered --order order-1", func(client.Delivery) bool { return at.asked.Load() == 2 })
	step{fmt.Sprintf("webhooks deliveries whe_1 %d", number), "",
		`^delivery .*\n\d+ +evt_1_\d+_[0-9a-f]+ +order.completed +order-1 +delivered +1 +204 +\S+Z\n\nat .*\n\S+Z +204 +\d+ +-\n$`}.try(t, url)
	step{fmt.Sprintf("webhooks resend whe_1 %d --reason lost", number), "", `(?m)^\S+Z +resent +- +local lost$`}.try(t, url)
	awaitDelivery(t, url, "--state delivered", func(client.Delivery) bool { return at.asked.Load() == 3 })

	at.status.Store(http.StatusInternalServerError)
	step{"orders process order-2 --amount 5 --item lamp", "", `completed`}.try(t, url)
	number = awaitDelivery(t, url, "--order order-2", func(d client.Delivery) bool { return d.Attempts == 1 })
	for _, s := range []step{
		{"webhooks test whe_1 -o json", "not delivered", `"status": 500`},
		{fmt.Sprintf("webhooks skip whe_1 %d --reason by-hand", number), "", `(?m)order-2 +skipped +1 +500`},
		{fmt.Sprintf("webhooks skip whe_1 %d --reason again", number), "409", `^$`},
		{"webhooks skip whe_1 9999 --reason no", "404", `^$`},
		{"webhooks skip whe_1 one --reason no", "must be a number", `^$`},
		{"webhooks skip whe_1 1", `"reason" not set`, `^$`},
		{"webhooks recover whe_1 --since 1h", "", `^recovered +0\n$`},
		{"webhooks disable whe_1", "", `(?m)^state +disabled`},
		{"webhooks enable whe_1 --from-now", "", `(?m)^state +enabled`},
		{"webhooks delete whe_1", "", `^$`},
		{"webhooks list -o json", "", `^$`},
		{"webhooks show whe_1", "404", `^$`},
	} {
		s.try(t, url)
	}
}
