// Package signing signs messages as defined by Standard Webhooks 1.0.0, and verifies such signatures: of requests to
// endpoints, callbacks and webhooks.
package signing

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Prefix precedes a key in base64.
const Prefix = "whsec_"

// MinKey is the shortest key, in bytes. A shorter one could be guessed.
const MinKey = 16

// These errors have no cause, because a secret must not get into a log.
var (
	errSecret = errors.New("read secret: the part after whsec_ is not base64")
	errShort  = fmt.Errorf("read secret: the key has less than %d bytes", MinKey)
)

// NewSecret creates a secret: whsec_ and 32 random bytes in base64.
func NewSecret() string {
	key := make([]byte, 32)
	rand.Read(key)
	return Prefix + base64.StdEncoding.EncodeToString(key)
}

// Key returns the HMAC key of a secret: the base64 after `whsec_`, or the text itself. A key shorter than MinKey is an
// error.
func Key(secret string) ([]byte, error) {
	key := []byte(secret)
	if encoded, ok := strings.CutPrefix(secret, Prefix); ok {
		var err error
		if key, err = base64.StdEncoding.DecodeString(encoded); err != nil {
			return nil, errSecret
		}
	}
	if len(key) < MinKey {
		return nil, errShort
	}
	return key, nil
}

// Message is what a signature covers, besides the time.
type Message struct {
	ID   string
	Body []byte
}

// Sign sets the three headers of a message signed with one or more keys: HMAC-SHA256 over ID, time and body, scheme v1. The
// ID lets a receiver recognize a repeated message, and the time a replayed one.
func Sign(h http.Header, m Message, now time.Time, keys ...[]byte) {
	at := strconv.FormatInt(now.Unix(), 10)
	signatures := make([]string, len(keys))
	for i, key := range keys {
		signatures[i] = signatureOf(key, m, at)
	}
	h["Webhook-Id"] = []string{m.ID}
	h["Webhook-Timestamp"] = []string{at}
	h["Webhook-Signature"] = []string{strings.Join(signatures, " ")}
}

// tolerance is how much clocks may differ, and how late a message may be.
const tolerance = 5 * time.Minute

// errSignature does not say what is wrong, because that could help an attacker.
var errSignature = errors.New("invalid signature")

// Verify returns nil if a message was recently signed with a secret. body is the message byte by byte.
func Verify(secret string, h http.Header, body []byte, now time.Time) error {
	key, err := Key(secret)
	if err != nil {
		return errSignature
	}
	id, at := h.Get("Webhook-Id"), h.Get("Webhook-Timestamp")
	seconds, err := strconv.ParseInt(at, 10, 64)
	if err != nil || now.Sub(time.Unix(seconds, 0)).Abs() > tolerance {
		return errSignature
	}
	want := []byte(signatureOf(key, Message{id, body}, at))
	if !slices.ContainsFunc(strings.Fields(h.Get("Webhook-Signature")), func(given string) bool { return hmac.Equal([]byte(given), want) }) {
		return errSignature
	}
	return nil
}

func signatureOf(key []byte, m Message, at string) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(m.ID + "." + at + "."))
	mac.Write(m.Body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}
