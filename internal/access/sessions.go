package access

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/jackc/pgx/v5"

	"pawl/db"
)

const linkLifetime = 10 * time.Minute

// ErrLink is the error of an invalid link: it was used, has expired or never existed, or its token has ended.
var ErrLink = errors.New("the link is not valid")

// MakeLink creates the secret of a link that signs a browser in once as the holder of a token, and returns when it
// expires. actor is for the access log. Errors: ErrNotFound.
func MakeLink(ctx context.Context, query *db.Queries, name, actor string) (link string, expires time.Time, err error) {
	link = randomDigits(secretLength)
	hash := hashOf(link)
	expires, err = query.SessionLink(ctx, db.SessionLinkParams{Name: name, LinkSha256: hash[:], LifetimeSeconds: linkLifetime.Seconds(), Actor: actor})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return "", time.Time{}, ErrNotFound
	case err != nil:
		return "", time.Time{}, fmt.Errorf("make link: %w", err)
	}
	return link, expires, nil
}

// Session is a new session.
type Session struct {
	Cookie    string // the value of the cookie
	Name      string // of the principal
	ExpiresAt time.Time
}

// OpenSession uses a link, which works once. previous is the cookie that the browser has, if any: its session ends.
// Errors: ErrLink, *Exceeded, ErrUnavailable.
func (c *Control) OpenSession(ctx context.Context, link, previous string, address netip.Addr) (*Session, error) {
	if c == nil || len(link) != secretLength {
		return nil, ErrLink
	}
	cookie := randomDigits(secretLength)
	hash, linkHash, previousHash := hashOf(cookie), hashOf(link), hashOf(previous)
	opened := db.SessionOpenRow{}
	// Not shared: of two requests that open a link, one succeeds.
	err := c.tryLink(ctx, attemptBy{address, cookie}, func(ctx context.Context) (err error) {
		opened, err = c.query.SessionOpen(ctx, db.SessionOpenParams{
			CookieSha256: hash[:], LinkSha256: linkHash[:], PreviousCookieSha256: previousHash[:], Address: addressText(address),
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	c.sessions.forget(previous)
	return &Session{Cookie: cookie, Name: "token:" + opened.Name, ExpiresAt: opened.ExpiresAt}, nil
}

// CheckLink returns ErrLink if a link can't open a session. It does not use the link. Errors: as OpenSession.
func (c *Control) CheckLink(ctx context.Context, link string, address netip.Addr) error {
	if c == nil || len(link) != secretLength {
		return ErrLink
	}
	hash := hashOf(link)
	return c.tryLink(ctx, attemptBy{address, link}, func(ctx context.Context) error {
		works, err := c.query.SessionLinkWorks(ctx, hash[:])
		if err == nil && !works {
			return pgx.ErrNoRows
		}
		return err
	})
}

// tryLink does something with a link, unless its address has failed too often. No row: ErrLink.
func (c *Control) tryLink(ctx context.Context, by attemptBy, do func(context.Context) error) error {
	_, err := c.attempt(ctx, by, func(ctx context.Context) (*Principal, error) {
		err := do(ctx)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil, &NotIdentified{Reason: ErrLink.Error(), Invalid: true}
		}
		return nil, err
	})
	if _, unknown := errors.AsType[*NotIdentified](err); unknown {
		return ErrLink
	}
	if _, exceeded := errors.AsType[*Exceeded](err); exceeded || err == nil {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// EndSession ends the session of a cookie. Other replicas see it within seconds. Errors: ErrUnavailable.
func (c *Control) EndSession(ctx context.Context, cookie string, address netip.Addr) error {
	if c == nil || len(cookie) != secretLength {
		return nil
	}
	hash := hashOf(cookie)
	if err := c.query.SessionEnd(ctx, db.SessionEndParams{CookieSha256: hash[:], Address: addressText(address)}); err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	c.sessions.forget(cookie)
	return nil
}

func addressText(address netip.Addr) string {
	if !address.IsValid() {
		return ""
	}
	return address.WithZone("").String()
}

var errSession = invalid("The session has ended. pawl token link makes a link that opens another one.")

// session returns the holder of a session.
func (c *Control) session(ctx context.Context, q Request) (*Principal, error) {
	if len(q.Session) != secretLength {
		return nil, errSession
	}
	p, err := c.holder(ctx, c.sessions, q.Session, attemptBy{q.Address, q.Session})
	if _, refused := errors.AsType[*NotIdentified](err); refused {
		err = errSession
	}
	return p, err
}

// readSession reads the session of a cookie.
func (c *Control) readSession(ctx context.Context, cookie string) (*grant, error) {
	began, hash := time.Now(), hashOf(cookie)
	row, err := c.query.SessionGet(ctx, hash[:])
	if err != nil {
		return nil, err
	}
	token := db.TokenGetRow{
		Name: row.Name, Sha256: hash[:], Roles: row.Roles, Revoked: row.Revoked, SecondsLeft: row.SecondsLeft,
		RateLimit: row.RateLimit, InFlightLimit: row.InFlightLimit, ByteLimit: row.ByteLimit,
	}
	return grantOf(&token, began), nil
}
