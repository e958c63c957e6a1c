package doctor

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"pawl/db"
)

// rule judges a setting of the server.
type rule struct {
	setting string
	bad     func(value string) bool
	state   State
	found   string // %s stands for the value
	advice  string
}

func is(bad string) func(string) bool { return func(value string) bool { return value == bad } }
func isNot(wanted string) func(string) bool {
	return func(value string) bool { return value != wanted }
}

func below(least int) func(string) bool {
	return func(value string) bool {
		number, err := strconv.Atoi(value)
		return err == nil && number < least
	}
}

const (
	loses    = " off and may lose orders it has acknowledged"
	turnItOn = "turn it on, or set --allow-data-loss"
	limited  = " is %s ms for this role or database: it ends statements that wait for a lock, a disk or a standby"
	noLimit  = "set it to 0 for the role of the service"
)

// durabilityRules are about commits that must last: a completed order that is lost in a crash would be charged again.
// client_min_messages must not hide warnings, because a canceled wait for a standby is reported only by one.
var durabilityRules = []rule{
	{"fsync", is("off"), Wrong, "the database has fsync" + loses, turnItOn},
	{"full_page_writes", is("off"), Wrong, "the database has full_page_writes" + loses, turnItOn},
	{"synchronous_commit", is("off"), Wrong, "the database has synchronous_commit" + loses, turnItOn},
	{"client_min_messages", is("error"), Wrong, "client_min_messages is error for this role or database: " +
		"a commit that is not on the standby would be reported as done", "set it to warning or lower"},
}

// serverRules are about everything else that the service needs, or is slower without.
var serverRules = []rule{
	{"server_version_num", below(140000), Wrong, "this PostgreSQL (%s) is too old", "use version 14 or newer"},
	{"server_encoding", isNot("UTF8"), Wrong, "the encoding of the database is %s, which lacks characters that names may have",
		"create a database with ENCODING 'UTF8'"},
	{"default_transaction_read_only", is("on"), Wrong,
		"default_transaction_read_only is on for this role or database: nothing can be written", "turn it off"},
	{"session_replication_role", isNot("origin"), Wrong,
		"session_replication_role is %s for this role or database, which disables the triggers that guard orders", "reset it to origin"},
	{"statement_timeout", isNot("0"), Warning, "statement_timeout" + limited, noLimit},
	{"transaction_timeout", isNot("0"), Warning, "transaction_timeout" + limited, noLimit},
	{"autovacuum", is("off"), Warning, "autovacuum is off: dead rows are never removed, and the tables grow", "turn it on"},
	{"track_activities", is("off"), Warning,
		"track_activities is off: Pawl can't tell a lost statement from a running one", "turn it on"},
	{"max_wal_size", below(1024), Warning, "max_wal_size is %s MB: checkpoints are frequent, which makes the log larger", "set it to 4GB"},
	{"jit", is("on"), Warning, "jit is on: with many orders, compiling the statements of lists takes longer than running them",
		"set it to off for the role of the service"},
	{"data_checksums", is("off"), Warning, "data checksums are off: data that a disk has corrupted is read as if it were correct",
		"run pg_checksums --enable while PostgreSQL is stopped"},
}

// readSettings reads the settings of the server that this package looks at.
func readSettings(ctx context.Context, query *db.Queries) (map[string]string, error) {
	names := []string{"server_version", "synchronous_standby_names", "max_connections", "superuser_reserved_connections", "reserved_connections"}
	for _, rule := range slices.Concat(durabilityRules, serverRules) {
		names = append(names, rule.setting)
	}
	rows, err := query.ServerSettings(ctx, names)
	if err != nil {
		return nil, fmt.Errorf("read settings of the server: %w", err)
	}
	settings := map[string]string{}
	for _, row := range rows {
		settings[row.Name] = row.Setting
	}
	return settings, nil
}

// judge adds the settings that break a rule. A setting that the server does not have is fine.
func (r *Report) judge(subject string, settings map[string]string, rules []rule) {
	for _, rule := range rules {
		if value, ok := settings[rule.setting]; ok && rule.bad(value) {
			r.Findings = append(r.Findings, Finding{subject, rule.state, strings.Replace(rule.found, "%s", value, 1), rule.advice})
		}
	}
}

// Durability adds the settings with which a database may lose what it has acknowledged. With lossAllowed they are
// warnings.
func (r *Report) Durability(ctx context.Context, query *db.Queries, lossAllowed bool) error {
	settings, err := readSettings(ctx, query)
	if err != nil {
		return err
	}
	standbys, err := query.ServerStandbys(ctx)
	if err != nil {
		return fmt.Errorf("read standbys: %w", err)
	}
	r.durability(settings, lossAllowed)
	r.replication(settings, standbys)
	return nil
}

func (r *Report) durability(settings map[string]string, lossAllowed bool) {
	first := len(r.Findings)
	r.judge("durability", settings, durabilityRules)
	for i, f := range r.Findings[first:] {
		if lossAllowed && f.Advice == turnItOn {
			r.Findings[first+i].State, r.Findings[first+i].Advice = Warning, "turn it on, unless these orders may be lost"
		}
	}
}

// standbyNames reads synchronous_standby_names: [FIRST] n (names), ANY n (names), or names, which is FIRST 1.
var standbyNames = regexp.MustCompile(`(?is)^\s*(?:(?:(FIRST|ANY)\s+)?(\d+)\s*\((.*)\)|(.*?))\s*$`)

// replication checks whether a standby that takes over has everything that was acknowledged, as far as the primary
// knows. The primary can't tell that it is the only one.
func (r *Report) replication(settings map[string]string, standbys db.ServerStandbysRow) {
	warn := func(advice, found string, args ...any) {
		r.Warn("durability", advice+": see docs/guarantees.md, Failover", found, args...)
	}
	setting := settings["synchronous_standby_names"]
	if setting == "" {
		if standbys.Connected > 0 {
			warn("set synchronous_standby_names (in Patroni: synchronous_mode)",
				"%d standbys are connected and none is synchronous: a failover may lose the last orders", standbys.Connected)
		}
		return
	}
	switch settings["synchronous_commit"] {
	case "local":
		warn("set it to on", "synchronous_commit is local: no commit waits for a standby, and a failover may lose the last orders")
	case "remote_write":
		warn("set it to on", "synchronous_commit is remote_write: orders may be lost if the machine of the standby fails, too")
	}
	if standbys.Synchronous == 0 && standbys.Hidden == 0 {
		warn("start the standbys that synchronous_standby_names lists", "no synchronous standby is connected: commits wait for one")
	}
	parts := standbyNames.FindStringSubmatch(setting)
	names := strings.Split(parts[3]+parts[4], ",")
	awaited, _ := strconv.Atoi(cmp.Or(parts[2], "1"))
	star := slices.ContainsFunc(names, func(name string) bool { return strings.Trim(strings.TrimSpace(name), `"`) == "*" })
	possible := int64(len(names))
	if star {
		possible = max(standbys.Connected, 2)
	}
	if (star || strings.EqualFold(parts[1], "ANY")) && int64(awaited) < possible {
		warn("name the standby that may take over, or promote the standby that has most of the log",
			"synchronous_standby_names is %s: each commit waits for any %d of the standbys, so no standby is sure to have all of them", setting, awaited)
	}
}
