// Package docs renders the documentation: sections of the runbook for the console, and all pages as a site.
package docs

import (
	"bytes"
	_ "embed" // pages are files
	"fmt"
	"html/template"
	"strings"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/text"
)

// Runbook is docs/runbook.md: why an order waits, and what to do.
//
//go:embed runbook.md
var Runbook []byte

// Policy is docs/policy.md: how to say how orders are processed.
//
//go:embed policy.md
var Policy []byte

// Simulator is docs/simulator.md: the faults of the simulated provider.
//
//go:embed simulator.md
var Simulator []byte

// Section is a heading of a page, with what follows up to the next heading.
type Section struct {
	Level         int    // of the heading: 1 is the title of the page
	Title, Anchor string // the anchor as on GitHub
	Heading, Body template.HTML
}

var (
	markdown = goldmark.New(goldmark.WithExtensions(extension.Table))
	tables   = strings.NewReplacer("<th></th>", "<td></td>", "<table>", `<table tabindex="0">`, "<pre>", `<pre tabindex="0">`) // for screen readers and keyboards
)

// Sections renders a page, without the HTML in it. link says where a link or picture of the page leads to; of one that
// leads nowhere (""), only the text stays. It is safe for concurrent use.
func Sections(page []byte, link func(to string) string) (all []Section, err error) {
	page = bytes.ReplaceAll(page, []byte("- [ ] "), []byte("- ☐ "))
	tree := markdown.Parser().Parse(text.NewReader(page))
	relink(tree, link)
	for node := tree.FirstChild(); node != nil; node = node.NextSibling() {
		heading, ok := node.(*ast.Heading)
		if ok {
			title := strings.ReplaceAll(string(heading.Lines().Value(page)), "`", "")
			heading.SetAttributeString("id", []byte(anchor(title)))
			all = append(all, Section{Level: heading.Level, Title: title, Anchor: anchor(title)})
		} else if all == nil {
			all = append(all, Section{})
		}
		var html bytes.Buffer
		if err := markdown.Renderer().Render(&html, page, node); err != nil {
			return nil, fmt.Errorf("render Markdown: %w", err)
		}
		last := &all[len(all)-1]
		if ok {
			last.Heading = template.HTML(html.String())
		} else {
			last.Body += template.HTML(tables.Replace(html.String()))
		}
	}
	return all, nil
}

// anchor is the anchor of a heading, as on GitHub.
func anchor(title string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
			return unicode.ToLower(r)
		}
		return -1
	}, title)
}

func relink(tree ast.Node, link func(to string) string) {
	var nowhere []ast.Node
	_ = ast.Walk(tree, func(node ast.Node, entering bool) (ast.WalkStatus, error) {
		var to *[]byte
		switch n := node.(type) {
		case *ast.Link:
			to = &n.Destination
		case *ast.Image:
			to = &n.Destination
		}
		if to == nil || !entering {
			return ast.WalkContinue, nil
		}
		if *to = []byte(link(string(*to))); len(*to) == 0 {
			nowhere = append(nowhere, node)
		}
		return ast.WalkContinue, nil
	})
	for _, node := range nowhere {
		for child := node.FirstChild(); child != nil; child = node.FirstChild() {
			node.Parent().InsertBefore(node.Parent(), node, child)
		}
		node.Parent().RemoveChild(node.Parent(), node)
	}
}
