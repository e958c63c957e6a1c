package engine_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"strings"
	"testing"
)

// tokenOf is the callback token of the charge of an order, once it was called for.
func (s *shop) tokenOf(t testing.TB, orderID string) string {
	t.Helper()
	eventually(t, "the charge was called for", func() bool {
		return value[int](t, s.Pool, `SELECT count(*) FROM books.step_calls WHERE order_id = $1`, orderID) > 0
	})
	no := value[int64](t, s.Pool, `SELECT order_no FROM orders WHERE order_id = $1`, orderID)
	secret := value[[]byte](t, s.Pool, `SELECT callback_secret FROM installation`)
	f := binary.BigEndian.AppendUint64(nil, uint64(no))
	id := sha256.Sum256([]byte(orderID))
	f = append(f, id[:8]...)
	f = append(f, 0, 0, 0, 0, 0)
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte("callback"))
	mac.Write(f)
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(append(f, mac.Sum(nil)[:16]...)))
}
