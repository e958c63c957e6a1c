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
// needs no row to be known by, and is the same on every attempt, as the body it is sent in
// must be.
const (
	tokenFields = 8 + 4 + 1
	tokenCode   = 16
)

var tokenText = base32.StdEncoding.WithPadding(base32.NoPadding)

// token makes the token of a step. It is 47 lower-case letters and digits.
func (who *identity) token(orderNo int64, generation int32, of fsm.Step) string {
	fields := make([]byte, 0, tokenFields+tokenCode)
	fields = binary.BigEndian.AppendUint64(fields, uint64(orderNo))
	fields = binary.BigEndian.AppendUint32(fields, uint32(generation))
	fields = append(fields, byte(slices.Index(fsm.Steps(), of)))
	return strings.ToLower(tokenText.EncodeToString(append(fields, who.code(fields)...)))
}

func (who *identity) code(fields []byte) []byte {
	mac := hmac.New(sha256.New, who.secret)
	mac.Write([]byte("callback"))
	mac.Write(fields)
	return mac.Sum(nil)[:tokenCode]
}

// open says what a token is for; false: it is none of ours.
func (who *identity) open(token string) (orderNo int64, generation int32, of fsm.Step, ok bool) {
	data, err := tokenText.DecodeString(strings.ToUpper(token))
	if err != nil || len(data) != tokenFields+tokenCode {
		return 0, 0, "", false
	}
	fields, code := data[:tokenFields:tokenFields], data[tokenFields:]
	steps := fsm.Steps()
	if !hmac.Equal(code, who.code(fields)) || int(fields[tokenFields-1]) >= len(steps) {
		return 0, 0, "", false
	}
	return int64(binary.BigEndian.Uint64(fields)), int32(binary.BigEndian.Uint32(fields[8:])), steps[fields[tokenFields-1]], true
}
