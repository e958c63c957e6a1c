package client

import (
	"net/http"
	"testing"
	"time"
)

// TestVerifyWebhook has the example of the specification, and what must not pass for it.
func TestVerifyWebhook(t *testing.T) {
	t.Parallel()
	const secret, other = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_b25lIHNlY3JldCBvZiAyNCBieXRlcyE="
	const signature, body = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", `{"test": 2432232314}`
	at := time.Unix(1614265330, 0)
	for _, c := range []struct {
		name, signature, body string
		secrets               []string
		now                   time.Time
		good                  bool
	}{
		{"as signed", signature, body, []string{secret}, at, true},
		{"the second secret", signature, body, []string{other, secret}, at, true},
		{"the second signature", "v1,AAAA " + signature, body, []string{secret}, at, true},
		{"a slow network", signature, body, []string{secret}, at.Add(4 * time.Minute), true},
		{"another secret", signature, body, []string{other}, at, false},
		{"another body", signature, body + " ", []string{secret}, at, false},
		{"another scheme", "v1a" + signature[2:], body, []string{secret}, at, false},
		{"no signature", "", body, []string{secret}, at, false},
		{"no secret", signature, body, nil, at, false},
		{"an empty secret", signature, body, []string{""}, at, false},
		{"a secret without a key", "v1,woH/1mJtZGSMCmpFTxRYbStS24eLLD/oXIYr4PYyZ7g=", body, []string{"whsec_"}, at, false},
		{"no base64", signature, body, []string{"whsec_?"}, at, false},
		{"too old", signature, body, []string{secret}, at.Add(6 * time.Minute), false},
		{"from the future", signature, body, []string{secret}, at.Add(-6 * time.Minute), false},
	} {
		header := http.Header{"Webhook-Id": {"msg_p5jXN8AQM9LWM0D4loKWxJek"}, "Webhook-Timestamp": {"1614265330"}, "Webhook-Signature": {c.signature}}
		if err := VerifyWebhook(c.secrets, header, []byte(c.body), c.now); (err == nil) != c.good {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if VerifyWebhook([]string{secret}, http.Header{}, nil, at) == nil {
		t.Error("a request without the headers is taken for a webhook")
	}
}
