// Package house checks the rules of this repository that no linter knows: the imports, the doors to orders.status, where SQL is
// written, and what the documentation says. Exceptions are made in its tables.
package house

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"pawl/test/assert"
)

// mayImport says which folder may import which; docs/design.md tells the main lines. Tests import what they need, and so do
// measurements.
var mayImport = map[string][]string{
	"fsm":                 {},
	"fsm/diagram":         {"fsm"},
	"migrations":          {"db", "internal/cell", "internal/pg"},
	"internal/cell":       {},
	"db":                  {"fsm"},
	"internal/pg":         {"db"},
	"internal/iso4217":    {},
	"internal/spelling":   {},
	"internal/egress":     {},
	"internal/policy":     {"fsm", "internal/iso4217", "internal/egress", "internal/signing", "internal/spelling"},
	"engine/ledger":       {"fsm", "db", "internal/pg"},
	"internal/provider":   {"fsm", "internal/egress", "internal/version"},
	"engine/batch":        {},
	"internal/orders":     {"fsm", "internal/iso4217", "db", "internal/pg"},
	"engine":              {"engine/batch", "internal/cell", "fsm", "db", "internal/pg", "internal/policy", "internal/policy/store", "engine/ledger", "internal/orders", "internal/provider", "internal/provider/endpoint", "internal/provider/stripe", "internal/signing"},
	"internal/signing":    {},
	"internal/version":    {},
	"internal/webhooks":   {"db", "internal/pg", "internal/events", "internal/egress", "internal/orders", "internal/provider", "internal/signing"},
	"internal/events":     {"fsm", "db", "internal/pg", "internal/orders"},
	"internal/books":      {"fsm", "db", "internal/pg", "internal/orders"},
	"internal/access":     {"db", "internal/pg"},
	"httpapi":             {"internal/access", "internal/cell", "internal/books", "internal/events", "fsm", "internal/iso4217", "db", "internal/pg", "internal/policy", "internal/policy/store", "internal/provider", "internal/orders", "engine", "internal/spelling", "internal/webhooks", "internal/version"},
	"internal/console":    {"client", "docs", "fsm", "fsm/diagram", "internal/spelling"},
	"docs":                {},
	"internal/doctor":     {"db", "internal/cell", "internal/pg", "engine", "migrations", "internal/pgembed"},
	"internal/pgembed":    {},
	"internal/demo":       {"internal/books", "client", "internal/console", "db", "internal/load", "internal/pg", "internal/pgembed", "internal/simulator"},
	"internal/load":       {},
	"internal/simulator":  {"internal/egress", "internal/signing"},
	"main":                {"internal/cli"},
	"internal/cli":        {"internal/access", "internal/cell", "client", "docs", "internal/console", "internal/demo", "internal/events", "fsm", "fsm/diagram", "internal/iso4217", "internal/load", "migrations", "db", "internal/pg", "internal/policy", "internal/policy/store", "internal/provider", "internal/provider/stripe", "internal/orders", "engine", "internal/books", "internal/doctor", "httpapi", "internal/pgembed", "internal/simulator", "internal/spelling", "internal/webhooks", "internal/cli/output", "internal/cli/remote", "internal/version"},
	"internal/cli/output": {"internal/cell"},
	"internal/cli/remote": {"client", "internal/console", "internal/cli/output"},

	"internal/policy/store": {"db", "internal/pg", "internal/policy"},

	// The executors of remote steps: they reach no database.
	"internal/provider/endpoint": {"fsm", "internal/policy", "internal/provider", "internal/signing"},
	"internal/provider/stripe":   {"fsm", "internal/policy", "internal/provider"},

	"test/house": {},

	// For tests only: no folder above lists them.
	"test/assert": {},
	"test/clocks": {"internal/pgembed", "test/assert"},
	"test/dbtest": {"migrations", "internal/pg", "internal/pgembed", "test/assert"},
	"test/faults": {"internal/access", "client", "internal/demo", "fsm", "migrations", "db", "internal/pg", "internal/policy", "engine/ledger", "internal/orders", "internal/provider", "engine", "internal/books", "httpapi", "internal/load", "internal/pgembed", "internal/simulator", "test/clocks", "test/dbtest"},
	"test/model":  {"fsm"},

	// A module of its own, which knows the program's command line, for the manual.
	"release": {"internal/cli", "internal/version"},

	// For programs of others, too: whatever it imported, they would import.
	"client": {},

	// A module of its own, which knows the service only from outside, and where its database is.
	"test/clients":         {"client", "test/assert"},
	"test/clients/browser": {"client", "internal/pgembed", "test/assert"},

	// Only what starts PostgreSQL and sets clocks: what it shared with the service, it could not find wrong there.
	"test/campaign": {"test/clocks", "test/dbtest", "internal/pgembed", "test/assert"},
}

