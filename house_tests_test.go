package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"path"
	"strings"
)

// opensIn is the file in which the tests of a folder begin where that is neither example_test.go nor named after the folder.
var opensIn = map[string]string{
	"main":            "house_test.go",
	"batch":           "queue_test.go",
	"db":              "fault_test.go", // the rest of it is generated, or waits for a server
	"orders":          "verbs_test.go",
	"faulttest":       "contract_test.go", // the program, before anything is taken from it
	"provider/stripe": "charge_test.go",
	"webhooks":        "address_test.go",
}

func checkOpenings(r repository) (broken []string) {
	opened := map[string]bool{} // folders with tests: whether they begin well
	for _, f := range r.goFiles {
		for _, declaration := range f.tree.Decls {
			if test, ok := declaration.(*ast.FuncDecl); ok && f.test && isTest(test.Name.Name) {
				file := path.Base(f.path)
				here := file == "example_test.go" || file == cmp.Or(opensIn[f.folder], path.Base(f.folder)+"_test.go")
				opened[f.folder] = opened[f.folder] || here && shows(test)
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

// shows says whether a test is an example, goes through a table, or has parts with names.
func shows(test *ast.FuncDecl) bool {
	for node := range ast.Preorder(test.Body) {
		_, table := node.(*ast.RangeStmt)
		part, named := node.(*ast.SelectorExpr)
		if table || named && part.Sel.Name == "Run" {
			return true
		}
	}
	return strings.HasPrefix(test.Name.Name, "Example")
}
