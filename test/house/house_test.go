// The house rules: what a reviewer would otherwise have to look for by hand. Each is
// a subtest whose name is the rule; when it fails it says why the rule exists.
// Exceptions are made here, in the tables, where a reviewer sees them.
package house

import (
	"fmt"
	"go/ast"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// mayImport is the layout of the service: which folder may import which.
//
//	main → internal/cli → httpapi → engine → engine/ledger → db → fsm
//	                │        │        ├───→ orders → db
//	                │        │        ├───→ provider/endpoint, provider/stripe → provider → fsm
//	                │        │        ├───→ policy/store → policy, db   └──→ policy → fsm
//	                │        │        └───→ engine/batch
//	                │        └──→ access, orders, books, events, webhooks
//	                ├──→ doctor → engine, migrations, pgembed        cli/remote → client: a program like any other
//	                ├──→ events → orders, db
//	                ├──→ books → db          ledger, orders and executors do not know each other
//	                ├──→ migrations → pg → db
//	                ├──→ console → client, fsm/diagram               the API is its only way to an order
//	                ├──→ demo → console, pg, pgembed, books, simulator
//	                └──→ pgembed, simulator, fsm/diagram        policy, provider, simulator → egress
//
// Tests import what they need; the compiler keeps cycles out. bench is a module of
// its own: it uses the service as a customer does, and pgembed for its PostgreSQL.
var mayImport = map[string][]string{
	"fsm":                 {},
	"fsm/diagram":         {"fsm"},
	"migrations":          {"db", "internal/pg"},
	"db":                  {"fsm"},
	"internal/pg":         {"db"},
	"internal/iso4217":    {},
	"internal/egress":     {},
	"internal/policy":     {"fsm", "internal/iso4217", "internal/egress", "internal/signing"},
	"engine/ledger":       {"fsm", "db", "internal/pg"},
	"internal/provider":   {"fsm", "internal/egress"},
	"engine/batch":        {},
	"internal/orders":     {"fsm", "db", "internal/pg"},
	"engine":              {"engine/batch", "fsm", "db", "internal/pg", "internal/policy", "internal/policy/store", "engine/ledger", "internal/orders", "internal/provider", "internal/provider/endpoint", "internal/provider/stripe", "internal/signing"},
	"internal/signing":    {},
	"internal/webhooks":   {"db", "internal/pg", "internal/events", "internal/egress", "internal/orders", "internal/provider", "internal/signing"},
	"internal/events":     {"fsm", "db", "internal/pg", "internal/orders"},
	"internal/books":      {"fsm", "db", "internal/pg"},
	"internal/access":     {"db", "internal/pg"},
	"httpapi":             {"internal/access", "internal/books", "internal/events", "fsm", "internal/iso4217", "db", "internal/pg", "internal/policy", "internal/policy/store", "internal/provider", "internal/orders", "engine", "internal/webhooks"},
	"internal/console":    {"client", "docs", "fsm", "fsm/diagram"},
	"docs":                {},
	"internal/doctor":     {"db", "internal/pg", "engine", "migrations", "internal/pgembed"},
	"internal/pgembed":    {},
	"internal/demo":       {"internal/books", "client", "internal/console", "db", "internal/pg", "internal/pgembed", "internal/simulator"},
	"internal/simulator":  {"internal/egress", "internal/signing"},
	"main":                {"internal/cli"},
	"internal/cli":        {"internal/access", "client", "internal/console", "internal/demo", "internal/events", "fsm", "fsm/diagram", "internal/iso4217", "migrations", "db", "internal/pg", "internal/policy", "internal/policy/store", "internal/provider", "internal/provider/stripe", "internal/orders", "engine", "internal/books", "internal/doctor", "httpapi", "internal/pgembed", "internal/simulator", "internal/webhooks", "internal/cli/output", "internal/cli/remote"},
	"internal/cli/output": {},
	"internal/cli/remote": {"client", "internal/console", "internal/cli/output"},

	"internal/policy/store": {"db", "internal/pg", "internal/policy"},

	// The executors of remote steps: they reach no database.
	"internal/provider/endpoint": {"fsm", "internal/policy", "internal/provider", "internal/signing"},
	"internal/provider/stripe":   {"fsm", "internal/policy", "internal/provider"},

	"test/house": {},

	// For tests only: no folder above lists them.
	"test/dbtest": {"migrations", "internal/pg", "internal/pgembed"},
	"test/faults": {"internal/access", "client", "internal/demo", "fsm", "migrations", "db", "internal/pg", "internal/policy", "engine/ledger", "internal/orders", "internal/provider", "engine", "internal/books", "httpapi", "internal/pgembed", "internal/simulator", "test/dbtest"},
	"test/model":  {"fsm"},

	// For programs of others, too: whatever it imported, they would import.
	"client": {},

	// A module of its own, which knows the service only from outside, and where its database is.
	"test/clients":         {"client"},
	"test/clients/browser": {"client", "internal/pgembed"},

	// Only what starts PostgreSQL: what it shared with the service, it could not find wrong there.
	"test/campaign": {"test/dbtest", "internal/pgembed"},
}

// strangers keep to mayImport in their tests, too.
var strangers = []string{"test/campaign", "test/clients", "test/clients/browser"}

// statusDoors may call the statements that set orders.status; nobody else may.
var statusDoors = []string{"engine/admit.go", "engine/move.go", "engine/ledger"}

// sqlSpeakers may hold SQL in Go: they work on servers and databases that the
// service does not know yet.
var sqlSpeakers = []string{"test/bench", "test/dbtest", "internal/pgembed"}

const (
	maxFileLines     = 600
	maxFunctionLines = 80
)

// houseRules are checked against the repository, and each against a sample it must
// refuse: a rule that can't fail is none.
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
	"every package has one doc comment",
	"it is what a reader looks for first, and two of them disagree sooner or later",
	checkPackageComments, map[string]string{"fsm/state.go": "package fsm"},
}, {
	"every exported name has a comment",
	"callers need the contract: units, ranges, errors, concurrency",
	checkExportedNames, map[string]string{"fsm/state.go": "package fsm\ntype State string"},
}, {
	"files and functions are short",
	"a file does one thing; a long one hides a second",
	checkSizes, map[string]string{"fsm/state.go": "package fsm\nfunc long() {" + strings.Repeat("\n", 80) + "}"},
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
	whole, err := parseRepository(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
	for _, rule := range houseRules {
		t.Run(rule.name, func(t *testing.T) {
			t.Parallel()
			for _, broken := range rule.check(whole) {
				t.Error(broken)
			}
			if t.Failed() {
				t.Log("why:", rule.why)
			}
		})
	}
}

func TestHouseRulesRefuse(t *testing.T) {
	t.Parallel()
	for _, rule := range houseRules {
		t.Run(rule.name, func(t *testing.T) {
			t.Parallel()
			files := fstest.MapFS{}
			for name, text := range rule.refuses {
				files[name] = &fstest.MapFile{Data: []byte(text)}
			}
			sample, err := parseRepository(files)
			if err != nil {
				t.Fatal(err)
			}
			if broken := rule.check(sample); len(broken) != 1 {
				t.Errorf("want one complaint, got %q", broken)
			}
		})
	}
}

func checkImports(r repository) (broken []string) {
	for _, f := range r.goFiles {
		for _, spec := range f.tree.Imports {
			target, ours := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), "pawl/")
			if ours && (!f.test || slices.Contains(strangers, f.folder)) && !f.within("test/bench") && !slices.Contains(mayImport[f.folder], target) {
				broken = append(broken, fmt.Sprintf("%s: %s must not import %s", f.at(spec), f.folder, target))
			}
		}
	}
	return broken
}

