package access

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"hash/crc32"
	"math/big"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"pawl/db"
)

// The errors of changes of tokens.
var (
	ErrExists   = errors.New("a token with this name exists")
	ErrNotFound = errors.New("no such token")
)

// Template describes a token to create.
type Template struct {
	Name     string // in the history: token:name. Small letters, digits, dots, hyphens and underscores; up to 63
	Roles    Roles
	Limits   Limits
	Lifetime time.Duration
	Actor    string // who creates it, for the access log
}

// Issued is a new token. Its text is stored nowhere.
type Issued struct {
	Token, ID string
	ExpiresAt time.Time
}

// Create creates a token. The first one closes the service to callers without a credential. Errors: ErrExists.
func Create(ctx context.Context, query *db.Queries, t Template) (Issued, error) {
	return issue("create token", ErrExists, func(id string, hash []byte) (time.Time, error) {
		return query.TokenCreate(ctx, db.TokenCreateParams{
			ID: id, Name: t.Name, Sha256: hash, Roles: texts(t.Roles), Actor: t.Actor, LifetimeSeconds: t.Lifetime.Seconds(),
			RateLimit: t.Limits.Rate, InFlightLimit: t.Limits.InFlight, ByteLimit: t.Limits.Bytes,
		})
	})
}

// issue creates and stores a token. refused is the error if nothing was stored.
func issue(doing string, refused error, store func(id string, hash []byte) (time.Time, error)) (Issued, error) {
	token, id := newToken()
	hash := hashOf(token)
	expires, err := store(id, hash[:])
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return Issued{}, refused
	case err != nil:
		return Issued{}, fmt.Errorf("%s: %w", doing, err)
	}
	return Issued{token, id, expires}, nil
}

// Rotate replaces the token with a name by a new one with the same roles and limits. The old one expires after grace,
// or earlier. Of the template, only name, lifetime and actor are used. Errors: ErrNotFound.
func Rotate(ctx context.Context, query *db.Queries, t Template, grace time.Duration) (Issued, error) {
	return issue("rotate token", ErrNotFound, func(id string, hash []byte) (time.Time, error) {
		return query.TokenRotate(ctx, db.TokenRotateParams{
			ID: id, Name: t.Name, Sha256: hash, Actor: t.Actor, LifetimeSeconds: t.Lifetime.Seconds(), GraceSeconds: grace.Seconds(),
		})
	})
}

// Revoke ends all tokens with a name, or the one with an id, and returns their ids. Services notice within seconds.
// Errors: ErrNotFound.
func Revoke(ctx context.Context, query *db.Queries, nameOrID, actor string) ([]string, error) {
	ids, err := query.TokensRevoke(ctx, db.TokensRevokeParams{NameOrID: nameOrID, Actor: actor})
	switch {
	case err != nil:
		return nil, fmt.Errorf("revoke token: %w", err)
	case len(ids) == 0:
		return nil, ErrNotFound
	}
	return ids, nil
}

// Test returns the principal of a token and when it expires, even if it has expired or was revoked. Errors:
// *NotIdentified.
func Test(ctx context.Context, query *db.Queries, token string) (*Principal, time.Time, error) {
	id, ok := tokenID(token)
	if !ok {
		return nil, time.Time{}, errUnknown
	}
	row, err := query.TokenGet(ctx, id)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, time.Time{}, errUnknown
	case err != nil:
		return nil, time.Time{}, fmt.Errorf("read token: %w", err)
	}
	known := grantOf(&row, time.Now())
	if err = known.judge(token); errors.Is(err, errUnknown) {
		return nil, time.Time{}, err
	}
	return known.principal, row.ExpiresAt, err
}

var nameForm = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// ValidName reports whether a token can have a name.
func ValidName(name string) bool { return nameForm.MatchString(name) }

// ParseRoles reads the names of roles, at least one.
func ParseRoles(names []string) (Roles, error) {
	if len(names) == 0 {
		return nil, fmt.Errorf("must be some of %s", AllRoles)
	}
	for _, name := range names {
		if !AllRoles.Has(Role(name)) {
			return nil, fmt.Errorf("unknown role %q: must be one of %s", name, AllRoles)
		}
	}
	return slices.DeleteFunc(slices.Clone(AllRoles), func(r Role) bool { return !slices.Contains(names, string(r)) }), nil
}

func texts(roles Roles) []string {
	names := []string{} // nil is NULL
	for _, role := range roles {
		names = append(names, string(role))
	}
	return names
}

