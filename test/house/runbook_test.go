package house

import (
	"go/ast"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestRunbook holds the runbook to the code: whoever finds an order held looks up there
// why.
func TestRunbook(t *testing.T) {
	t.Parallel()
	r, err := parseRepository(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(root + "/docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := regexp.MustCompile("(?m)^##+ `([^`]+)`$")
	words := regexp.MustCompile("`([^`\n]+)`")
	for _, rule := range []struct {
		name  string
		found []string
		least int // fewer: they are not found any more
		in    *regexp.Regexp
	}{
		{"has a section on every hold", holds(r), 7, sections},
		{"has a section on every reason of a hold", slices.Concat(reasons(r), reasonsInSQL(r)), 7, sections},
		{"names every code of ours that a step is tried again for", retryCodes(r), 15, words},
	} {
		t.Run(rule.name, func(t *testing.T) {
			t.Parallel()
			if len(rule.found) < rule.least {
				t.Errorf("found %q in the code", rule.found)
			}
			for _, word := range rule.found {
				if !slices.ContainsFunc(rule.in.FindAllStringSubmatch(string(text), -1), func(m []string) bool { return m[1] == word }) {
					t.Errorf("docs/runbook.md does not say what to do about `%s`", word)
				}
			}
		})
	}
}

// holds are the values of orders.hold: constants of the machine that are named so.
func holds(r repository) (values []string) {
	eachNode(r, "fsm", func(n ast.Node) {
		spec, ok := n.(*ast.ValueSpec)
		if ok && strings.HasPrefix(spec.Names[0].Name, "Hold") && len(spec.Values) == 1 {
			values = append(values, literalText(spec.Values[0])...)
		}
	})
	return values
}

// reasons are the words that begin orders.hold_reason, before a colon.
func reasons(r repository) (words []string) {
	word := regexp.MustCompile(`^([a-z]+(?:_[a-z]+)+): `)
	find := func(n ast.Node) {
		if literal, ok := n.(*ast.BasicLit); ok {
			for _, text := range literalText(literal) {
				if found := word.FindStringSubmatch(text); found != nil {
					words = append(words, found[1])
				}
			}
		}
	}
	eachNode(r, "engine", find)
	eachNode(r, "orders", find)
	return words
}

// reasonsInSQL are those that a statement gives.
func reasonsInSQL(r repository) (words []string) {
	reason := regexp.MustCompile(`hold_reason = CASE [^\n]*THEN '([^']+)'`)
	for _, file := range r.sqlIn("queries") {
		for _, found := range reason.FindAllStringSubmatch(file.text, -1) {
			words = append(words, found[1])
		}
	}
	return words
}

// retryCodes are the codes of answers that leave a step open, as far as they are ours.
func retryCodes(r repository) (codes []string) {
	find := func(n ast.Node) {
		switch n := n.(type) {
		case *ast.CallExpr:
			if lastName(n.Fun) == "unsent" {
				codes = append(codes, literalText(n.Args[0])...)
			}
		case *ast.CompositeLit:
			if kind := lastName(n.Type); kind == "Retry" || kind == "Unknown" {
				codes = append(codes, codeOf(n)...)
			}
		}
	}
	eachNode(r, "engine", find)
	eachNode(r, "internal/provider", find)
	return codes
}

func codeOf(literal *ast.CompositeLit) []string {
	for _, element := range literal.Elts {
		if pair, ok := element.(*ast.KeyValueExpr); ok && lastName(pair.Key) == "Code" {
			return literalText(pair.Value)
		}
	}
	return nil
}

func eachNode(r repository, folder string, do func(ast.Node)) {
	for _, file := range r.goFiles {
		if file.folder == folder && !file.test && !file.generated {
			for node := range ast.Preorder(file.tree) {
				do(node)
			}
		}
	}
}

// lastName is a name without what it is of.
func lastName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

// literalText is the text of a string literal; nothing of anything else.
func literalText(e ast.Expr) []string {
	if literal, ok := e.(*ast.BasicLit); ok {
		if text, err := strconv.Unquote(literal.Value); err == nil && text != "" {
			return []string{text}
		}
	}
	return nil
}
