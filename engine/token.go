package engine

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/google/uuid"

	"pawl/fsm"
)

// identity is who we are to providers.
type identity struct {
	id     uuid.UUID
	secret []byte
}

// A token is what a provider completes a step with: the number of the order, a hash of its id, the generation, the step,
// and a code over them that only this installation can make. It needs no row to be known by, and is the same on every
// call, as the body it is sent in must be. So a forged token is known before anything is read. The hash is there
// because in a database that was restored the same number may be another order's.
const (
	tokenFields = 8 + tokenHash + 4 + 1
	tokenHash   = 8
	tokenCode   = 16
)

var tokenText = base32.StdEncoding.WithPadding(base32.NoPadding)

// callbackTarget is what a token is for.
type callbackTarget struct {
	orderNo    int64
	orderHash  [tokenHash]byte
	generation int32
	step       fsm.Step
}

func newTarget(orderNo int64, orderID string, generation int32, of fsm.Step) callbackTarget {
	return callbackTarget{orderNo, hashOf(orderID), generation, of}
}

func hashOf(orderID string) (hash [tokenHash]byte) {
	sum := sha256.Sum256([]byte(orderID))
	copy(hash[:], sum[:])
	return hash
}

// token makes the token of a step. It is 60 lower-case letters and digits.
func (who *identity) token(t callbackTarget) string {
	fields := make([]byte, 0, tokenFields+tokenCode)
	fields = binary.BigEndian.AppendUint64(fields, uint64(t.orderNo))
	fields = append(fields, t.orderHash[:]...)
	fields = binary.BigEndian.AppendUint32(fields, uint32(t.generation))
	fields = append(fields, byte(slices.Index(fsm.Steps(), t.step)))
	return strings.ToLower(tokenText.EncodeToString(append(fields, who.code(fields)...)))
}

// tokens are those of all steps.
func (who *identity) tokens(t callbackTarget) (all []string) {
	for _, t.step = range fsm.Steps() {
		all = append(all, who.token(t))
	}
	return all
}

func (who *identity) code(fields []byte) []byte {
	mac := hmac.New(sha256.New, who.secret)
	mac.Write([]byte("callback"))
	mac.Write(fields)
	return mac.Sum(nil)[:tokenCode]
}

// readToken says what a token is for; false: it is none of ours. The comparison takes a time that tells nothing of the
// right code.
func (who *identity) readToken(token string) (t callbackTarget, ok bool) {
	data, err := tokenText.DecodeString(strings.ToUpper(token))
	if err != nil || len(data) != tokenFields+tokenCode {
		return t, false
	}
	of := int(data[tokenFields-1])
	if of >= len(fsm.Steps()) {
		return t, false
	}
	t = callbackTarget{orderNo: int64(binary.BigEndian.Uint64(data)), step: fsm.Steps()[of],
		generation: int32(binary.BigEndian.Uint32(data[8+tokenHash:]))}
	copy(t.orderHash[:], data[8:])
	return t, hmac.Equal([]byte(token), []byte(who.token(t)))
}
