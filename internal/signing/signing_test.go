package signing

import (
	"encoding/base64"
	"net/http"
	"strings"
	"testing"
	"time"

	"pawl/test/assert"
)

// TestVerify: with two keys a message is good for who has either of them, for a while.
func TestVerify(t *testing.T) {
	t.Parallel()
	now := time.Unix(1614265330, 0)
	before, after := NewSecret(), NewSecret()
	var keys [][]byte
	for _, secret := range []string{after, before} {
		key, err := Key(secret)
		assert.Require(t, err == nil && len(key) == 32, "a key of", len(key), "bytes", err)
		keys = append(keys, key)
	}
	h := http.Header{}
	Sign(h, Message{"evt_1_2", []byte("body")}, now, keys...)
	for _, c := range []struct {
		name, secret, body string
		at                 time.Time
		good               bool
	}{
		{"the new secret", after, "body", now, true},
		{"the secret before", before, "body", now.Add(4 * time.Minute), true},
		{"another secret", NewSecret(), "body", now, false},
		{"no secret", "", "body", now, false},
		{"another body", after, "Body", now, false},
		{"late", after, "body", now.Add(6 * time.Minute), false},
		{"early", after, "body", now.Add(-6 * time.Minute), false},
	} {
		if err := Verify(c.secret, h, []byte(c.body), c.at); (err == nil) != c.good {
			t.Errorf("%s: %v", c.name, err)
		} else if err != nil && strings.Contains(err.Error(), strings.TrimPrefix(after, Prefix)) {
			t.Errorf("%s: the error tells the secret", c.name)
		}
	}
}

// A key that is empty or can be guessed signs nothing, and nothing that is signed with it is believed.
func TestShortKeys(t *testing.T) {
	t.Parallel()
	now := time.Unix(1614265330, 0)
	for secret, good := range map[string]bool{
		"": false, "whsec_": false, "whsec_AAAA": false, "whsec_" + strings.Repeat("A", 20): false, "fifteen bytes!!": false,
		"whsec_" + strings.Repeat("A", 22) + "==": true, "sixteen bytes!!!": true, "whsec_?": false,
	} {
		if _, err := Key(secret); (err == nil) != good {
			t.Errorf("key of %q: %v", secret, err)
		}
		key, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, Prefix))
		if !strings.HasPrefix(secret, Prefix) {
			key = []byte(secret)
		}
		h := http.Header{}
		Sign(h, Message{"id", []byte("body")}, now, key)
		err := Verify(secret, h, []byte("body"), now)
		assert.Equal(t, err == nil, good, "signed with", secret, err)
	}
}

// The example of the Standard Webhooks libraries.
func TestSignatureOfTheSpecification(t *testing.T) {
	t.Parallel()
	key, err := Key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	assert.NoError(t, err)
	got := signatureOf(key, Message{"msg_p5jXN8AQM9LWM0D4loKWxJek", []byte(`{"test": 2432232314}`)}, "1614265330")
	assert.Equal(t, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", got)
}
