package engine

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"hash"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"

	"pawl/fsm"
)

// identity is the identity of this installation toward providers.
type identity struct {
	id     uuid.UUID
	secret []byte
	macs   sync.Pool // of hash.Hash with the secret: each call needs three, and making one takes longer than using it
}

// A token lets a provider complete a step by callback. It consists of a hash of the id of the order, its number, the
// generation, the step, and a MAC over them. The hash comes first, so that a proxy can tell the cell by the first
// characters. It needs no row in the database, so forged tokens are detected before
// anything is read, and it is the same in every call, as the body that contains it must be. The hash is needed because
// in a restored database, the same number may belong to another order.
const (
	tokenFields = tokenHash + 8 + 4 + 1
	tokenHash   = 8
	tokenCode   = 16
)

var tokenText = base32.StdEncoding.WithPadding(base32.NoPadding)

// callbackTarget is the step that a token is for.
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

// TokenHash returns the first byte of the hash of the order that a token is for, or false if it is not a token. It
// proves nothing: the token may be forged.
func TokenHash(token string) (first byte, ok bool) {
	data, ok := decodeToken(token)
	if !ok {
		return 0, false
	}
	return data[0], true
}

func decodeToken(token string) (data []byte, ok bool) {
	data, err := tokenText.DecodeString(strings.ToUpper(token))
	return data, err == nil && len(data) == tokenFields+tokenCode
}

// token returns the token of a step: 60 lower-case letters and digits.
func (who *identity) token(t callbackTarget) string {
	fields := make([]byte, 0, tokenFields+tokenCode)
	fields = append(fields, t.orderHash[:]...)
	fields = binary.BigEndian.AppendUint64(fields, uint64(t.orderNo))
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
	mac, made := who.macs.Get().(hash.Hash)
	if !made {
		mac = hmac.New(sha256.New, who.secret)
	}
	defer who.macs.Put(mac)
	mac.Reset()
	mac.Write([]byte("callback"))
	mac.Write(fields)
	return mac.Sum(nil)[:tokenCode]
}

// readToken returns the step that a token is for, or false for a forged token. It compares the MAC in constant time.
func (who *identity) readToken(token string) (t callbackTarget, ok bool) {
	data, ok := decodeToken(token)
	if !ok {
		return t, false
	}
	of := int(data[tokenFields-1])
	if of >= len(fsm.Steps()) {
		return t, false
	}
	t = callbackTarget{orderNo: int64(binary.BigEndian.Uint64(data[tokenHash:])), step: fsm.Steps()[of],
		generation: int32(binary.BigEndian.Uint32(data[tokenHash+8:]))}
	copy(t.orderHash[:], data)
	return t, hmac.Equal([]byte(token), []byte(who.token(t)))
}
