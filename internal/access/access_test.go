package access_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pawl/db"
	"pawl/internal/access"
	"pawl/internal/pg"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

func open(t *testing.T) (*access.Control, *dbtest.Database) {
	t.Helper()
	d := dbtest.New(t)
	return control(t, d.Pool), d
}

func control(t *testing.T, on db.DBTX) *access.Control {
	t.Helper()
	c, err := access.New(t.Context(), db.New(on), access.Config{})
	assert.NoError(t, err)
	t.Cleanup(c.Stop)
	return c
}

// TestOpenService has who uses a service in which no token was ever made.
func TestOpenService(t *testing.T) {
	t.Parallel()
	c, _ := open(t)
	here, there := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.7")
	for _, q := range []struct {
		name    string
		request access.Request
		want    *access.Principal // nil: nobody
	}{
		{"this machine", access.Request{Address: here, Local: true}, access.Local},
		{"another machine", access.Request{Address: there}, access.Anonymous},
		{"through a proxy on this machine", access.Request{Address: here, Forwarded: true}, nil},
		{"a token that is none", access.Request{Address: here, Local: true, Authorization: "Bearer secret"}, nil},
		{"a password", access.Request{Address: here, Local: true, Authorization: "Basic YTpi"}, nil},
	} {
		p, err := c.Identify(t.Context(), q.request)
		var stranger *access.NotIdentified
		assert.True(t, p == q.want && (q.want != nil || errors.As(err, &stranger)), q.name, p, err)
	}
	assert.True(t, c.Open(t.Context()), "not open")
}

// TestStopped: who asks after Stop is told that nobody can tell.
func TestStopped(t *testing.T) {
	t.Parallel()
	c, d := open(t)
	shop := create(t, d, "shop", access.Submit)
	c.Stop()
	p, err := c.Identify(t.Context(), bearer(shop.Token))
	assert.True(t, p == nil && errors.Is(err, access.ErrUnavailable), p, err)
}

func create(t *testing.T, d *dbtest.Database, name string, roles ...access.Role) access.Issued {
	t.Helper()
	issued, err := access.Create(t.Context(), db.New(d.Pool), access.Template{Name: name, Roles: roles, Lifetime: time.Hour, Actor: "test"})
	assert.NoError(t, err)
	return issued
}

func bearer(token string) access.Request { return access.Request{Authorization: "bearer " + token} }

// TestTokens: who has a good one is known; the ends of a token are seen within seconds.
func TestTokens(t *testing.T) {
	t.Parallel()
	c, d := open(t)
	query := db.New(d.Pool)
	first := create(t, d, "shop", access.Submit)
	p, err := c.Identify(t.Context(), bearer(first.Token))
	assert.Require(t, err == nil && p.Name == "token:shop" && p.Has(access.Submit) && !p.Has(access.Read), p, err)
	assert.Eventually(t, "its use is noted", func() bool {
		list, err := query.TokensList(t.Context())
		return err == nil && len(list) == 1 && list[0].UsedAt != nil
	})
	second, err := access.Rotate(t.Context(), query, access.Template{Name: "shop", Lifetime: time.Hour, Actor: "test"}, time.Minute)
	assert.NoError(t, err)
	for _, token := range []string{first.Token, second.Token} { // for the time of grace both are good
		p, err := c.Identify(t.Context(), bearer(token))
		assert.True(t, err == nil && p.Name == "token:shop" && p.Has(access.Submit), p, err)
	}
	assert.NoError(t, assert.Err(access.Revoke(t.Context(), query, first.ID, "test")))
	assert.NoError(t, assert.Err(d.Pool.Exec(t.Context(), `UPDATE tokens SET expires_at = now() WHERE id = $1`, second.ID)))
	for token, want := range map[string]string{first.Token: "The token was revoked.", second.Token: "The token has expired."} {
		assert.Eventually(t, want, func() bool {
			_, err := c.Identify(t.Context(), bearer(token))
			return err != nil && err.Error() == want
		})
	}
}

// TestTokensAreRemembered: callers that come at once share one statement, and what has a wrong checksum costs none.
func TestTokensAreRemembered(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	counter := &dbtest.Statements{}
	c := control(t, dbtest.Open(t, d.URL, pg.Options{MaxConns: 4, Observe: counter.Observe}))
	token := create(t, d, "shop", access.Submit).Token
	before, began := counter.Sent(), time.Now()
	var callers sync.WaitGroup
	for range 16 {
		callers.Go(func() {
			for range 100 {
				assert.Succeeds(t, assert.Err(c.Identify(t.Context(), bearer(token))))
				assert.True(t, assert.Err(c.Identify(t.Context(), bearer(token[:60]+"1234"))) != nil, "it is taken")
			}
		})
	}
	callers.Wait()
	most := 2 + 2*int(time.Since(began)/time.Second) // one, the note of its use, and one for every two seconds
	sent := counter.Sent() - before
	assert.True(t, sent <= most, sent, "statements, want", most, "at most")
}

