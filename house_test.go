// The house rules: what a reviewer would otherwise have to look for by hand. Each is
// a subtest whose name is the rule; when it fails it says why the rule exists.
// Exceptions are made here, in the tables, where a reviewer sees them.
package main

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
//	main → cli → httpapi → engine → ledger → db → fsm
//	        │       │         ├───→ orders → db
//	        │       │         ├───→ provider/endpoint, provider/stripe → provider → fsm
//	        │       │         ├───→ policy/store → policy, db   └──→ policy → fsm
//	        │       │         └───→ batch
//	        │       ├──→ orders
//	        │       └──→ access, books → db
//	        ├──→ doctor → engine, migrations, pgembed        cli/remote → client: a program like any other
//	        ├──→ books               ledger, orders and executors do not know each other
//	        ├──→ migrations → db
//	        ├──→ console → client, fsm/diagram               the API is its only way to an order
//	        ├──→ demo → console, db, pgembed, books, simulator
//	        └──→ pgembed, simulator, fsm/diagram        policy, provider, simulator → egress; policy, simulator → signing
//
// Tests import what they need; the compiler keeps cycles out. bench is a module of
// its own: it uses the service as a customer does, and pgembed for its PostgreSQL.
var mayImport = map[string][]string{
	"fsm":         {},
	"fsm/diagram": {"fsm"},
	"migrations":  {"db"},
	"db":          {"fsm"},
	"iso4217":     {},
	"egress":      {},
	"policy":      {"fsm", "iso4217", "egress", "signing"},
	"ledger":      {"fsm", "db"},
	"provider":    {"fsm", "egress"},
	"batch":       {},
	"orders":      {"fsm", "db"},
	"engine":      {"batch", "fsm", "db", "policy", "policy/store", "ledger", "orders", "provider", "provider/endpoint", "provider/stripe", "signing"},
	"signing":     {},
	"webhooks":    {"db", "events", "egress", "orders", "provider", "signing"},
	"events":      {"fsm", "db", "orders"},
	"books":       {"fsm", "db"},
	"access":      {"db"},
	"httpapi":     {"access", "books", "events", "fsm", "iso4217", "db", "policy", "policy/store", "provider", "orders", "engine", "webhooks"},
	"console":     {"client", "docs", "fsm", "fsm/diagram"},
	"docs":        {},
	"doctor":      {"db", "engine", "migrations", "pgembed"},
	"pgembed":     {},
	"demo":        {"books", "client", "console", "db", "pgembed", "simulator"},
	"simulator":   {"egress", "signing"},
	"main":        {"cli"},
	"cli":         {"access", "client", "console", "demo", "events", "fsm", "fsm/diagram", "iso4217", "migrations", "db", "policy", "policy/store", "provider", "provider/stripe", "orders", "engine", "books", "doctor", "httpapi", "pgembed", "simulator", "webhooks", "cli/output", "cli/remote"},
	"cli/output":  {},
	"cli/remote":  {"client", "console", "cli/output"},

	"policy/store": {"db", "policy"},

	// The executors of remote steps: they reach no database.
	"provider/endpoint": {"fsm", "policy", "provider", "signing"},
	"provider/stripe":   {"fsm", "policy", "provider"},

	// For tests only: no folder above lists them.
	"dbtest":    {"migrations", "pgembed"},
	"faulttest": {"access", "client", "demo", "fsm", "migrations", "db", "policy", "ledger", "orders", "provider", "engine", "books", "httpapi", "pgembed", "simulator", "dbtest"},
	"model":     {"fsm"},

	// For programs of others, too: whatever it imported, they would import.
	"client": {},

	// A module of its own, which knows the service only from outside, and where its database is.
	"clienttest":         {"client"},
	"clienttest/browser": {"client", "pgembed"},

	// Only what starts PostgreSQL: what it shared with the service, it could not find wrong there.
	"campaign": {"dbtest", "pgembed"},
}

// strangers keep to mayImport in their tests, too.
var strangers = []string{"campaign", "clienttest", "clienttest/browser"}

// statusDoors may call the statements that set orders.status; nobody else may.
var statusDoors = []string{"engine/admit.go", "engine/move.go", "ledger"}

// sqlSpeakers may hold SQL in Go: they work on servers and databases that the
// service does not know yet.
var sqlSpeakers = []string{"bench", "dbtest", "pgembed"}

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
	checkImports, map[string]string{"ledger/charge.go": "package ledger\nimport _ \"pawl/engine\""},
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
	checkErrorTexts, map[string]string{"db/open.go": "package db\nvar err = fmt.Errorf(\"failed to open: %w\", cause)"},
}}

func TestHouseRules(t *testing.T) {
	t.Parallel()
	whole, err := parseRepository(os.DirFS("."))
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
			if ours && (!f.test || slices.Contains(strangers, f.folder)) && !f.within("bench") && !slices.Contains(mayImport[f.folder], target) {
				broken = append(broken, fmt.Sprintf("%s: %s must not import %s", f.at(spec), f.folder, target))
			}
		}
	}
	return broken
}

func checkFolders(r repository) (broken []string) {
	for _, f := range r.goFiles {
		if _, known := mayImport[f.folder]; !known && !f.within("bench") {
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
