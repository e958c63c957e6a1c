package house

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestLinksOfTheDocumentation follows those within the repository.
func TestLinksOfTheDocumentation(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	link := regexp.MustCompile(`\]\(([^)#:]*)(?:#([^)]+))?\)`)
	for _, page := range append(pages, "README.md", "CONTRIBUTING.md", "test/model/README.md", "client/README.md", "test/clients/README.md", "client/typescript/README.md") {
		for _, found := range link.FindAllStringSubmatch(read(t, page), -1) {
			target, anchor := filepath.ToSlash(page), found[2]
			if found[1] != "" {
				target = path.Join(path.Dir(target), found[1])
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s, which is not there", page, target)
			} else if anchor != "" && !slices.Contains(anchors(read(t, target)), anchor) {
				t.Errorf("%s links to %s#%s, which is not there", page, target, anchor)
			}
		}
	}
}

// TestExamplesOfRequestsDoNotMeet has a reader try one page after the other: an order id in two pages would be in use by
// another order, or charged at the provider already.
func TestExamplesOfRequestsDoNotMeet(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	sent := regexp.MustCompile(`(?:-d|body=)\s*'\{"orderId":"([^"]+)"`)
	first := map[string]string{}
	for _, page := range append(pages, "README.md") {
		for _, found := range sent.FindAllStringSubmatch(read(t, page), -1) {
			if other := first[found[1]]; other != "" && other != page {
				t.Errorf("%s and %s both send an order %s", page, other, found[1])
			}
			first[found[1]] = page
		}
	}
	if len(first) < 4 {
		t.Errorf("only %v: this test no longer understands the examples", first)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// anchors are the names that GitHub gives to the headings of a page.
func anchors(page string) (names []string) {
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(page, -1) {
		name := regexp.MustCompile(`[^a-z0-9_ -]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		names = append(names, strings.ReplaceAll(name, " ", "-"))
	}
	return names
}
