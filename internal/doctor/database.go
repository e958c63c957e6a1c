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
	"pawl/internal/cell"
	"pawl/internal/pg"
	"pawl/migrations"
)

// Service describes the service that is to use a database.
type Service struct {
	MaxConns      int       // maximum number of connections of a replica
	AllowDataLoss bool      // it serves on a database that may lose commits
	OwnServer     bool      // the PostgreSQL is one of pgembed's, where the service is a superuser
	Version       int64     // the newest migration that it has
	Installation  string    // its name; empty: none
	Cell          cell.Cell // zero: the stored one
}

// answerLimit bounds all questions to the database together.
const answerLimit = 30 * time.Second

// database is the database that is being checked.
type database struct {
	*Report
	pool     *pg.Pool
	query    *db.Queries
	url      string
	service  Service
	facts    db.ServerFactsRow
	settings map[string]string
	pending  bool // the schema has to be migrated first
}

// Database checks the database at url, as a service would use it.
func (r *Report) Database(ctx context.Context, url string, service Service) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	began := time.Now()
	pool, err := pg.Open(ctx, url, pg.Options{MaxConns: 2})
	if err != nil {
		r.unreachable(err)
		return
	}
	defer pool.Close()
	d := &database{Report: r, pool: pool, query: db.New(pool), url: url, service: service}
	d.facts, err = d.query.ServerFacts(ctx)
	if err == nil {
		d.settings, err = readSettings(ctx, d.query)
	}
	if err != nil {
		r.Fail("database", "", "read facts of the server: %s", err)
		return
	}
	r.OK("database", "%s, PostgreSQL %s, %s, connected in %d ms",
		d.facts.Database, d.settings["server_version"], bytes(d.facts.Size), time.Since(began).Milliseconds())
	for _, check := range []struct {
		subject, fine string
		run           func(context.Context) error
	}{
		{"server", "the settings are fine", d.server}, {"durability", "commits are durable", d.durability},
		{"connections", "", d.connections}, {"clock", "", d.clock}, {"role", d.facts.Role, d.role}, {"migrations", "", d.migrations},
		{"schema", "all statements can run on it", d.schema}, {"installation", "", d.installation}, {"events", "", d.events},
		{"webhooks", "no endpoint is disabled", d.webhooks}, {"tokens", "", d.tokens},
	} {
		findings := len(r.Findings)
		if err := check.run(ctx); err != nil {
			r.Fail(check.subject, adviceOnRights(err), "%s", err)
		} else if len(r.Findings) == findings {
			r.OK(check.subject, "%s", check.fine)
		}
		if d.pending {
			return // the remaining checks read tables that may be missing
		}
	}
}

// unreachable says why there is no connection, and what to do for the usual reasons.
func (r *Report) unreachable(err error) {
	advice := "start PostgreSQL there, or correct host and port; check firewalls in between"
	if errors.Is(err, pg.ErrUntrusted) {
		advice = "" // the error has it
	} else if _, ok := errors.AsType[*pgconn.ParseConfigError](err); ok {
		advice = "write it as postgres://USER:PASSWORD@HOST:5432/DATABASE"
	} else if refused, ok := errors.AsType[*pgconn.PgError](err); ok {
		err = fmt.Errorf("connect to database: %w", refused) // without the attempts before it, such as TLS
		advice = adviceOn(refused.Code)
	} else if _, ok := errors.AsType[*net.DNSError](err); ok {
		advice = "correct the name of the host"
	}
	r.Fail("database", advice, "%s", err)
}

// adviceOn is about the SQLSTATE of a server that refuses a connection.
func adviceOn(sqlstate string) string {
	if strings.HasPrefix(sqlstate, "28") {
		return "correct user and password, or let the user in by pg_hba.conf"
	}
	return map[string]string{
		"3D000": "create the database: createdb NAME",
		"42501": "GRANT CONNECT ON DATABASE … TO the user",
		"53300": "raise max_connections, or lower what its clients use",
		"57P03": "wait until it has started",
	}[sqlstate]
}

func adviceOnRights(err error) string {
	if pg.CodeOf(err) == "42501" { // insufficient_privilege
		return "log in as a member of pawl_serve, which pawl migrate roles creates: see docs/operations.md, Roles of the database"
	}
	return "read the log of PostgreSQL"
}

