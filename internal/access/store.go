package access

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"pawl/db"
)

// Why tokens are not changed as asked.
var (
	ErrExists   = errors.New("there is a token of that name")
	ErrNotFound = errors.New("there is no such token")
)

// Template is what a token shall be.
type Template struct {
	Name     string // in the history: token:name. Small letters, digits, dots, hyphens and underscores; up to 63
	Roles    Roles
	Limits   Limits
	Lifetime time.Duration
	Actor    string // who makes it, for the access log
}

// Issued is a token that was just made. Its text is not kept anywhere.
type Issued struct {
	Token, ID string
	ExpiresAt time.Time
}

// Create makes a token. From the first one on the service is closed to those without a credential. Errors: ErrExists.
func Create(ctx context.Context, query *db.Queries, t Template) (Issued, error) {
	return issue("create token", ErrExists, func(id string, hash []byte) (time.Time, error) {
		return query.TokenCreate(ctx, db.TokenCreateParams{
			ID: id, Name: t.Name, Sha256: hash, Roles: texts(t.Roles), Actor: t.Actor, LifetimeSeconds: t.Lifetime.Seconds(),
			RateLimit: t.Limits.Rate, InFlightLimit: t.Limits.InFlight, ByteLimit: t.Limits.Bytes,
		})
	})
}

// issue makes a token and has it stored, which says when it expires. refused is the error where no row says so.
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

// Rotate makes a token in place of the one of the name, with its roles and limits. The old one expires after grace, if it
// does not before. Of the template only name, lifetime and actor count. Errors: ErrNotFound.
func Rotate(ctx context.Context, query *db.Queries, t Template, grace time.Duration) (Issued, error) {
	return issue("rotate token", ErrNotFound, func(id string, hash []byte) (time.Time, error) {
		return query.TokenRotate(ctx, db.TokenRotateParams{
			ID: id, Name: t.Name, Sha256: hash, Actor: t.Actor, LifetimeSeconds: t.Lifetime.Seconds(), GraceSeconds: grace.Seconds(),
		})
	})
}

// Revoke ends all tokens of a name, or the one of an id, and returns their ids. Services see it within seconds. Errors:
// ErrNotFound.
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

// Test says who has a token, until when; also of one that was good once. Errors: *NotIdentified.
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
		return nil, fmt.Errorf("want some of %s", AllRoles)
	}
	for _, name := range names {
		if !AllRoles.Has(Role(name)) {
			return nil, fmt.Errorf("%q is no role: there are %s", name, AllRoles)
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
