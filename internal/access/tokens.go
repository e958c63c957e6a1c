package access

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"pawl/db"
)

const (
	tokenFor   = 4 * time.Second // how long a token is believed to be as it was read
	tokensMost = 10_000          // how many are remembered
)

// grant is what is known of a token.
type grant struct {
	principal *Principal
	sha256    [sha256.Size]byte
	revoked   bool
	expires   time.Time
	news      atomic.Bool // the database is to be told that it is used
}

// tokens are those that were used lately, by their ids. What is not known is not remembered: whoever makes up
// ids would push the others out. Sessions are remembered in the same way, by their cookies.
type tokens struct {
	control *Control
	read    func(ctx context.Context, id string) (*grant, error) // pgx.ErrNoRows: there is none of that id

	mu   sync.Mutex
	byID map[string]*recent[*grant]
}

// principal is who has a token. judged is what lastGood returned of it, if it was asked: that is not judged again.
func (t *tokens) principal(ctx context.Context, id, token string, judged *grant) (*Principal, error) {
	known, err := t.remembered(id).get(ctx, t.control, func(ctx context.Context) (*grant, error) {
		known, err := t.read(ctx, id)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil, nil
		}
		return known, err
	})
	if err != nil {
		return nil, err
	}
	if known == nil {
		t.forget(id)
		return nil, errUnknown
	}
	if known != judged {
		if err := known.judge(token); err != nil {
			return nil, err
		}
	}
	if known.news.CompareAndSwap(true, false) {
		t.control.begin(func() { t.control.noteUse(id) })
	}
	return known.principal, nil
}

// judge returns nil for the token of the grant while it is good. Errors: *NotIdentified.
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

// noteUse tells the database that a token is used. That it is not told is no reason to refuse anybody.
func (c *Control) noteUse(id string) {
	ctx, cancel := context.WithTimeout(c.life, readLimit)
	defer cancel()
	if err := c.query.TokenUsed(ctx, id); err != nil {
		c.log.Warn("the use of a token was not noted", "token", id, "error", err)
	}
}

func (t *tokens) remembered(id string) *recent[*grant] {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.byID) >= tokensMost || t.byID == nil {
		t.byID = map[string]*recent[*grant]{}
	}
	known, ok := t.byID[id]
	if !ok {
		known = &recent[*grant]{good: tokenFor}
		t.byID[id] = known
	}
	return known
}

// lastGood returns what was last read of a token if that says that it is good. Whoever has it does not guess.
func (t *tokens) lastGood(id, token string) *grant {
	t.mu.Lock()
	known, ok := t.byID[id]
	t.mu.Unlock()
	if !ok {
		return nil
	}
	if last := known.last(); last != nil && last.judge(token) == nil {
		return last
	}
	return nil
}

func (t *tokens) forget(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byID, id)
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

// grantOf is a token that was read at a time.
func grantOf(row *db.TokenGetRow, at time.Time) *grant {
	left := time.Duration(row.SecondsLeft * float64(time.Second)) // our clock may be another than the database's
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
