package house

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// repository is what the house rules look at: the Go and SQL files of all modules.
type repository struct {
	goFiles  []goFile
	sqlFiles []sqlFile
}

// goFile is one parsed Go file.
type goFile struct {
	path      string // from the root, with slashes
	folder    string // "main" is the root
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

// skipped are folders that hold nothing of ours.
var skipped = []string{"bin", "node_modules", "testdata"}

func parseRepository(root fs.FS) (repository, error) {
	var r repository
	set := token.NewFileSet()
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name != "." && (strings.HasPrefix(entry.Name(), ".") || slices.Contains(skipped, entry.Name())) {
				return fs.SkipDir
			}
			return nil
		}
		switch path.Ext(name) {
		case ".go":
			return r.addGo(set, root, name)
		case ".sql":
			text, err := fs.ReadFile(root, name)
			r.sqlFiles = append(r.sqlFiles, sqlFile{path: name, text: string(text)})
			return err
		}
		return nil
	})
	if err != nil {
		return repository{}, fmt.Errorf("parse repository: %w", err)
	}
	return r, nil
}

func (r *repository) addGo(set *token.FileSet, root fs.FS, name string) error {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return err
	}
	tree, err := parser.ParseFile(set, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	folder := path.Dir(name)
	if folder == "." {
		folder = "main"
	}
	r.goFiles = append(r.goFiles, goFile{
		path: name, folder: folder, set: set, tree: tree,
		test: strings.HasSuffix(name, "_test.go"), generated: ast.IsGenerated(tree),
	})
	return nil
}

// sqlIn returns the SQL files of a folder, by name.
func (r repository) sqlIn(folder string) []sqlFile {
	var files []sqlFile
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
func (r repository) statements() []statement {
	var all []statement
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

// within says whether the file is one of the places, or in a folder of them.
func (f goFile) within(places ...string) bool {
	return slices.ContainsFunc(places, func(place string) bool {
		return f.path == place || strings.HasPrefix(f.path, place+"/")
	})
}

// at is the place of a node as editors know it.
func (f goFile) at(node ast.Node) string {
	return fmt.Sprintf("%s:%d", f.path, f.set.Position(node.Pos()).Line)
}

// span is the number of lines a node takes.
func (f goFile) span(node ast.Node) int {
	return f.set.Position(node.End()).Line - f.set.Position(node.Pos()).Line + 1
}

// lines is the length of the file.
func (f goFile) lines() int {
	return f.set.File(f.tree.FileStart).LineCount()
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
