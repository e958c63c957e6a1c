package engine

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"slices"
	"strings"

	"pawl/fsm"
)

// A token is what a provider completes a step with: the number of the order, the
// generation, the step, and a code over them that only this installation can make. It
// needs no row to be known by, and is the same on every call, as the body it is sent in
// must be. The code is over the id of the order, too: in a database that was restored the
// same number may be another order's.
const (
	tokenFields = 8 + 4 + 1
	tokenCode   = 16
)

var tokenText = base32.StdEncoding.WithPadding(base32.NoPadding)

// callbackTarget is what a token is for.
type callbackTarget struct {
	orderNo    int64
	generation int32
	step       fsm.Step
}

// token makes the token of a step. It is 47 lower-case letters and digits.
func (who *identity) token(t callbackTarget, orderID string) string {
	fields := make([]byte, 0, tokenFields+tokenCode)
	fields = binary.BigEndian.AppendUint64(fields, uint64(t.orderNo))
	fields = binary.BigEndian.AppendUint32(fields, uint32(t.generation))
	fields = append(fields, byte(slices.Index(fsm.Steps(), t.step)))
	return strings.ToLower(tokenText.EncodeToString(append(fields, who.code(fields, orderID)...)))
}

func (who *identity) code(fields []byte, orderID string) []byte {
	mac := hmac.New(sha256.New, who.secret)
	mac.Write([]byte("callback"))
	mac.Write(fields)
	mac.Write([]byte(orderID))
	return mac.Sum(nil)[:tokenCode]
}

// readToken says what a token claims to be for; false: it is no token. Whether it is
// genuine can be said when the order is known: it is what token makes then.
func readToken(token string) (t callbackTarget, ok bool) {
	data, err := tokenText.DecodeString(strings.ToUpper(token))
	if err != nil || len(data) != tokenFields+tokenCode {
		return t, false
	}
	steps := fsm.Steps()
	of := int(data[tokenFields-1])
	if of >= len(steps) {
		return t, false
	}
	return callbackTarget{int64(binary.BigEndian.Uint64(data)), int32(binary.BigEndian.Uint32(data[8:])), steps[of]}, true
}

// genuine reports whether a token is ours for this order, in a time that tells nothing of
// the right one.
func (who *identity) genuine(token string, t callbackTarget, orderID string) bool {
	return hmac.Equal([]byte(token), []byte(who.token(t, orderID)))
}
