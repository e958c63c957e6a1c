package house

import (
	"go/ast"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	threats   = regexp.MustCompile(`(?s)\n## Threats and answers\n(.*?)\n## `)
	threatRow = regexp.MustCompile(`(?m)^\| (.+) \| (.+) \| (.+) \|$`)
	namedTest = regexp.MustCompile("^`([a-z0-9]+)\\.(Test[A-Za-z0-9]+)`$")
)

// TestThreatsHaveTests holds docs/security.md to its word: each threat of its table names tests, and they are there.
func TestThreatsHaveTests(t *testing.T) {
	t.Parallel()
	r, err := parseRepository(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
	section := threats.FindStringSubmatch(read(t, "docs/security.md"))
	if section == nil {
		t.Fatal("docs/security.md has no table of threats")
	}
	rows := threatRow.FindAllStringSubmatch(section[1], -1)
	if len(rows) < 15 || strings.Count(section[1], "\n|") != len(rows)+1 {
		t.Errorf("%d rows are understood, there are %d", len(rows), strings.Count(section[1], "\n|")-1)
	}
	tests := testsOf(r)
	for _, row := range rows[1:] { // the first is the head
		for test := range strings.SplitSeq(row[3], ", ") {
			name := namedTest.FindStringSubmatch(test)
			if name == nil {
				t.Errorf("%s: %s does not name a test as `package.Test`", row[1], test)
			} else if !slices.Contains(tests[name[1]], name[2]) {
				t.Errorf("%s: there is no test %s", row[1], test)
			}
		}
	}
}

// testsOf are the names of the tests by the last name of their folder.
func testsOf(r repository) map[string][]string {
	tests := map[string][]string{}
	for _, f := range r.goFiles {
		for _, declaration := range f.tree.Decls {
			if test, ok := declaration.(*ast.FuncDecl); ok && f.test && isTest(test.Name.Name) {
				tests[path.Base(f.folder)] = append(tests[path.Base(f.folder)], test.Name.Name)
			}
		}
	}
	return tests
}

// TestToolchainIsNamed has an older go command fetch the release that we test with, with the fixes that it lacks.
func TestToolchainIsNamed(t *testing.T) {
	t.Parallel()
	if !regexp.MustCompile(`(?m)^toolchain go1\.\d+\.\d+$`).MatchString(read(t, "go.mod")) {
		t.Error("go.mod has no toolchain line")
	}
}

func isTest(name string) bool {
	return name != "TestMain" && (strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Example"))
}
