package simulator

import (
	"crypto/hmac"
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

// secret signs and verifies by Standard Webhooks (symmetric signatures, v1).
type secret []byte

// parseSecret reads whsec_ and base64; anything else is the secret itself.
func parseSecret(text string) (secret, error) {
	encoded, ok := strings.CutPrefix(text, "whsec_")
	if text == "" {
		return nil, nil
	}
	if !ok {
		return secret(text), nil
	}
	key, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return nil, fmt.Errorf("read secret: %w", err)
	}
	return key, nil
}

func (s secret) sign(id, timestamp string, body []byte) string {
	mac := hmac.New(sha256.New, s)
	fmt.Fprintf(mac, "%s.%s.%s", id, timestamp, body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// tolerance is how far the clock of the sender may be off.
const tolerance = 5 * time.Minute

var errSignature = errors.New("webhook-signature: does not fit")

func (s secret) verify(header http.Header, body []byte) error {
	id, timestamp := header.Get("webhook-id"), header.Get("webhook-timestamp")
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil || time.Since(time.Unix(seconds, 0)).Abs() > tolerance {
		return fmt.Errorf("webhook-timestamp: %w", errSignature)
	}
	want := []byte(s.sign(id, timestamp, body))
	if !slices.ContainsFunc(strings.Fields(header.Get("webhook-signature")), func(given string) bool {
		return hmac.Equal([]byte(given), want)
	}) {
		return errSignature
	}
	return nil
}
