package house

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

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
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal("parse the repository:", err)
	}
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
