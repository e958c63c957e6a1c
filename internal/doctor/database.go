package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"pawl/db"
	"pawl/engine"
	"pawl/internal/pg"
	"pawl/migrations"
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

// spare is how many connections a replica makes beside its pool: to ask about statements that have no answer, and in
// the place of one that is not given back yet.
const spare = 2

// connections is about whether the server has room for a replica, and for another one.
func (p *patient) connections(ctx context.Context) ([]Finding, error) {
	settings, err := readSettings(ctx, p.query, "max_connections", "superuser_reserved_connections", "reserved_connections")
	if err != nil {
		return nil, err
	}
	now, err := p.query.ServerConnections(ctx, pg.ServiceName)
	if err != nil {
		return nil, fmt.Errorf("count connections: %w", err)
	}
	most := number(settings["max_connections"])
	usable := most - number(settings["superuser_reserved_connections"]) - number(settings["reserved_connections"])
	replica := p.service.MaxConns + spare
	found := fmt.Sprintf("max_connections is %d; in use: %d, by running services: %d. A replica has up to %d",
		most, now.Used, now.Services, replica)
	const advice = "raise max_connections, or lower --max-conns"
	switch {
	case p.pool.Pooled():
		return []Finding{good("connections", "a pooler shares them; in use: %d", now.Used)}, nil
	case usable < replica:
		return []Finding{{"connections", Wrong, found, advice}}, nil
	case usable-int(now.Used) < replica:
		return []Finding{{"connections", Warning, found + ", and there is no room for one more", advice}}, nil
	default:
		return []Finding{good("connections", "%s", found)}, nil
	}
}

func number(setting string) int {
	n, _ := strconv.Atoi(setting) // a setting that an older server does not have is 0
	return n
}

// clockMost is how far the clock of this machine may be off before somebody who compares logs is misled.
const clockMost = 2 * time.Second

// clock compares our clock with that of the database. The one of three answers that came back soonest tells best.
func (p *patient) clock(ctx context.Context) ([]Finding, error) {
	var off time.Duration
	soonest := answerLimit
	for range 3 {
		sent := time.Now()
		now, err := p.query.ServerTime(ctx)
		if err != nil {
			return nil, fmt.Errorf("read clock of the server: %w", err)
		}
		if took := time.Since(sent); took < soonest {
			soonest, off = took, sent.Round(0).Add(took/2).Sub(now)
		}
	}
	if off.Abs() > clockMost+soonest {
		return []Finding{{"clock", Warning, fmt.Sprintf("the clock of this machine is %s off that of the database. No order suffers, but logs mislead", off.Round(time.Millisecond)),
			"synchronize both clocks with NTP"}}, nil
	}
	return []Finding{good("clock", "%d ms off that of the database", off.Abs().Milliseconds())}, nil
}

// role is about the rights of the role that the service has on the server.
func (p *patient) role(context.Context) (findings []Finding, _ error) {
	f := p.facts
	switch {
	case p.service.OwnServer:
	case f.Superuser:
		findings = append(findings, Finding{"role", Warning, f.Role + " is a superuser: a compromised service could do anything on this server",
			"pawl migrate roles, and a role of its own for the service"})
	case f.Owner:
		findings = append(findings, Finding{"role", Warning, f.Role + " owns the tables: a compromised service could change them and create tokens",
			"pawl migrate roles, and a role of its own for the service"})
	}
	if !f.SeesStatements {
		findings = append(findings, Finding{"role", Warning, f.Role + " is not the role that logs in: Pawl can't see its own statements, and may take one that waits for lost",
			"log in as a member of " + f.Role + ", without SET role"})
	}
	return summarize("role", f.Role, findings), nil
}

// schema is about whether the statements of this program can run, and what guards the orders is there.
func (p *patient) schema(ctx context.Context) (findings []Finding, _ error) {
	switch err := engine.CheckSchema(ctx, p.pool, p.service.Version); {
	case errors.Is(err, engine.ErrNotMigrated):
		findings = append(findings, Finding{"schema", Wrong, err.Error(), "as the owner of the tables: pawl migrate up, which grants what is missing; for the rest see docs/runbook.md, Another schema"})
	case err != nil:
		return nil, err
	}
	idle, err := p.query.SchemaSwitchedOff(ctx)
	for _, what := range idle {
		findings = append(findings, Finding{"schema", Wrong, what, "find out who did it and why, mend it, and run pawl verify"})
	}
	return summarize("schema", "all statements can run on it", findings), err
}

