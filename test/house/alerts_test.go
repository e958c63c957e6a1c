package house

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

// TestAlerts holds each alert to its section in the runbook and to its test. promtool runs the tests, in .ci/run; that the metrics
// exist is tested in cli.
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
	if err := yaml.Unmarshal([]byte(read(t, "docs/operations/alerts.yml")), &rules); err != nil {
		t.Fatal(err)
	}
	runbook, tests := read(t, "docs/runbook.md"), read(t, "docs/operations/alerts_test.yml")
	var names []string
	for _, rule := range rules.Groups[0].Rules {
		names = append(names, rule.Alert)
		if section := "docs/runbook.md#" + strings.ToLower(rule.Alert); rule.Annotations.Runbook != section {
			t.Errorf("%s names %q, want %s", rule.Alert, rule.Annotations.Runbook, section)
		}
		if !strings.Contains(tests, `{alertname="`+rule.Alert+`"}`) {
			t.Errorf("alerts_test.yml does not test that %s fires", rule.Alert)
		}
	}
	var sections []string
	for _, heading := range regexp.MustCompile(`(?m)^### (Pawl\w+)$`).FindAllStringSubmatch(runbook, -1) {
		sections = append(sections, heading[1])
	}
	if !slices.Equal(names, sections) || len(names) == 0 {
		t.Errorf("the alerts are %q, the sections of the runbook %q", names, sections)
	}
}

// The dashboard is JSON that Grafana takes, and no panel is empty.
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
	if err := json.Unmarshal([]byte(read(t, "docs/operations/dashboard.json")), &dashboard); err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for _, p := range dashboard.Panels {
		if seen[p.ID] || p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %d, %s", p.ID, p.Title)
		}
		seen[p.ID] = true
	}
	if dashboard.UID == "" || len(seen) < 20 {
		t.Errorf("%d panels", len(seen))
	}
}