// strangers obey mayImport in their tests, too.
var strangers = []string{"test/campaign", "test/clients", "test/clients/browser"}

// statusDoors are the only callers of the statements that set orders.status.
var statusDoors = []string{"engine/admit.go", "engine/move.go", "engine/ledger"}

// measurements are modules of their own that use the service as a customer does.
var measurements = []string{"test/bench", "test/peers"}

// sqlSpeakers may have SQL in Go: they use servers and databases that the service does not know yet.
var sqlSpeakers = append([]string{"test/dbtest", "internal/pgembed"}, measurements...)

// houseRules are checked against the repository, and each against a sample that must break it.
var houseRules = []struct {
	name, why string
	check     func(repository) []string
	refuses   map[string]string // path → text
}{{
	"imports follow the arrows",
	"the list of folders is the design; one wrong arrow is how a layer starts to rot",
	checkImports, map[string]string{"engine/ledger/charge.go": "package ledger\nimport _ \"pawl/engine\""},
}, {
	"folders are known",
	"a folder earns its place by an import rule of its own",
	checkFolders, map[string]string{"util/strings.go": "package util"},
}, {
	"orders.status has one door",
	"two places that move orders are two machines",
	checkStatusDoors, map[string]string{
		"queries/orders.sql": "-- name: OrdersCharge :many\nUPDATE orders AS o SET seq = 2, status = 'reserving' WHERE o.seq = 1;",
		"httpapi/orders.go":  "package httpapi\nfunc f(q *db.Queries) { q.OrdersCharge() }",
	},
}, {
	"SQL lives in queries and migrations",
	"there it is typed, in one place, and checked against the schema",
	checkSQLPlaces, map[string]string{"engine/list.go": "package engine\nconst list = `\nSELECT 1`"},
}, {
	"statements survive a pooler and a lost reply",
	"a write that runs twice, or only on one session, is how an order is charged twice",
	checkStatements, map[string]string{"queries/orders.sql": "-- name: OrdersPark :exec\nUPDATE orders SET hold = 'paused';"},
}, {
	"generated queries have a source",
	"sqlc leaves the output of a file that was removed",
	checkGeneratedQueries, map[string]string{"db/gone.sql.go": "package db", "queries/orders.sql": ""},
}, {
	"migrations are numbered and transactional",
	"goose and sqlc must see one order, and half a migration can't be repeated",
	checkMigrations, map[string]string{"migrations/00002_late.sql": "-- +goose Up\n-- +goose Down"},
}, {
	"errors say what was being done",
	"wrapped at every level, \"failed to\" drowns what failed",
	checkErrorTexts, map[string]string{"internal/pg/pool.go": "package pg\nvar err = fmt.Errorf(\"failed to open: %w\", cause)"},
}}

func TestHouseRules(t *testing.T) {
	t.Parallel()
	whole := parse(t, os.DirFS("."))
	for _, rule := range houseRules {
		t.Run(rule.name, func(t *testing.T) {
			t.Parallel()
			for _, broken := range rule.check(whole) {
				t.Error(broken)
			}
			if t.Failed() {
				t.Log("why:", rule.why)
			}
			files := fstest.MapFS{}
			for name, text := range rule.refuses {
				files[name] = &fstest.MapFile{Data: []byte(text)}
			}
			broken := rule.check(parse(t, files))
			assert.Equal(t, len(broken), 1, "the sample: want one complaint", broken)
		})
	}
}

// TestToolchainIsNamed: an older go command then fetches the tested release, with its security fixes.
func TestToolchainIsNamed(t *testing.T) {
	t.Parallel()
	assert.True(t, regexp.MustCompile(`(?m)^toolchain go1\.\d+\.\d+$`).MatchString(read(t, "go.mod")),
		"go.mod has no toolchain line")
}

// module begins the paths of all packages here.
var module = strings.TrimSuffix(reflect.TypeFor[repository]().PkgPath(), "test/house")

func checkImports(r repository) (broken []string) {
	for _, f := range r.goFiles {
		for _, spec := range f.tree.Imports {
			target, ours := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), module)
			if ours && (!f.test || slices.Contains(strangers, f.folder)) && !f.within(measurements...) && !slices.Contains(mayImport[f.folder], target) {
				broken = append(broken, fmt.Sprintf("%s: %s must not import %s", f.at(spec), f.folder, target))
			}
		}
	}
	return broken
}