// TestManyRequestsAtOnce: a client that begins with many at once has not tried many tokens, and neither have many clients
// behind one address.
func TestManyRequestsAtOnce(t *testing.T) {
	t.Parallel()
	c, d := open(t)
	var tokens []string
	for i := range 40 {
		tokens = append(tokens, create(t, d, fmt.Sprintf("shop-%d", i), access.Submit).Token)
	}
	ready := make(chan struct{})
	var callers sync.WaitGroup
	for i := range 400 {
		callers.Go(func() {
			<-ready
			assert.Succeeds(t, assert.Err(c.Identify(t.Context(), bearer(tokens[i%len(tokens)]))))
		})
	}
	close(ready)
	callers.Wait()
}

// TestAddressOfSomebodyWhoGuesses: what he does to the address is no harm to those there who are known.
func TestAddressOfSomebodyWhoGuesses(t *testing.T) {
	t.Parallel()
	c, d := open(t)
	token, other := create(t, d, "shop", access.Submit).Token, create(t, d, "other", access.Submit).Token
	assert.NoError(t, assert.Err(c.Identify(t.Context(), bearer(token))))
	var over *access.Exceeded
	for range 100 {
		if _, err := c.Identify(t.Context(), bearer("guess")); errors.As(err, &over) {
			break
		}
	}
	_, err := c.Identify(t.Context(), bearer(other))
	assert.True(t, over != nil && errors.As(err, &over), "one who was not seen before", err, "want what the guesses are answered")
	c.Forget()
	p, err := c.Identify(t.Context(), bearer(token))
	assert.True(t, err == nil && p.Name == "token:shop", "one who is known", p, err)
}

// TestADatabaseThatIsAway says who nobody is: that is no reason to let anybody in, nor to say that a token is wrong.
func TestADatabaseThatIsAway(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	pool := dbtest.Open(t, d.URL, pg.Options{MaxConns: 2})
	token, c := create(t, d, "shop", access.Submit).Token, control(t, pool)
	pool.Close()
	assert.ErrorIs(t, assert.Err(c.Identify(t.Context(), bearer(token))), access.ErrUnavailable, "with a token")
	assert.True(t, !c.Open(t.Context()), "it is open")
}

// TestLostReads: nobody hears of it when the connection is lost by which it is read who he is.
func TestLostReads(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	proxy := dbtest.NewProxy(t, d.URL)
	c := control(t, dbtest.Open(t, proxy.URL, pg.Options{MaxConns: 2}))
	var lost atomic.Int32
	for i, fate := range []dbtest.Fate{dbtest.LoseRequest, dbtest.LoseReply} {
		name := fmt.Sprintf("shop-%d", i)
		issued := create(t, d, name, access.Submit)
		proxy.On(func(statement string) dbtest.Fate {
			if statement == "TokenGet" && lost.CompareAndSwap(int32(i), int32(i)+1) {
				return fate
			}
			return dbtest.Passes
		})
		p, err := c.Identify(t.Context(), bearer(issued.Token))
		assert.True(t, err == nil && p.Name == "token:"+name, fate, p, err)
	}
	proxy.On(nil)
	assert.Equal(t, lost.Load(), 2, "reads were lost")
}

// TestRotateAtOnce: of those who replace a token at one time, one does.
func TestRotateAtOnce(t *testing.T) {
	t.Parallel()
	_, d := open(t)
	create(t, d, "shop", access.Submit)
	var made atomic.Int32
	var callers sync.WaitGroup
	for range 6 {
		callers.Go(func() {
			_, err := access.Rotate(t.Context(), db.New(d.Pool), access.Template{Name: "shop", Lifetime: time.Hour, Actor: "test"}, time.Hour)
			if err == nil {
				made.Add(1)
			} else if !errors.Is(err, access.ErrNotFound) {
				t.Error(err)
			}
		})
	}
	callers.Wait()
	list, err := db.New(d.Pool).TokensList(t.Context())
	assert.NoError(t, err)
	good := slices.DeleteFunc(list, func(row db.TokensListRow) bool { return row.State != "good" })
	assert.True(t, len(good) == 1 && len(list) == 1+int(made.Load()), len(good), "are good, of", made.Load(), "made")
}

// TestTokensAreHashed: nothing in the database can be sent as a token.
func TestTokensAreHashed(t *testing.T) {
	t.Parallel()
	_, d := open(t)
	issued := create(t, d, "shop", access.Submit)
	secret, found := issued.Token[len("pawl_")+len(issued.ID):], 0
	err := d.Pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM tokens AS t WHERE strpos(t::text, $1) > 0)
		+ (SELECT count(*) FROM access_log AS l WHERE strpos(l::text, $1) > 0)`, secret).Scan(&found)
	assert.True(t, err == nil && found == 0, "the secret is in", found, "rows", err)
}

// TestTokensAreKept: without its rows the service would be open again.
func TestTokensAreKept(t *testing.T) {
	t.Parallel()
	_, d := open(t)
	create(t, d, "shop", access.Submit)
	for _, statement := range []string{`DELETE FROM tokens`, `TRUNCATE tokens`, `DELETE FROM access_log`, `UPDATE access_log SET actor = 'me'`} {
		assert.True(t, assert.Err(d.Pool.Exec(t.Context(), statement)) != nil, statement)
	}
}
