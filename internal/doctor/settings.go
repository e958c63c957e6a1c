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
	name   string
	bad    func(value string) bool
	state  State
	found  string // may have %s for the value
	advice string
}

func is(bad string) func(string) bool {
	return func(value string) bool { return value == bad }
}

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
	loses    = " may lose orders it has acknowledged"
	turnItOn = "turn it on, or set --allow-data-loss"
)

// durabilityRules are about commits that must last: an order that was answered as completed would be gone after a crash,
// and charged again. By a notice PostgreSQL says that the wait of a commit for its standby was ended, and by nothing else.
var durabilityRules = []rule{
	{"fsync", is("off"), Wrong, "the database has fsync off and" + loses, turnItOn},
	{"full_page_writes", is("off"), Wrong, "the database has full_page_writes off and" + loses, turnItOn},
	{"synchronous_commit", is("off"), Wrong, "the database has synchronous_commit off and" + loses, turnItOn},
	{"client_min_messages", is("error"), Wrong,
		"client_min_messages is error for this role or database: a commit that no standby has would be told as done", "set it to warning or lower"},
}

// serverRules are about what else the service needs, or is slower without.
var serverRules = []rule{
	{"server_version_num", below(140000), Wrong, "this PostgreSQL (%s) is too old", "use version 14 or newer"},
	{"server_encoding", isNot("UTF8"), Wrong, "the encoding of the database is %s, which has not every character that a name may have",
		"make a database with ENCODING 'UTF8'"},
	{"default_transaction_read_only", is("on"), Wrong, "default_transaction_read_only is on for this role or database: nothing can be written", "turn it off"},
	{"session_replication_role", isNot("origin"), Wrong,
		"session_replication_role is %s for this role or database: the triggers that guard the orders do nothing", "reset it to origin"},
	{"statement_timeout", isNot("0"), Warning, "statement_timeout is %s ms for this role or database: statements that wait for a lock, a disk or a standby are ended",
		"set it to 0 for the role of the service"},
	{"transaction_timeout", isNot("0"), Warning, "transaction_timeout is %s ms for this role or database: statements that wait for a lock, a disk or a standby are ended",
		"set it to 0 for the role of the service"},
	{"autovacuum", is("off"), Warning, "autovacuum is off: dead rows stay, and the tables grow", "turn it on"},
	{"track_activities", is("off"), Warning, "track_activities is off: Pawl can't tell a statement whose answer was lost from one that runs", "turn it on"},
	{"max_wal_size", below(1024), Warning, "max_wal_size is %s MB: checkpoints come often, and after each the log gets whole pages", "set it to 4GB"},
	{"jit", is("on"), Warning, "jit is on: where many orders are stored, PostgreSQL compiles the statements of lists, which takes longer than to run them", "set it to off for the role of the service"},
	{"data_checksums", is("off"), Warning, "the data pages have no checksums: what a disk has spoiled is read as if it were right",
		"pg_checksums --enable, while PostgreSQL is stopped"},
}

// readSettings reads settings of the server by name.
func readSettings(ctx context.Context, query *db.Queries, names ...string) (map[string]string, error) {
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

// namesOf are the settings that rules judge.
func namesOf(rules []rule) (names []string) {
	for _, rule := range rules {
		names = append(names, rule.name)
	}
	return names
}

// judge has rules judge settings. Those that the server does not have are fine.
func judge(subject string, settings map[string]string, rules []rule) (findings []Finding) {
	for _, rule := range rules {
		if value, there := settings[rule.name]; there && rule.bad(value) {
			findings = append(findings, Finding{subject, rule.state, strings.Replace(rule.found, "%s", value, 1), rule.advice})
		}
	}
	return findings
}

// durability judges what makes a database lose what it has committed.
func durability(settings map[string]string, lossAllowed bool) []Finding {
	findings := judge("durability", settings, durabilityRules)
	for i, f := range findings {
		if lossAllowed && f.Advice == turnItOn {
			findings[i].State, findings[i].Advice = Warning, "turn it on, unless these orders may be lost"
		}
	}
	return findings
}

// standbyNames reads synchronous_standby_names: [FIRST] n (names), ANY n (names), or names, which is FIRST 1.
var standbyNames = regexp.MustCompile(`(?is)^\s*(?:(?:(FIRST|ANY)\s+)?(\d+)\s*\((.*)\)|(.*?))\s*$`)

// replication judges whether a standby that takes over has all that was acknowledged, as far as the primary can tell. That only
// one server at a time is the primary, it can't.
func replication(settings map[string]string, standbys db.ServerStandbysRow) (findings []Finding) {
	warn := func(advice, found string, args ...any) {
		findings = append(findings, Finding{"durability", Warning, fmt.Sprintf(found, args...), advice + ": see docs/guarantees.md, Failover"})
	}
	setting := settings["synchronous_standby_names"]
	if setting == "" {
		if standbys.Connected > 0 {
			warn("set synchronous_standby_names (in Patroni: synchronous_mode)",
				"%d standbys are connected and none is synchronous: when one takes over, the last orders may be lost", standbys.Connected)
		}
		return findings
	}
	switch commit := settings["synchronous_commit"]; commit {
	case "local":
		warn("set it to on", "synchronous_commit is local: no commit waits for a standby, and when one takes over, the last orders may be lost")
	case "remote_write":
		warn("set it to on", "synchronous_commit is remote_write: orders may be lost if the machine of the standby fails, too")
	}
	if standbys.Synchronous == 0 && standbys.Hidden == 0 {
		warn("start the standbys that synchronous_standby_names names", "no synchronous standby is connected: commits wait for one")
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
		warn("name the standby that may take over, or let it be the one of all standbys that has most of the log",
			"synchronous_standby_names is %s: each commit waits for any %d of the standbys, so no standby has to have all", setting, awaited)
	}
	return findings
}
