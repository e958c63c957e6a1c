package docs

import (
	"bytes"
	_ "embed" // the frame and the style are files
	"fmt"
	"html/template"
	"io/fs"
	"path"
	"strings"
	"testing/fstest"
)

// contents are the pages of the site, by chapters, as patterns of paths in the repository.
var contents = []struct {
	title string
	pages []string
}{
	{"Begin", []string{"README.md", "docs/tutorial.md", "docs/guarantees.md", "docs/glossary.md", "CHANGELOG.md"}},
	{"Integrating", []string{"docs/policy.md", "docs/http-endpoints.md", "docs/simulator.md", "docs/events.md", "client/README.md", "client/*/README.md"}},
	{"Operating", []string{"docs/operations.md", "docs/runbook.md", "docs/*/*.md", "docs/security.md", "docs/performance.md"}},
	{"Design", []string{"docs/design.md", "docs/state-machine.md"}},
}

//go:embed site.html
var frame string

//go:embed site.css
var style string

var layout = template.Must(template.New("page").Parse(frame))

type chapter struct {
	Title string
	Pages []*page
}

type page struct {
	path, URL string // in the repository, and in the site
	Sections  []Section
}

// Root is the way from the page to the root of the site.
func (p *page) Root() string {
	if p.URL == Missing {
		return "/" // it is shown at any address
	}
	return strings.Repeat("../", strings.Count(p.URL, "/"))
}

// Missing is the page for what a site does not have.
const Missing = "404.html"

// Site renders the pages in a tree, which has the paths of the repository, as a static site without scripts. Files that
// pages link to are part of it; links to what is not in the tree become text. base is the style sheet of the console.
func Site(tree fs.FS, base string) (fs.FS, error) {
	files := fstest.MapFS{"style.css": {Data: []byte(base + style), Mode: 0o644}}
	chapters, pages, err := find(tree)
	if err != nil {
		return nil, err
	}
	for _, p := range pages {
		link := func(to string) string {
			name, anchor, hasAnchor := strings.Cut(to, "#")
			if name == "" || strings.Contains(name, ":") {
				return to
			}
			name = path.Join(path.Dir(p.path), name)
			if other := pages[name]; other != nil {
				name = other.URL
			} else if content, err := fs.ReadFile(tree, name); err == nil {
				files[name] = &fstest.MapFile{Data: content, Mode: 0o644}
			} else {
				return ""
			}
			if hasAnchor {
				name += "#" + anchor
			}
			return p.Root() + name
		}
		source, err := fs.ReadFile(tree, p.path)
		if err == nil {
			p.Sections, err = Sections(source, link)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.path, err)
		}
	}
	const sorry = "There is no such page"
	pages[Missing] = &page{URL: Missing, Sections: []Section{{
		Title: sorry, Heading: "<h1>" + sorry + "</h1>", Body: "<p>The address may be mistyped. The menu has all pages.</p>"}}}
	for _, p := range pages { // with the titles of all
		var html bytes.Buffer
		if err := layout.Execute(&html, map[string]any{"Page": p, "Chapters": chapters}); err != nil {
			return nil, fmt.Errorf("%s: %w", p.path, err)
		}
		files[p.URL] = &fstest.MapFile{Data: html.Bytes(), Mode: 0o644}
	}
	return files, nil
}

func find(tree fs.FS) (chapters []chapter, pages map[string]*page, err error) {
	pages = map[string]*page{}
	for _, c := range contents {
		listed := chapter{Title: c.title}
		for _, pattern := range c.pages {
			paths, err := fs.Glob(tree, pattern)
			if err != nil {
				return nil, nil, err
			}
			for _, name := range paths {
				p := &page{path: name, URL: strings.TrimSuffix(name, ".md") + ".html"}
				if path.Base(name) == "README.md" {
					p.URL = path.Join(path.Dir(name), "index.html")
				}
				pages[name], listed.Pages = p, append(listed.Pages, p)
			}
		}
		chapters = append(chapters, listed)
	}
	return chapters, pages, nil
}