const tokenFor = 4 * time.Second // how long a token that was read is cached

// grant is a token as it was read.
type grant struct {
	principal *Principal
	sha256    [sha256.Size]byte
	revoked   bool
	expires   time.Time
	news      atomic.Bool // its use is not stored yet
}

// holder is the principal of a token or session, by its key in a cache. Unknown credentials cost a read of the
// database, so an address may fail only a number of times.
func (c *Control) holder(ctx context.Context, of *cache[*grant], key string, by attemptBy) (*Principal, error) {
	find := func(ctx context.Context) (*Principal, error) {
		known, err := of.get(ctx, key)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil, errUnknown
		}
		if err == nil {
			err = known.judge(by.credential)
		}
		if err != nil {
			return nil, err
		}
		if known.news.CompareAndSwap(true, false) {
			c.begin(func() { c.noteUse(key) })
		}
		return known.principal, nil
	}
	if last, ok := of.last.Peek(key); ok && last.value.judge(by.credential) == nil {
		return find(ctx)
	}
	return c.attempt(ctx, by, find)
}

// judge returns nil while the token of the grant is valid. Errors: *NotIdentified.
func (g *grant) judge(token string) error {
	hash := hashOf(token)
	switch {
	case subtle.ConstantTimeCompare(hash[:], g.sha256[:]) != 1:
		return errUnknown
	case g.revoked:
		return errRevoked
	case !time.Now().Before(g.expires):
		return errExpired
	}
	return nil
}

// noteUse stores that a token was used. If that fails, the request is still accepted.
func (c *Control) noteUse(id string) {
	ctx, cancel := context.WithTimeout(c.life, readLimit)
	defer cancel()
	if err := c.query.TokenUsed(ctx, id); err != nil {
		c.log.Warn("token use not recorded", "token", id, "error", err)
	}
}

// readToken reads a token.
func (c *Control) readToken(ctx context.Context, id string) (*grant, error) {
	began := time.Now()
	row, err := c.query.TokenGet(ctx, id)
	if err != nil {
		return nil, err
	}
	return grantOf(&row, began), nil
}

// grantOf returns the token of a row that was read at a time.
func grantOf(row *db.TokenGetRow, at time.Time) *grant {
	left := time.Duration(row.SecondsLeft * float64(time.Second)) // our clock may differ from the database's
	known := &grant{revoked: row.Revoked, expires: at.Add(left), principal: &Principal{
		Name: "token:" + row.Name, Limits: Limits{Rate: row.RateLimit, InFlight: row.InFlightLimit, Bytes: row.ByteLimit},
	}}
	for _, role := range row.Roles {
		known.principal.Roles = append(known.principal.Roles, Role(role))
	}
	copy(known.sha256[:], row.Sha256)
	known.news.Store(row.UseIsNews)
	return known
}

// A token is pawl_, an id of 10 characters by which it is found, a secret of 43 with 256 random bits, and a checksum of
// 6, all in base 62. Secret scanners recognize its form, and mistyped tokens fail the checksum without a read of the
// database.
const (
	tokenPrefix    = "pawl_"
	idLength       = 10
	secretLength   = 43
	checksumLength = 6
	tokenLength    = len(tokenPrefix) + idLength + secretLength + checksumLength
)

const digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// newToken creates a token and returns it with its id.
func newToken() (token, id string) {
	id = randomDigits(idLength)
	token = tokenPrefix + id + randomDigits(secretLength)
	return token + checksum(token), id
}

// randomDigits returns random digits in base 62.
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

// checksum is the end of a token, most significant digit first. It is checked with every request.
func checksum(rest string) string {
	text := [checksumLength]byte{}
	for i, n := checksumLength-1, crc32.ChecksumIEEE([]byte(rest)); i >= 0; i, n = i-1, n/uint32(len(digits)) {
		text[i] = digits[n%uint32(len(digits))]
	}
	return string(text[:])
}

// tokenID is the id in a text that has the form of a token.
func tokenID(token string) (id string, ok bool) {
	if len(token) != tokenLength || !strings.HasPrefix(token, tokenPrefix) {
		return "", false
	}
	end := tokenLength - checksumLength
	return token[len(tokenPrefix) : len(tokenPrefix)+idLength], token[end:] == checksum(token[:end])
}

// hashOf is the hash of a token that is stored. It needs no salt: 256 random bits can't be guessed.
func hashOf(token string) [sha256.Size]byte { return sha256.Sum256([]byte(token)) }
