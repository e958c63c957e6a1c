package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/doc"
	"go/types"
	"path"
	"slices"
	"strings"
)

// opensIn is the file in which the tests of a folder begin where that is neither example_test.go nor named after the folder.
var opensIn = map[string]string{
	"main":            "house_test.go",
	"db":              "fault_test.go", // the rest of it is generated, or waits for a server
	"orders":          "verbs_test.go",
	"faulttest":       "contract_test.go", // the program, before anything is taken from it
	"provider/stripe": "charge_test.go",
}

func checkOpenings(r repository) (broken []string) {
	opened := map[string]bool{} // folders with tests: whether they begin well
	for _, f := range r.goFiles {
		for _, declaration := range f.tree.Decls {
			if test, ok := declaration.(*ast.FuncDecl); ok && f.test && isTest(test.Name.Name) {
				file := path.Base(f.path)
				here := file == "example_test.go" || file == cmp.Or(opensIn[f.folder], path.Base(f.folder)+"_test.go")
				opened[f.folder] = opened[f.folder] || here && f.shows(test)
				break // the first one counts
			}
		}
	}
	for folder, well := range opened {
		if !well {
			broken = append(broken, fmt.Sprintf("%s: neither an Example in example_test.go, nor a table at the top of the file named after the folder", folder))
		}
	}
	return broken
}

func isTest(name string) bool {
	return name != "TestMain" && (strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Example"))
}

// shows says whether a test of the file is an example whose output is compared, or goes through a table or parts with names.
func (f goFile) shows(test *ast.FuncDecl) bool {
	if name, example := strings.CutPrefix(test.Name.Name, "Example"); example {
		return slices.ContainsFunc(doc.Examples(f.tree), func(e *doc.Example) bool { return e.Name == name && e.Output != "" })
	}
	for node := range ast.Preorder(test.Body) {
		switch n := node.(type) {
		case *ast.RangeStmt:
			if isTable(n.X) {
				return true
			}
		case *ast.CallExpr:
			if types.ExprString(n.Fun) == "t.Run" {
				return true
			}
		}
	}
	return false
}

// isTable says whether what a test ranges over may have rows: a count has none, nor has a list of numbers or texts.
func isTable(x ast.Expr) bool {
	if list, ok := x.(*ast.CompositeLit); ok {
		return !slices.ContainsFunc(list.Elts, func(element ast.Expr) bool { _, single := element.(*ast.BasicLit); return single })
	}
	_, named := x.(*ast.Ident)
	return named
}