func (d *database) server(context.Context) error {
	d.judge("server", d.settings, serverRules)
	if d.facts.Standby {
		d.Fail("server", "connect to the primary", "this is a standby: nothing can be written")
	}
	return nil
}

func (d *database) durability(ctx context.Context) error {
	return d.Durability(ctx, d.query, d.service.AllowDataLoss)
}

// spare is how many connections a replica makes outside its pool: to ask about statements without an answer, and to
// replace one that is not released yet.
const spare = 2

// connections checks whether the server has room for a replica, and for another one.
func (d *database) connections(ctx context.Context) error {
	now, err := d.query.ServerConnections(ctx, pg.ServiceName)
	if err != nil {
		return fmt.Errorf("count connections: %w", err)
	}
	number := func(setting string) int {
		n, _ := strconv.Atoi(d.settings[setting]) // 0 on a server that does not have it
		return n
	}
	most, replica := number("max_connections"), d.service.MaxConns+spare
	usable := most - number("superuser_reserved_connections") - number("reserved_connections")
	found := fmt.Sprintf("max_connections is %d; in use: %d, by running services: %d. A replica has up to %d",
		most, now.Used, now.Services, replica)
	const advice = "raise max_connections, or lower --max-conns"
	switch {
	case d.pool.Pooled():
		d.OK("connections", "a pooler shares them; in use: %d", now.Used)
	case usable < replica:
		d.Fail("connections", advice, "%s", found)
	case usable-int(now.Used) < replica:
		d.Warn("connections", advice, "%s, and there is no room for one more", found)
	default:
		d.OK("connections", "%s", found)
	}
	return nil
}

// clockMost is how far the clock of this machine may be off before logs of different machines are hard to compare.
const clockMost = 2 * time.Second

// clock compares our clock with the clock of the database. The fastest of three answers is the most exact.
func (d *database) clock(ctx context.Context) error {
	var off time.Duration
	fastest := answerLimit
	for range 3 {
		sent := time.Now()
		now, err := d.query.ServerTime(ctx)
		if err != nil {
			return fmt.Errorf("read clock of the server: %w", err)
		}
		if took := time.Since(sent); took < fastest {
			fastest, off = took, sent.Round(0).Add(took/2).Sub(now)
		}
	}
	if off.Abs() > clockMost+fastest {
		d.Warn("clock", "synchronize both clocks with NTP",
			"the clock of this machine differs from that of the database by %s. Orders are not affected, but logs are", off.Round(time.Millisecond))
		return nil
	}
	d.OK("clock", "%d ms off that of the database", off.Abs().Milliseconds())
	return nil
}

// role checks the rights of the service's role on the server.
func (d *database) role(context.Context) error {
	const advice = "run pawl migrate roles, and give the service a role of its own"
	switch {
	case d.service.OwnServer:
	case d.facts.Superuser:
		d.Warn("role", advice, "%s is a superuser: a compromised service could do anything on this server", d.facts.Role)
	case d.facts.Owner:
		d.Warn("role", advice, "%s owns the tables: a compromised service could change them and create tokens", d.facts.Role)
	}
	if !d.facts.SeesStatements {
		d.Warn("role", "log in as a member of "+d.facts.Role+", without SET role",
			"%s is not the role that logs in: Pawl can't see its own statements, and may take a waiting one for lost", d.facts.Role)
	}
	return nil
}

// migrations looks for pending ones. A service applies them at its start if its role may.
func (d *database) migrations(ctx context.Context) error {
	list, err := migrations.Status(ctx, d.url)
	if missing, ok := errors.AsType[*pg.NoSchema](err); ok {
		d.pending = true
		d.Fail("migrations", missing.Advice, "%s", missing.Found)
		return nil
	}
	if err != nil {
		return err
	}
	pending := 0
	for _, m := range list {
		if !m.Applied {
			pending++
		}
	}
	if d.pending = pending > 0; !d.pending {
		d.OK("migrations", "all %d are applied", len(list))
		return nil
	}
	may, err := d.query.SchemaMayMigrate(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("read rights on the schema: %w", err)
	case may:
		d.Warn("migrations", "run pawl migrate up, or pawl serve, which migrates too", "%d of %d are pending", pending, len(list))
	default:
		d.Fail("migrations", "run pawl migrate up as the owner of the tables", "%d of %d are pending", pending, len(list))
	}
	return nil
}