// migrations is about files that were not applied. Where the role may apply them, the service does
// when it starts.
func (p *patient) migrations(ctx context.Context) ([]Finding, error) {
	list, err := migrations.Status(ctx, p.url)
	if missing, ok := errors.AsType[*pg.NoSchema](err); ok {
		p.pending = true
		return []Finding{{"migrations", Wrong, missing.Found, missing.Advice}}, nil
	}
	if err != nil {
		return nil, err
	}
	pending := 0
	for _, m := range list {
		if !m.Applied {
			pending++
		}
	}
	if p.pending = pending > 0; !p.pending {
		return summarize("migrations", fmt.Sprintf("all %d are applied", len(list)), nil), nil
	}
	f := Finding{"migrations", Warning, fmt.Sprintf("%d of %d are pending", pending, len(list)), "pawl migrate up, or pawl serve, which does it, too"}
	if may, err := p.query.SchemaMayMigrate(ctx); err != nil {
		return nil, fmt.Errorf("look at what this role may do: %w", err)
	} else if !may {
		f.State, f.Advice = Wrong, "as the owner of the tables: pawl migrate up"
	}
	return []Finding{f}, nil
}

// installation is about whether the database belongs where it is.
func (p *patient) installation(ctx context.Context) ([]Finding, error) {
	place, err := migrations.ReadPlace(ctx, p.query)
	name := cmp.Or(place.Name, "without a name")
	switch why := place.Stranger(p.service.Installation); {
	case err != nil:
		return nil, err
	case why != "":
		return []Finding{{"installation", Wrong, "quarantined, a service only reads this database: " + why, "as its owner: pawl adopt if it is the one in use now, pawl adopt --as-copy if the original is"}}, nil
	case place.System == 0:
		return []Finding{{"installation", Warning, name + ". A copy in another cluster can't be told: this role may not run pg_control_system()",
			"GRANT EXECUTE ON FUNCTION pg_control_system() TO this role, and to the owner of the tables; or tell copies by a name, --installation NAME"}}, nil
	case place.HomeDatabase == 0:
		return []Finding{good("installation", "no service has started on this database yet")}, nil
	default:
		return []Finding{good("installation", "%s, where it belongs", name)}, nil
	}
}

// lagMost is how long an event may wait for its number: a service gives it within a second or two.
const lagMost = time.Minute

// events is about whether somebody gives numbers to the events of the feed.
func (p *patient) events(ctx context.Context) ([]Finding, error) {
	state, err := p.query.EventRelayState(ctx)
	lag := time.Duration(state.Lag * float64(time.Second))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read state of the relay: %w", err)
	case lag > lagMost:
		return []Finding{{"events", Warning, fmt.Sprintf("the oldest event without a number has waited for %s", lag.Round(time.Second)),
			"start a service; if one runs, read its log, and look for transactions that do not end, in any database of the server"}}, nil
	default:
		return []Finding{good("events", "%d have numbers, and none has waited long for one", state.LastEventNo)}, nil
	}
}

// webhooks is about endpoints that nothing is sent to.
func (p *patient) webhooks(ctx context.Context) (findings []Finding, _ error) {
	disabled, err := p.query.WebhookEndpointsDisabled(ctx)
	if err != nil {
		return nil, fmt.Errorf("read webhook endpoints: %w", err)
	}
	for _, e := range disabled {
		found := fmt.Sprintf("nothing has been sent to %s since %s: it was disabled, %s", e.ID, e.DisabledAt.UTC().Format(time.RFC3339), e.Reason)
		findings = append(findings, Finding{"webhooks", Warning, found, "when its receiver works: pawl webhooks enable " + e.ID})
	}
	return summarize("webhooks", "no endpoint is disabled", findings), nil
}

// tokens is about who may use the service.
func (p *patient) tokens(ctx context.Context) ([]Finding, error) {
	closed, err := p.query.TokensExist(ctx)
	switch {
	case err != nil:
		return nil, fmt.Errorf("look for tokens: %w", err)
	case closed:
		return []Finding{good("tokens", "requests need a token")}, nil
	default:
		return []Finding{{"tokens", Warning, "none was made: the service is open to this machine for everything, and to others for processing and reading orders",
			"pawl token create NAME --roles ROLES"}}, nil
	}
}
