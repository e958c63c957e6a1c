package house

import (
	"go/ast"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	readingOrder = regexp.MustCompile(`(?s)\n## Reading order\n(.*?)(?:\n## |$)`)
	readingStep  = regexp.MustCompile("(?m)^[0-9]+\\. \\[`([A-Za-z.]+)`\\]\\(\\.\\./([^)]+)\\)")
	readingItem  = regexp.MustCompile(`(?m)^[0-9]+\. `)
)

// TestReadingOrder holds docs/design.md to its word: each function or statement on a route is in the file that it links
// to, and a route is short enough to be followed.
func TestReadingOrder(t *testing.T) {
	t.Parallel()
	r, err := parseRepository(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
	section := readingOrder.FindStringSubmatch(read(t, "docs/design.md"))
	if section == nil {
		t.Fatal("docs/design.md has no reading order")
	}
	routes := strings.Split(section[1], "\n### ")[1:]
	if len(routes) < 2 {
		t.Errorf("%d routes: the one of an order in the ledger and the one with a remote step are wanted", len(routes))
	}
	for _, route := range routes {
		title, _, _ := strings.Cut(route, "\n")
		steps := readingStep.FindAllStringSubmatch(route, -1)
		if len(steps) != len(readingItem.FindAllString(route, -1)) {
			t.Errorf("%s: an item does not begin with a linked name", title)
		}
		if len(steps) == 0 || len(steps) > 12 {
			t.Errorf("%s: %d steps, at most 12 are wanted", title, len(steps))
		}
		for _, step := range steps {
			if !slices.Contains(r.declaredIn(step[2]), step[1]) {
				t.Errorf("%s: there is no %s in %s", title, step[1], step[2])
			}
		}
	}
}

// declaredIn lists the functions of a Go file, methods as Type.Method, or the statements of a file of queries.
func (r repository) declaredIn(path string) (names []string) {
	for _, s := range r.statements() {
		if s.path == path {
			names = append(names, s.name)
		}
	}
	for _, file := range r.goFiles {
		if file.path != path {
			continue
		}
		for _, d := range file.tree.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				names = append(names, receiver(f)+f.Name.Name)
			}
		}
	}
	return names
}

// receiver is "Type." for a method, and nothing for a function.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	of := f.Recv.List[0].Type
	if pointer, ok := of.(*ast.StarExpr); ok {
		of = pointer.X
	}
	if generic, ok := of.(*ast.IndexExpr); ok {
		of = generic.X
	}
	return lastName(of) + "."
}
