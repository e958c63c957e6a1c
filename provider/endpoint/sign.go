package endpoint

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// message is what a signature covers.
type message struct {
	id   string
	body []byte
}

// secretPrefix stands before a key in base64.
const secretPrefix = "whsec_"

// errSecret has no cause: the text of a secret must not get into a log.
var errSecret = errors.New("read secret: what follows whsec_ is not base64")

// signingKey reads the secret of the step and returns its text, which must never be shown, and the key of
// the HMAC: what follows `whsec_` in base64, or the text itself. No secret at all: nothing is signed.
func (e *endpoint) signingKey() (text string, key []byte, err error) {
	text, err = e.bounds.ReadKey(&e.how)
	if err != nil || text == "" {
		return "", nil, err
	}
	key, err = keyOf(text)
	return text, key, err
}

func keyOf(text string) ([]byte, error) {
	encoded, ok := strings.CutPrefix(text, secretPrefix)
	if !ok {
		return []byte(text), nil
	}
	key, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return nil, errSecret
	}
	return key, nil
}

// tolerance is how far the clock of whoever signs a callback may be off, and how late the callback may be.
const tolerance = 5 * time.Minute

// errSignature does not say what is wrong: who guesses is told nothing.
var errSignature = errors.New("the signature does not fit")

// Verify returns nil if a callback is signed with a secret, as requests to an endpoint are, at about this time. body is
// that of the callback byte by byte.
func Verify(secret string, h http.Header, body []byte, now time.Time) error {
	key, err := keyOf(secret)
	if err != nil || secret == "" {
		return errSignature
	}
	id, at := h.Get("Webhook-Id"), h.Get("Webhook-Timestamp")
	seconds, err := strconv.ParseInt(at, 10, 64)
	if err != nil || now.Sub(time.Unix(seconds, 0)).Abs() > tolerance {
		return errSignature
	}
	want := []byte(signatureOf(key, id, at, body))
	for _, signature := range strings.Fields(h.Get("Webhook-Signature")) {
		if hmac.Equal([]byte(signature), want) {
			return nil
		}
	}
	return errSignature
}

// sign puts the three headers of a message under a key that is not nil, as Standard Webhooks 1.0.0 says: HMAC-SHA256 over
// id, time and body, scheme v1. The id is that of the operation, so that a receiver that remembers ids drops repeats; the
// time is that of the call, so that it can drop what somebody recorded.
func sign(h http.Header, key []byte, m message, now time.Time) {
	at := strconv.FormatInt(now.Unix(), 10)
	h["Webhook-Id"] = []string{m.id}
	h["Webhook-Timestamp"] = []string{at}
	h["Webhook-Signature"] = []string{signatureOf(key, m.id, at, m.body)}
}

func signatureOf(key []byte, id, at string, body []byte) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(id + "." + at + "."))
	mac.Write(body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}