func checkFolders(r repository) (broken []string) {
	for _, f := range r.goFiles {
		if _, known := mayImport[f.folder]; !known && !f.within("test/bench") {
			broken = append(broken, fmt.Sprintf("%s: folder %s is new: give it a place in mayImport", f.path, f.folder))
		}
	}
	return broken
}

func checkPackageComments(r repository) (broken []string) {
	type pack struct{ files, comments, testComments int }
	packages := map[string]pack{}
	for _, f := range r.goFiles {
		p := packages[f.folder]
		commented := 0
		if f.tree.Doc.Text() != "" {
			commented = 1
		}
		if f.test {
			p.testComments += commented
		} else {
			p.files, p.comments = p.files+1, p.comments+commented
		}
		packages[f.folder] = p
	}
	for folder, p := range packages {
		if p.files == 0 { // tests alone
			p.comments = p.testComments
		}
		if p.comments != 1 {
			broken = append(broken, fmt.Sprintf("%s: %d doc comments, want 1", folder, p.comments))
		}
	}
	return broken
}

func checkExportedNames(r repository) (broken []string) {
	for _, f := range r.goFiles {
		if f.test || f.generated {
			continue
		}
		for _, declaration := range f.tree.Decls {
			for _, name := range uncommented(declaration) {
				broken = append(broken, fmt.Sprintf("%s: %s has no comment", f.at(name), name.Name))
			}
		}
	}
	return broken
}

