package engine

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pawl/test/assert"
)

// readingOrder is the list of files in the comment of the package.
func readingOrder(t *testing.T) (names []string) {
	t.Helper()
	doc, err := os.ReadFile("doc.go")
	assert.NoError(t, err)
	_, list, _ := strings.Cut(string(doc), "The order in which to read the files.")
	for line := range strings.Lines(list) {
		files, isList := strings.CutPrefix(line, "//\t")
		if isList && !strings.HasPrefix(files, " ") {
			// what follows three spaces, or a list that leaves no room for them, says what the files are for
			for _, name := range strings.Fields(strings.SplitN(files, "   ", 2)[0]) {
				if _, err := os.Stat(name + ".go"); err == nil {
					names = append(names, name+".go")
				}
			}
		}
	}
	return names
}

// TestReadingOrder: the comment of the package lists its files, each once.
func TestReadingOrder(t *testing.T) {
	t.Parallel()
	listed := readingOrder(t)
	files, err := filepath.Glob("*.go")
	assert.NoError(t, err)
	files = slices.DeleteFunc(files, func(f string) bool { return f == "doc.go" || strings.HasSuffix(f, "_test.go") })
	slices.Sort(listed)
	assert.Equal(t, listed, files, "the list has the package")
}

// TestReadingOrderIsTheCode: a file refers to those below it in the list. Of ten arrows between files, one may run up at
// most, or the list does not show the way of an order any more.
func TestReadingOrderIsTheCode(t *testing.T) {
	t.Parallel()
	order := readingOrder(t)
	arrows, up := map[[2]string]bool{}, map[[2]string]string{}
	for _, use := range uses(t, order) {
		arrow := [2]string{use.from, use.to}
		arrows[arrow] = true
		if slices.Index(order, use.to) < slices.Index(order, use.from) {
			up[arrow] = use.name
		}
	}
	assert.True(t, len(arrows) >= 100 && len(up)*10 <= len(arrows), len(up), "of", len(arrows), "arrows run up", up)
}

type use struct{ from, to, name string }

// uses are what the files take from each other, but for Engine and what it embeds, the receivers of most methods.
func uses(t *testing.T, paths []string) (all []use) {
	t.Helper()
	set := token.NewFileSet()
	var files []*ast.File
	for _, path := range paths {
		file, err := parser.ParseFile(set, path, nil, 0)
		assert.NoError(t, err)
		files = append(files, file)
	}
	info := types.Info{Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: noImports{}, Error: func(error) {}}
	pkg, _ := config.Check("pawl/engine", set, files, &info) // what other packages declare is not known, and not needed
	for id, object := range info.Uses {
		method, isFunc := object.(*types.Func)
		isFunc = isFunc && method.Pkg() == pkg
		if object.Parent() != pkg.Scope() && !isFunc || slices.Contains([]string{"Engine", "remote", "core"}, object.Name()) {
			continue
		}
		from, to := set.Position(id.Pos()).Filename, set.Position(object.Pos()).Filename
		if from != to {
			all = append(all, use{from, to, object.Name()})
		}
	}
	return all
}

// noImports knows the names of packages, and nothing in them.
type noImports struct{}

func (noImports) Import(path string) (*types.Package, error) {
	pkg := types.NewPackage(path, filepath.Base(strings.TrimSuffix(path, "/v2")))
	pkg.MarkComplete()
	return pkg, nil
}