func checkFolders(r repository) (broken []string) {
	for _, f := range r.goFiles {
		if _, known := mayImport[f.folder]; !known && !f.within(measurements...) {
			broken = append(broken, fmt.Sprintf("%s: folder %s is new: give it a place in mayImport", f.path, f.folder))
		}
	}
	return broken
}

var clumsyError = regexp.MustCompile(`(?i)\b(Errorf|New)\(["\x60](failed|error|unable)\b.*`)

func checkErrorTexts(r repository) (broken []string) {
	for _, f := range r.goFiles {
		for _, text := range clumsyError.FindAllString(f.text, -1) {
			if !f.test {
				broken = append(broken, fmt.Sprintf("%s: %s: name what was being done: \"claim orders: %%w\"", f.path, text))
			}
		}
	}
	return broken
}

// TestMain runs the tests in the root of the repository.
func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	assert.NoError(t, err)
	return string(text)
}

// repository has the Go and SQL files of all modules.
type repository struct {
	goFiles  []goFile
	sqlFiles []sqlFile
}

type goFile struct {
	path      string // from the root, with slashes
	folder    string // "main" is the root
	text      string
	test      bool
	generated bool
	set       *token.FileSet
	tree      *ast.File
}

// sqlFile is a migration or a file of queries.
type sqlFile struct {
	path, text string
}

// statement is one query of sqlc, without its comments.
type statement struct {
	path, name, text string
}

// skipped are folders without files of ours.
var skipped = []string{"bin", "node_modules", "testdata"}

func parse(t *testing.T, root fs.FS) (r repository) {
	t.Helper()
	set := token.NewFileSet()
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			if name != "." && (strings.HasPrefix(entry.Name(), ".") || slices.Contains(skipped, entry.Name())) {
				return fs.SkipDir
			}
			return nil
		case path.Ext(name) != ".go" && path.Ext(name) != ".sql":
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if path.Ext(name) == ".sql" || err != nil {
			r.sqlFiles = append(r.sqlFiles, sqlFile{path: name, text: string(text)})
			return err
		}
		tree, err := parser.ParseFile(set, name, text, parser.ParseComments|parser.SkipObjectResolution)
		f := goFile{path: name, folder: path.Dir(name), text: string(text), test: strings.HasSuffix(name, "_test.go"), set: set, tree: tree}
		if f.folder == "." {
			f.folder = "main"
		}
		f.generated = err == nil && ast.IsGenerated(tree)
		r.goFiles = append(r.goFiles, f)
		return err
	})
	assert.NoError(t, err, "parse the repository")
	return r
}

// sqlIn returns the SQL files of a folder, by name.
func (r repository) sqlIn(folder string) (files []sqlFile) {
	for _, f := range r.sqlFiles {
		if path.Dir(f.path) == folder {
			files = append(files, f)
		}
	}
	return files
}

var (
	queryName  = regexp.MustCompile(`(?m)^-- name: (\w+) `)
	sqlComment = regexp.MustCompile(`(?m)--.*$`)
)

// statements returns the statements of all queries.
func (r repository) statements() (all []statement) {
	for _, file := range r.sqlIn("queries") {
		starts := queryName.FindAllStringSubmatchIndex(file.text, -1)
		for i, start := range starts {
			end := len(file.text)
			if i+1 < len(starts) {
				end = starts[i+1][0]
			}
			all = append(all, statement{
				path: file.path, name: file.text[start[2]:start[3]],
				text: sqlComment.ReplaceAllString(file.text[start[0]:end], ""),
			})
		}
	}
	return all
}

// within reports whether the file is one of the places, or in a folder of them.
func (f goFile) within(places ...string) bool {
	return slices.ContainsFunc(places, func(place string) bool {
		return f.path == place || strings.HasPrefix(f.path, place+"/")
	})
}

// at is the place of a node as editors know it.
func (f goFile) at(node ast.Node) string {
	return fmt.Sprintf("%s:%d", f.path, f.set.Position(node.Pos()).Line)
}

// texts calls do for every string literal of the file.
func (f goFile) texts(do func(literal *ast.BasicLit, text string)) {
	for node := range ast.Preorder(f.tree) {
		if literal, ok := node.(*ast.BasicLit); ok && literal.Kind == token.STRING {
			if text, err := strconv.Unquote(literal.Value); err == nil {
				do(literal, text)
			}
		}
	}
}
