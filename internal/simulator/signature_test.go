package simulator_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"pawl/internal/simulator"
)

func TestSignature(t *testing.T) {
	t.Parallel()
	t.Run("is that of Standard Webhooks", func(t *testing.T) {
		t.Parallel()
		got, err := simulator.Sign("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", []byte(`{"test": 2432232314}`))
		if got != "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" || err != nil {
			t.Errorf("%s %v", got, err)
		}
	})
	t.Run("is asked for when there is a secret", func(t *testing.T) {
		t.Parallel()
		const secret = "a secret that is not in base64"
		p := start(t, simulator.Config{Secret: secret})
		sign := func(at time.Time, with, id string) string {
			r := call{}.request(t.Context(), p.url)
			body, _ := io.ReadAll(r.Body)
			stamp := strconv.FormatInt(at.Unix(), 10)
			signature, _ := simulator.Sign(with, id, stamp, body)
			got, err := p.send(call{header: http.Header{
				"Webhook-Id": {id}, "Webhook-Timestamp": {stamp}, "Webhook-Signature": {"v1,b2xk " + signature},
			}})
			if err != nil {
				t.Error(err)
			}
			return got
		}
		const no = "401 not_done bad_request"
		p.answers(call{}, no)
		for _, got := range []string{
			sign(time.Now(), "another secret, just as long", "key"), sign(time.Now().Add(-time.Hour), secret, "key"),
			sign(time.Now(), secret, "of another request"),
		} {
			if got != no {
				t.Error(got)
			}
		}
		p.stands("key", "")
		if got := sign(time.Now(), secret, "key"); got != "200 ch_1" {
			t.Error(got)
		}
	})
	t.Run("is on callbacks", func(t *testing.T) {
		t.Parallel()
		const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
		sim, err := simulator.Open(simulator.Config{Secret: secret})
		if err != nil {
			t.Fatal(err)
		}
		good := make(chan bool, 1)
		sim.CallbackTo(func(r *http.Request) (*http.Response, error) {
			body, _ := io.ReadAll(r.Body)
			want, _ := simulator.Sign(secret, "key", r.Header.Get("webhook-timestamp"), body)
			good <- r.Header.Get("webhook-id") == "key" && r.Header.Get("webhook-signature") == want
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
		})
		r := call{item: "answer-twice", callback: "http://caller/"}.request(t.Context(), "http://provider")
		body, _ := io.ReadAll(call{item: "answer-twice", callback: "http://caller/"}.request(t.Context(), "http://provider").Body)
		stamp := strconv.FormatInt(time.Now().Unix(), 10)
		signature, _ := simulator.Sign(secret, "key", stamp, body)
		r.Header.Set("webhook-id", "key")
		r.Header.Set("webhook-timestamp", stamp)
		r.Header.Set("webhook-signature", signature)
		w := httptest.NewRecorder()
		sim.ServeHTTP(w, r)
		if w.Code != http.StatusOK || !<-good {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		if err := sim.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Run("with a secret that can't be read", func(t *testing.T) {
		t.Parallel()
		for _, cfg := range []simulator.Config{{Secret: "whsec_%"}, {Secret: "whsec_"}, {Secret: "15 bytes, or so"}, {StripeWebhookSecret: "whsec_"}} {
			if _, err := simulator.Open(cfg); err == nil {
				t.Errorf("opened with %q", cfg.Secret+cfg.StripeWebhookSecret)
			}
		}
	})
}
