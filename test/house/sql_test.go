package house

import (
	"fmt"
	"go/ast"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pawl/test/assert"
)

var ordersWrite = regexp.MustCompile(`(?i)\b(insert\s+into|update)\s+(only\s+)?(pawl\.)?orders\b`)

func checkStatusDoors(r repository) (broken []string) {
	movers := statusQueries(r)
	if len(movers) == 0 {
		broken = append(broken, "queries: no statement sets orders.status: this rule no longer understands them")
	}
	for _, f := range r.goFiles {
		if f.test || f.generated || f.within(measurements...) {
			continue
		}
		f.texts(func(literal *ast.BasicLit, text string) {
			if ordersWrite.MatchString(text) {
				broken = append(broken, fmt.Sprintf("%s: writes orders outside queries", f.at(literal)))
			}
		})
		for node := range ast.Preorder(f.tree) {
			call, ok := node.(*ast.SelectorExpr)
			if ok && slices.Contains(movers, call.Sel.Name) && !f.within(statusDoors...) {
				broken = append(broken, fmt.Sprintf("%s: %s sets orders.status, which only %s may do",
					f.at(call), call.Sel.Name, strings.Join(statusDoors, ", ")))
			}
		}
	}
	return broken
}

var (
	ordersInsert = regexp.MustCompile(`(?i)\binsert\s+into\s+pawl\.orders\b`)
	ordersSet    = regexp.MustCompile(`(?is)\bupdate\s+pawl\.orders\b.*?\bset\b(.*?)\bwhere\b`)
	statusTarget = regexp.MustCompile(`(?i)(^|[\s,(])status\s*=`)
)

// statusQueries returns the names of the statements that insert orders or set their status. In SET, unlike in a condition, the
// column is written without its table.
func statusQueries(r repository) (names []string) {
	for _, s := range r.statements() {
		sets := ordersInsert.MatchString(s.text)
		for _, match := range ordersSet.FindAllStringSubmatch(s.text, -1) {
			sets = sets || statusTarget.MatchString(match[1])
		}
		if sets {
			names = append(names, s.name)
		}
	}
	return names
}

var sqlStart = regexp.MustCompile(`^\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\s|` +
	`(?i)^\s*(insert\s+into|delete\s+from|update\s+\S+\s+set|select\s.+\sfrom)\s`)

func checkSQLPlaces(r repository) (broken []string) {
	for _, f := range r.goFiles {
		if f.test || f.generated && f.folder == "db" || f.within(sqlSpeakers...) {
			continue
		}
		f.texts(func(literal *ast.BasicLit, text string) {
			if sqlStart.MatchString(text) {
				broken = append(broken, fmt.Sprintf("%s: SQL in Go: give it a name in queries", f.at(literal)))
			}
		})
	}
	return broken
}

func checkGeneratedQueries(r repository) (broken []string) {
	sources := map[string]bool{}
	for _, file := range r.sqlIn("queries") {
		sources[path.Base(file.path)] = true
	}
	for _, f := range r.goFiles {
		source, generated := strings.CutSuffix(path.Base(f.path), ".sql.go")
		if generated && f.folder == "db" && !sources[source+".sql"] {
			broken = append(broken, fmt.Sprintf("%s: queries/%s.sql is gone: remove it", f.path, source))
		}
	}
	return broken
}

var migrationName = regexp.MustCompile(`^(\d{5})_[a-z0-9_]+\.sql$`)

func checkMigrations(r repository) (broken []string) {
	for i, file := range r.sqlIn("migrations") {
		match := migrationName.FindStringSubmatch(path.Base(file.path))
		if match == nil || match[1] != fmt.Sprintf("%05d", i+1) {
			broken = append(broken, fmt.Sprintf("%s: want a name like %05d_what_it_does.sql", file.path, i+1))
		}
		if strings.Contains(strings.ToUpper(file.text), "NO TRANSACTION") {
			broken = append(broken, file.path+": runs without a transaction")
		}
		for _, part := range []string{"-- +goose Up\n", "-- +goose Down\n"} {
			if strings.Count(file.text+"\n", part) != 1 {
				broken = append(broken, fmt.Sprintf("%s: want one %q", file.path, strings.TrimSpace(part)))
			}
		}
	}
	return broken
}

// statementRules are patterns that no statement of the service may match.
var statementRules = []struct {
	pattern *regexp.Regexp
	why     string
}{
	{regexp.MustCompile(`(?i)\bdelete\s+from\s+(pawl\.)?(orders|transitions|charges|charge_operations|reservations|confirmations|step_calls|step_answers|late_undos|disputes|inventory|stock_movements)\b`), "the books are never deleted from"},
	{regexp.MustCompile(`(?i)\bmerge\s+into\b`), "sqlc silently drops the parameters of MERGE"},
	{regexp.MustCompile(`(?i)\bpg_(try_)?advisory_lock|\blisten\s|\bset\s+(session|local)\b|\bset_config\([^)]*false\s*\)`), "a session does not exist behind a transaction pooler"},
	{regexp.MustCompile(`(?i)\bjoin\s+(rows\s+from\s*\()?unnest\b|\bfrom\s+pawl\.orders\b[^;]*,\s*unnest\b`), "the planner reads the whole table: select by = ANY(array)"},
}

var (
	writes       = regexp.MustCompile(`(?i)\b(insert\s+into|update\s+[\w.]+\s+(as\s+\w+\s+)?set|delete\s+from)\b`)
	hasParameter = regexp.MustCompile(`@\w|\$\d|sqlc\.n?arg`)
)

func checkStatements(r repository) (broken []string) {
	for _, s := range r.statements() {
		for _, rule := range statementRules {
			if rule.pattern.MatchString(s.text) {
				broken = append(broken, fmt.Sprintf("%s: %s: %s", s.path, s.name, rule.why))
			}
		}
		if writes.MatchString(s.text) && !hasParameter.MatchString(s.text) {
			broken = append(broken, fmt.Sprintf("%s: %s: pgx may send a write without arguments twice", s.path, s.name))
		}
	}
	return broken
}

func TestStatementRulesRefuse(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"DELETE FROM orders WHERE order_no = @order_no;",
		"MERGE INTO orders AS o USING x ON o.order_no = x.order_no WHEN MATCHED THEN DELETE;",
		"SELECT pg_advisory_lock(@key);",
		"SELECT set_config('lock_timeout', '500ms', false);",
		"SELECT o.seq FROM orders AS o JOIN unnest(@ids::text[]) AS x(id) ON x.id = o.order_id;",
		"INSERT INTO installation DEFAULT VALUES;",
	} {
		sample := repository{sqlFiles: []sqlFile{{path: "queries/orders.sql", text: "-- name: Sample :exec\n" + text}}}
		broken := checkStatements(sample)
		assert.Equal(t, len(broken), 1, text, "want one complaint", broken)
	}
}