// uncommented returns the exported names of a declaration that nothing explains.
func uncommented(declaration ast.Decl) (names []*ast.Ident) {
	switch d := declaration.(type) {
	case *ast.FuncDecl:
		if d.Doc.Text() == "" && visible(d) {
			names = append(names, d.Name)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec: // the comment of a group explains none of its types
				if s.Doc.Text()+s.Comment.Text() == "" && (d.Lparen.IsValid() || d.Doc.Text() == "") {
					names = append(names, s.Name)
				}
			case *ast.ValueSpec:
				if s.Doc.Text()+s.Comment.Text()+d.Doc.Text() == "" {
					names = append(names, s.Names...)
				}
			}
		}
	}
	return slices.DeleteFunc(names, func(name *ast.Ident) bool { return !name.IsExported() })
}

// visible says whether a function can be called from outside, and is not one of the
// methods whose contract is that of their interface.
func visible(f *ast.FuncDecl) bool {
	if f.Recv == nil {
		return true
	}
	if slices.Contains([]string{"Error", "Unwrap", "String"}, f.Name.Name) {
		return false
	}
	for node := range ast.Preorder(f.Recv.List[0].Type) {
		if name, ok := node.(*ast.Ident); ok {
			return name.IsExported()
		}
	}
	return false
}

func checkSizes(r repository) (broken []string) {
	for _, f := range r.goFiles {
		if f.generated {
			continue
		}
		if lines := f.lines(); lines > maxFileLines {
			broken = append(broken, fmt.Sprintf("%s: %d lines, at most %d", f.path, lines, maxFileLines))
		}
		for _, declaration := range f.tree.Decls {
			function, ok := declaration.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if lines := f.span(function) - tableLines(f, function); lines > maxFunctionLines {
				broken = append(broken, fmt.Sprintf("%s: %s has %d lines, at most %d",
					f.at(function), function.Name.Name, lines, maxFunctionLines))
			}
		}
	}
	return broken
}

// tableLines counts the lines of the tables in a test: literals of slices and maps,
// which may be as long as they need.
func tableLines(f goFile, function *ast.FuncDecl) (lines int) {
	ast.Inspect(function, func(node ast.Node) bool {
		literal, ok := node.(*ast.CompositeLit)
		if !ok || !f.test {
			return f.test
		}
		switch literal.Type.(type) {
		case *ast.ArrayType, *ast.MapType:
			lines += f.span(literal) - 1
			return false
		}
		return true
	})
	return lines
}

var clumsyError = regexp.MustCompile(`(?i)^["\x60](failed|error|unable)\b`)

func checkErrorTexts(r repository) (broken []string) {
	for _, f := range r.goFiles {
		for node := range ast.Preorder(f.tree) {
			call, ok := node.(*ast.CallExpr)
			if !ok || f.test || len(call.Args) == 0 {
				continue
			}
			function, ok := call.Fun.(*ast.SelectorExpr)
			text, constant := call.Args[0].(*ast.BasicLit)
			if ok && constant && slices.Contains([]string{"Errorf", "New"}, function.Sel.Name) && clumsyError.MatchString(text.Value) {
				broken = append(broken, fmt.Sprintf("%s: %s: name what was being done: \"claim orders: %%w\"", f.at(call), text.Value))
			}
		}
	}
	return broken
}