// schema checks whether the statements of this program can run, and whether the triggers that guard orders are active.
func (d *database) schema(ctx context.Context) error {
	switch err := engine.CheckSchema(ctx, d.pool, d.service.Version); {
	case errors.Is(err, engine.ErrNotMigrated):
		d.Fail("schema", "run pawl migrate up as the owner of the tables, which grants what is missing; "+
			"for the rest see docs/runbook.md, Another schema", "%s", err)
	case err != nil:
		return err
	}
	inactive, err := d.query.SchemaSwitchedOff(ctx)
	for _, what := range inactive {
		d.Fail("schema", "find out who did it and why, repair it, and run pawl verify", "%s", what)
	}
	if err != nil {
		return err
	}
	relaxed, err := d.query.OrderNumberingRelaxed(ctx)
	if err == nil && !relaxed {
		d.Warn("schema", "if this server empties unlogged tables after a crash, ALTER TABLE pawl.order_numbering SET UNLOGGED",
			"every step of an order waits for the disk: the table pawl.order_numbering is logged")
	}
	return err
}

// installation checks whether the database belongs where it is.
func (d *database) installation(ctx context.Context) error {
	place, err := migrations.ReadPlace(ctx, d.query)
	if err != nil {
		return err
	}
	if why := place.OtherCell(d.service.Cell); why != "" {
		d.Fail("cell", "correct --cell or --database-url", "%s", why)
	}
	name := cmp.Or(place.Name, "no name")
	switch why := place.Stranger(d.service.Installation); {
	case why != "":
		d.Fail("installation", "as its owner, run pawl adopt if this database replaces the original, or pawl adopt --as-copy if the original is in use",
			"a service on this database is quarantined and only reads it: %s", why)
	case place.System == 0:
		d.Warn("installation", "GRANT EXECUTE ON FUNCTION pg_control_system() to this role and to the owner of the tables, "+
			"or distinguish copies by --installation NAME",
			"%s. A copy in another cluster can't be detected: this role may not run pg_control_system()", name)
	case place.HomeDatabase == 0:
		d.OK("installation", "no service has started on this database yet")
	default:
		d.OK("installation", "%s, where it belongs", name)
	}
	return nil
}

// lagMost is how long an event may wait for its number, which a service assigns within seconds.
const lagMost = time.Minute

func (d *database) events(ctx context.Context) error {
	state, err := d.query.EventRelayState(ctx)
	if err != nil {
		return fmt.Errorf("read state of the relay: %w", err)
	}
	if lag := time.Duration(state.Lag * float64(time.Second)); lag > lagMost {
		d.Warn("events", "start a service; if one runs, read its log, and look for long transactions in any database of the server",
			"the oldest event without a number has waited for %s", lag.Round(time.Second))
		return nil
	}
	d.OK("events", "%d have numbers, and none has waited long for one", state.LastEventNo)
	return nil
}

// webhooks lists the disabled endpoints.
func (d *database) webhooks(ctx context.Context) error {
	disabled, err := d.query.WebhookEndpointsDisabled(ctx)
	if err != nil {
		return fmt.Errorf("read webhook endpoints: %w", err)
	}
	for _, e := range disabled {
		d.Warn("webhooks", "when its receiver works: pawl webhooks enable "+e.ID,
			"nothing has been sent to %s since %s: it was disabled, %s", e.ID, e.DisabledAt.UTC().Format(time.RFC3339), e.Reason)
	}
	return nil
}

func (d *database) tokens(ctx context.Context) error {
	exist, err := d.query.TokensExist(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("look for tokens: %w", err)
	case exist:
		d.OK("tokens", "requests need a token")
	default:
		d.Warn("tokens", "pawl token create NAME --roles ROLES",
			"there is none, so the service is open: callers on this machine may do everything, others may process and read orders")
	}
	return nil
}
