package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"pawl/db"
	"pawl/internal/pg"
)

// Service is what is known of the service that is to use a database.
type Service struct {
	MaxConns      int    // most connections of a replica
	AllowDataLoss bool   // it serves on a database that may lose commits
	OwnServer     bool   // the PostgreSQL is one of pgembed's, where the service is a superuser
	Version       int64  // the newest migration that it has
	Installation  string // its name; empty: none
}

// answerLimit is how long the database has for everything that is asked.
const answerLimit = 30 * time.Second

// Database looks at the database at url, as a service would use it.
func Database(ctx context.Context, url string, service Service) []Finding {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	began := time.Now()
	pool, err := pg.Open(ctx, url, pg.Options{MaxConns: 2})
	if err != nil {
		return []Finding{unreachable(err)}
	}
	defer pool.Close()
	p := patient{pool: pool, query: db.New(pool), url: url, service: service}
	if err := p.readFacts(ctx); err != nil {
		return []Finding{{"database", Wrong, err.Error(), ""}}
	}
	findings := []Finding{good("database", "%s, PostgreSQL %s, %s, connected in %d ms",
		p.facts.Database, p.version, bytes(p.facts.Size), time.Since(began).Milliseconds())}
	for _, look := range []struct {
		subject string
		at      func(context.Context) ([]Finding, error)
		ofOurs  bool // it looks at tables of ours, as they are when no migration is pending
	}{
		{"server", p.server, false}, {"durability", p.durability, false}, {"connections", p.connections, false},
		{"clock", p.clock, false}, {"role", p.role, false}, {"migrations", p.migrations, false},
		{"schema", p.schema, true}, {"installation", p.installation, true}, {"events", p.events, true}, {"webhooks", p.webhooks, true}, {"tokens", p.tokens, true},
	} {
		if look.ofOurs && p.pending {
			continue
		}
		found, err := look.at(ctx)
		if err != nil {
			found = []Finding{{look.subject, Wrong, err.Error(), adviceOnRights(err)}}
		}
		findings = append(findings, found...)
	}
	return findings
}

// patient is a database that is being looked at.
type patient struct {
	pool    *pg.Pool
	query   *db.Queries
	url     string
	service Service
	facts   db.ServerFactsRow
	version string
	pending bool // the schema has to be migrated first
}

func (p *patient) readFacts(ctx context.Context) (err error) {
	if p.facts, err = p.query.ServerFacts(ctx); err != nil {
		return fmt.Errorf("read facts of the server: %w", err)
	}
	settings, err := readSettings(ctx, p.query, "server_version")
	p.version = settings["server_version"]
	return err
}

// unreachable says why there is no connection, and what to do for the usual reasons.
func unreachable(err error) Finding {
	f := Finding{Subject: "database", State: Wrong, Found: err.Error()}
	var wrongURL *pgconn.ParseConfigError
	var refused *pgconn.PgError
	var lookUp *net.DNSError
	switch {
	case errors.Is(err, pg.ErrUntrusted): // says what to do
	case errors.As(err, &wrongURL):
		f.Advice = "write it as postgres://USER:PASSWORD@HOST:5432/DATABASE"
	case errors.As(err, &refused):
		f.Found = "connect to database: " + refused.Error() // without what was tried before, such as TLS
		f.Advice = adviceOn(refused.Code)
	case errors.As(err, &lookUp):
		f.Advice = "correct the name of the host"
	default:
		f.Advice = "start PostgreSQL there, or correct host and port; look at firewalls in between"
	}
	return f
}

// adviceOn is what to do about the answer of a server that lets nobody in.
func adviceOn(sqlstate string) string {
	switch {
	case strings.HasPrefix(sqlstate, "28"):
		return "correct user and password, or let the user in by pg_hba.conf"
	case sqlstate == "3D000": // invalid_catalog_name
		return "make the database: createdb NAME"
	case sqlstate == "42501": // insufficient_privilege
		return "GRANT CONNECT ON DATABASE … TO the user"
	case sqlstate == "53300": // too_many_connections
		return "raise max_connections, or lower what its callers use"
	case sqlstate == "57P03": // cannot_connect_now
		return "wait until it has started"
	default:
		return ""
	}
}

// adviceOnRights is what to do when the role may not look.
func adviceOnRights(err error) string {
	if pg.CodeOf(err) == "42501" { // insufficient_privilege
		return "log in as a member of pawl_serve, which pawl migrate roles makes: see docs/operations.md, Roles of the database"
	}
	return "read the log of PostgreSQL"
}

// server is about what the service needs of the server, or is slower without.
func (p *patient) server(ctx context.Context) ([]Finding, error) {
	settings, err := readSettings(ctx, p.query, namesOf(serverRules)...)
	findings := judge("server", settings, serverRules)
	if p.facts.Standby {
		findings = append(findings, Finding{"server", Wrong, "this is a standby: nothing can be written", "name the primary"})
	}
	return summarize("server", "its settings are fine", findings), err
}

func (p *patient) durability(ctx context.Context) ([]Finding, error) {
	findings, err := Durability(ctx, p.query, p.service.AllowDataLoss)
	return summarize("durability", "what is committed stays", findings), err
}

// Durability says by what settings a database may lose what it has acknowledged; nothing if by none. Where the loss is
// allowed, they are warnings.
func Durability(ctx context.Context, query *db.Queries, lossAllowed bool) ([]Finding, error) {
	settings, err := readSettings(ctx, query, append(namesOf(durabilityRules), "synchronous_standby_names")...)
	if err != nil {
		return nil, err
	}
	standbys, err := query.ServerStandbys(ctx)
	if err != nil {
		return nil, fmt.Errorf("read standbys: %w", err)
	}
	return append(durability(settings, lossAllowed), replication(settings, standbys)...), nil
}

// bytes writes a size for people.
func bytes(n int64) string {
	for _, unit := range []string{"bytes", "kB", "MB", "GB"} {
		if n < 10_000 {
			return fmt.Sprintf("%d %s", n, unit)
		}
		n /= 1000
	}
	return fmt.Sprintf("%d TB", n)
}
