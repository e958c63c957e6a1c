package cli

import (
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"pawl/test/assert"
)

// sitePage is what a page of the site leads to, and where others can lead to in it.
type sitePage struct {
	links   map[string]string // the element by the link
	anchors map[string]bool
}

func readSitePage(t *testing.T, file string) sitePage {
	t.Helper()
	text, err := os.Open(file)
	assert.NoError(t, err)
	defer text.Close()
	root, err := html.Parse(text)
	assert.NoError(t, err)
	p := sitePage{map[string]string{}, map[string]bool{"": true}}
	for node := range root.Descendants() {
		for _, a := range node.Attr {
			switch a.Key {
			case "href", "src":
				p.links[a.Val] = node.Data
			case "id":
				p.anchors[a.Val] = true
			}
		}
	}
	return p
}

// TestDocumentationIsASite: every page is listed, every link leads to a file and an anchor of the site or to the web, and
// nothing is loaded from elsewhere.
func TestDocumentationIsASite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	printed(t, "docs", "--to", dir)
	for _, target := range []string{"/docs/none.html", "/docs"} {
		missing := httptest.NewRecorder()
		pagesOf(os.DirFS(dir)).ServeHTTP(missing, httptest.NewRequest(http.MethodGet, target, nil))
		assert.Equal(t, missing.Code, http.StatusNotFound)
		assert.Contains(t, missing.Body.String(), `href="/docs/tutorial.html"`)
	}
	pages, linked := map[string]sitePage{}, map[string]bool{}
	assert.NoError(t, fs.WalkDir(os.DirFS(dir), ".", func(name string, _ fs.DirEntry, err error) error {
		if err == nil && path.Ext(name) == ".html" {
			pages[name] = readSitePage(t, filepath.Join(dir, name))
		}
		return err
	}))
	for name, page := range pages {
		for link, element := range page.links {
			to, err := url.Parse(link)
			assert.NoError(t, err)
			if to.Scheme != "" && element == "a" || link == "data:," {
				continue
			}
			target := path.Join(path.Dir(name), to.Path)
			if to.Path == "" {
				target = name
			}
			linked[target] = true
			_, err = os.Stat(filepath.Join(dir, target))
			if there, isPage := pages[target]; err != nil || isPage && !there.anchors[to.Fragment] || element == "script" {
				t.Errorf("%s: %s leads nowhere", name, link)
			}
		}
	}
	assert.NoError(t, fs.WalkDir(os.DirFS("../../docs"), ".", func(name string, _ fs.DirEntry, err error) error {
		page, ok := strings.CutSuffix(strings.Replace(name, "README.md", "index.md", 1), ".md")
		assert.True(t, !ok || linked["docs/"+page+".html"], "docs/", name, "is not listed")
		return err
	}))
}
