package console

import (
	"bytes"
	"html/template"
	"strings"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"

	"pawl/docs"
)

func (v *visit) showRunbook() error {
	return v.show("runbook", page{Title: "Runbook", Data: runbook.whole})
}

var runbook = readRunbook(docs.Runbook)

type manual struct {
	whole    template.HTML
	sections map[string]template.HTML // by the anchor of the heading; without the heading
}

// markdown renders the runbook. HTML in it is escaped.
var markdown = goldmark.New(
	goldmark.WithExtensions(extension.Table),
	goldmark.WithParserOptions(parser.WithASTTransformers(util.Prioritized(linksOfConsole{}, 1))),
)

func readRunbook(source []byte) manual {
	tree := markdown.Parser().Parse(text.NewReader(source))
	m := manual{sections: map[string]template.HTML{}}
	var name string
	for node := tree.FirstChild(); node != nil; node = node.NextSibling() {
		html := rendered(node, source)
		m.whole += html
		if heading, ok := node.(*ast.Heading); ok {
			name = anchor(heading, source)
			continue
		}
		m.sections[name] += html
	}
	return m
}

func rendered(node ast.Node, source []byte) template.HTML {
	var html bytes.Buffer
	if err := markdown.Renderer().Render(&html, source, node); err != nil {
		panic("console: runbook: " + err.Error()) // the runbook is embedded
	}
	return template.HTML(html.String())
}

// anchor is the anchor of a heading, as on GitHub.
func anchor(heading *ast.Heading, source []byte) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
			return unicode.ToLower(r)
		}
		return -1
	}, string(heading.Lines().Value(source)))
}

// linksOfConsole adds anchors, and points links to the runbook in the console. Links to other documents become text,
// because the service does not serve those.
type linksOfConsole struct{}

// Transform implements parser.ASTTransformer.
func (linksOfConsole) Transform(tree *ast.Document, source text.Reader, _ parser.Context) {
	var links []*ast.Link
	_ = ast.Walk(tree, func(node ast.Node, entering bool) (ast.WalkStatus, error) {
		switch n := node.(type) {
		case *ast.Link:
			if entering {
				links = append(links, n)
			}
		case *ast.Heading:
			n.SetAttributeString("id", []byte(anchor(n, source.Source())))
		}
		return ast.WalkContinue, nil
	})
	for _, link := range links {
		if to := string(link.Destination); strings.HasPrefix(to, "#") {
			link.Destination = []byte("/console/runbook" + to)
			continue
		}
		for child := link.FirstChild(); child != nil; child = link.FirstChild() {
			link.Parent().InsertBefore(link.Parent(), link, child)
		}
		link.Parent().RemoveChild(link.Parent(), link)
	}
}
