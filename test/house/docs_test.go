package house

import (
	"encoding/json"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"pawl/test/assert"
)

// pages are the documents for users and contributors.
func pages(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob("docs/*.md")
	assert.Require(t, err == nil && len(found) >= 10, found, err)
	return append(found, "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "test/model/README.md", "client/README.md",
		"test/clients/README.md", "client/typescript/README.md", "docs/operations/failover.md", "docs/operations/restore.md",
		"docs/operations/upgrading.md")
}

func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	link := regexp.MustCompile(`\]\(([^)#:]*)(?:#([^)]+))?\)`)
	for _, page := range pages(t) {
		for _, found := range link.FindAllStringSubmatch(read(t, page), -1) {
			target, anchor := filepath.ToSlash(page), found[2]
			if found[1] != "" {
				target = path.Join(path.Dir(target), found[1])
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s, which does not exist", page, target)
			} else if anchor != "" && !slices.Contains(anchors(read(t, target)), anchor) {
				t.Errorf("%s links to %s#%s, which does not exist", page, target, anchor)
			}
		}
	}
}

// anchors are the names that GitHub gives to the headings of a page.
func anchors(page string) (names []string) {
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(page, -1) {
		name := regexp.MustCompile(`[^a-z0-9_ -]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		names = append(names, strings.ReplaceAll(name, " ", "-"))
	}
	return names
}

// TestNamesInDocsExist looks up the tests and the files that a page names.
func TestNamesInDocsExist(t *testing.T) {
	t.Parallel()
	tests := regexp.MustCompile(`(?:\b([a-z]+)\.)?\b(Test[A-Z]\w*)`)
	files := regexp.MustCompile("`((?:httpapi|engine|fsm|db|queries|migrations|internal|client|test|docs|\\.ci)/[\\w./-]*)`")
	known := map[string]bool{}
	for _, f := range parse(t, os.DirFS(".")).goFiles {
		for _, found := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(f.text, -1) {
			known[found[1]], known[path.Base(f.folder)+"."+found[1]] = true, true
		}
	}
	for _, page := range pages(t) {
		text := read(t, page)
		for _, found := range tests.FindAllStringSubmatch(text, -1) {
			assert.True(t, known[found[0]], page, "names", found[0], "which does not exist")
		}
		for _, found := range files.FindAllStringSubmatch(text, -1) {
			assert.Succeeds(t, assert.Err(os.Stat(found[1])), page, "names", found[1], "which does not exist")
		}
	}
}

// TestVersion: what can't read the version of the program agrees with it.
func TestVersion(t *testing.T) {
	t.Parallel()
	number := regexp.MustCompile(`Number = "(\d+\.\d+\.\d+)"`).FindStringSubmatch(read(t, "internal/version/version.go"))[1]
	for file, want := range map[string]string{
		"httpapi/openapi.yaml":           "\n  version: " + number + "\n",
		"client/typescript/package.json": `"version": "` + number + `"`,
		"client/typescript/README.md":    "pawl-client-" + number + ".tgz",
		"README.md":                      "dist/pawl_" + number + "_image.tar",
		"docs/security.md":               "dist/pawl_" + number + "_image.tar",
		"docs/tutorial.md":               "pawl_" + number + "_linux_amd64.tar.gz",
		"release/chart/Chart.yaml":       "\nversion: " + number + "\nappVersion: " + number + "\n",
	} {
		assert.Contains(t, read(t, file), want, file)
	}
	assert.Equal(t, read(t, "LICENSE"), read(t, "client/typescript/LICENSE"), "client/typescript/LICENSE is not a copy of LICENSE")
}

// TestThreatsHaveTests: each threat in docs/security.md names a test that repeats it.
func TestThreatsHaveTests(t *testing.T) {
	t.Parallel()
	section := regexp.MustCompile(`(?s)\n## Threats and answers\n.*?\|---\|---\|---\|\n(.*?)\n\n`).FindStringSubmatch(read(t, "docs/security.md"))
	assert.Require(t, section != nil, "docs/security.md has no table of threats")
	rows, names := strings.Split(section[1], "\n"), regexp.MustCompile("\\| `[a-z]+\\.Test\\w+`(, `[a-z]+\\.Test\\w+`)* \\|$")
	assert.True(t, len(rows) >= 50, "only", len(rows), "threats")
	for _, row := range rows {
		assert.True(t, names.MatchString(row), row, "name tests as `package.Test`")
	}
}

// TestOrderIDsInExamplesDiffer: a reader tries one page after the other, and an order id in two pages would be in use.
func TestOrderIDsInExamplesDiffer(t *testing.T) {
	t.Parallel()
	sent := regexp.MustCompile(`(?:-d|--json|body=)\s*'\{"orderId":"([^"]+)"`)
	first := map[string]string{"order-123": "/docs"}
	empty, err := filepath.Glob("internal/console/templates/*.html")
	assert.NoError(t, err)
	for _, page := range append(pages(t), empty...) {
		for _, found := range sent.FindAllStringSubmatch(read(t, page), -1) {
			other := first[found[1]]
			assert.True(t, other == "" || other == page, page, "and", other, "both send an order", found[1])
			first[found[1]] = page
		}
	}
	assert.True(t, len(first) >= 4, "only", first, "this test no longer understands the examples")
}

// TestReadingOrder: each function or statement on a route in docs/design.md is in the file that it links to.
func TestReadingOrder(t *testing.T) {
	t.Parallel()
	r := parse(t, os.DirFS("."))
	section := regexp.MustCompile(`(?s)\n## Reading order\n(.*?)(?:\n## |$)`).FindStringSubmatch(read(t, "docs/design.md"))
	assert.Require(t, section != nil, "docs/design.md has no reading order")
	routes := strings.Split(section[1], "\n### ")[1:]
	assert.True(t, len(routes) >= 2, len(routes), "routes, want one of an order in the ledger and one with a remote step")
	step := regexp.MustCompile("(?m)^[0-9]+\\. \\[`([A-Za-z.]+)`\\]\\(\\.\\./([^)]+)\\)")
	for _, route := range routes {
		title, _, _ := strings.Cut(route, "\n")
		steps := step.FindAllStringSubmatch(route, -1)
		if items := len(regexp.MustCompile(`(?m)^[0-9]+\. `).FindAllString(route, -1)); items == 0 || items > 12 || items != len(steps) {
			t.Errorf("%s: %d items, %d with a linked name, want 12 at most", title, items, len(steps))
		}
		for _, s := range steps {
			assert.True(t, r.declares(s[2], s[1]), title, "there is no", s[1], "in", s[2])
		}
	}
}

// declares reports whether a Go file has the function, or Type.Method, or a file of queries the statement.
func (r repository) declares(file, name string) bool {
	if of, method, ok := strings.Cut(name, "."); ok {
		name = `\(\w+ \*?` + of + `(\[\w+\])?\) ` + method
	}
	function := regexp.MustCompile(`(?m)^func ` + name + `[(\[]`)
	return slices.ContainsFunc(r.statements(), func(s statement) bool { return s.path == file && s.name == name }) ||
		slices.ContainsFunc(r.goFiles, func(f goFile) bool { return f.path == file && function.MatchString(f.text) })
}

// TestRunbook: docs/runbook.md explains every reason why an order is held, and every code of ours after which a step is retried.
func TestRunbook(t *testing.T) {
	t.Parallel()
	r, runbook := parse(t, os.DirFS(".")), read(t, "docs/runbook.md")
	for _, rule := range []struct {
		name  string
		found []string
		least int // with fewer, this test no longer understands the code
		in    string
	}{
		{"a hold", r.find(`Hold\w+ += "(\w+)"`, "fsm"), 7, "(?m)^##+ `%s`$"},
		{"a reason", r.find(`"([a-z]+(?:_[a-z]+)+): `, "engine", "internal/orders"), 7, "(?m)^##+ `%s`$"},
		{"a reason in SQL", r.find(`hold_reason = CASE [^\n]*THEN '([^']+)'`, "queries"), 1, "(?m)^##+ `%s`$"},
		{"a code", r.find(`(?:(?:Retry|Unknown)\{Code: |Unsent\()"([a-z_]+)"`, "engine", "internal/provider"), 15, "`%s`"},
	} {
		assert.True(t, len(rule.found) >= rule.least, "found only", rule.found)
		for _, word := range rule.found {
			assert.True(t, regexp.MustCompile(strings.Replace(rule.in, "%s", regexp.QuoteMeta(word), 1)).MatchString(runbook),
				"docs/runbook.md does not explain `", word, "`", rule.name)
		}
	}
}

// find returns what the group of a pattern matches in the service's files of some folders.
func (r repository) find(pattern string, folders ...string) (words []string) {
	add := func(file, text string) {
		if slices.ContainsFunc(folders, func(folder string) bool { return strings.HasPrefix(file, folder+"/") }) {
			for _, found := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
				words = append(words, found[1])
			}
		}
	}
	for _, f := range r.goFiles {
		if !f.test && !f.generated {
			add(f.path, f.text)
		}
	}
	for _, f := range r.sqlFiles {
		add(f.path, f.text)
	}
	return words
}

// TestAlerts: each alert has a section in the runbook and a test, which promtool runs in .ci/run. That the metrics exist is tested
// in internal/cli.
func TestAlerts(t *testing.T) {
	t.Parallel()
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert       string
				Annotations struct{ Runbook string }
			}
		}
	}
	assert.NoError(t, yaml.Unmarshal([]byte(read(t, "docs/operations/alerts.yml")), &rules))
	tests := read(t, "docs/operations/alerts_test.yml")
	var names, sections []string
	for _, rule := range rules.Groups[0].Rules {
		names = append(names, rule.Alert)
		assert.Equal(t, "docs/runbook.md#"+strings.ToLower(rule.Alert), rule.Annotations.Runbook, rule.Alert, "names")
		assert.Contains(t, tests, `{alertname="`+rule.Alert+`"}`, "alerts_test.yml does not test that", rule.Alert, "fires")
	}
	for _, heading := range regexp.MustCompile(`(?m)^### (Pawl\w+)$`).FindAllStringSubmatch(read(t, "docs/runbook.md"), -1) {
		sections = append(sections, heading[1])
	}
	assert.True(t, slices.Equal(names, sections) && len(names) != 0,
		"the alerts are", names, "the sections of the runbook", sections)
}

// TestDashboard: Grafana can read the dashboard, and no panel is empty.
func TestDashboard(t *testing.T) {
	t.Parallel()
	var dashboard struct {
		UID    string
		Panels []struct {
			ID          int
			Type, Title string
			Targets     []struct{ Expr string }
		}
	}
	assert.NoError(t, json.Unmarshal([]byte(read(t, "docs/operations/dashboard.json")), &dashboard))
	seen := map[int]bool{}
	for _, p := range dashboard.Panels {
		assert.True(t, !seen[p.ID] && (p.Type == "row" || len(p.Targets) != 0), "panel", p.ID, p.Title)
		seen[p.ID] = true
	}
	assert.True(t, dashboard.UID != "" && len(seen) >= 20, len(seen), "panels")
}
