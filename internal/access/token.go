package access

import (
	"crypto/rand"
	"crypto/sha256"
	"hash/crc32"
	"math/big"
	"strings"
)

// A token is pawl_, an id of 10 characters by which it is found, a secret of 43 with 256 random bits, and a checksum of 6, all in
// base 62. Scanners of source code know it by its form, and the checksum keeps what was mistyped away from the database.
const (
	tokenPrefix    = "pawl_"
	idLength       = 10
	secretLength   = 43
	checksumLength = 6
	tokenLength    = len(tokenPrefix) + idLength + secretLength + checksumLength
)

const digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// newToken makes a token and returns it with its id.
func newToken() (token, id string) {
	id = randomDigits(idLength)
	token = tokenPrefix + id + randomDigits(secretLength)
	return token + checksum(token), id
}

// randomDigits returns digits in base 62 with as much chance in them as fits.
func randomDigits(length int) string {
	base, digit := big.NewInt(int64(len(digits))), new(big.Int)
	n, _ := rand.Int(rand.Reader, new(big.Int).Exp(base, big.NewInt(int64(length)), nil)) // it never fails
	text := make([]byte, length)
	for i := range text {
		n.DivMod(n, base, digit)
		text[i] = digits[digit.Int64()]
	}
	return string(text)
}

// checksum is what a token ends with, most significant digit first. It is checked with every request.
func checksum(rest string) string {
	text := [checksumLength]byte{}
	for i, n := checksumLength-1, crc32.ChecksumIEEE([]byte(rest)); i >= 0; i, n = i-1, n/uint32(len(digits)) {
		text[i] = digits[n%uint32(len(digits))]
	}
	return string(text[:])
}

// tokenID is the id of what looks like a token.
func tokenID(token string) (id string, ok bool) {
	if len(token) != tokenLength || !strings.HasPrefix(token, tokenPrefix) {
		return "", false
	}
	end := tokenLength - checksumLength
	return token[len(tokenPrefix) : len(tokenPrefix)+idLength], token[end:] == checksum(token[:end])
}

// hashOf is what is stored of a token. It needs no salt: nobody guesses 256 bits.
func hashOf(token string) [sha256.Size]byte { return sha256.Sum256([]byte(token)) }
