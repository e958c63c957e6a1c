package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"pawl/internal/doctor"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

func TestDoctor(t *testing.T) {
	t.Parallel()
	at := " --database-url " + dbtest.New(t).URL
	for _, c := range []struct {
		line   string
		code   int
		prints string
	}{
		{"doctor --allow-data-loss" + at, 0, `(?m)^ok +schema +all statements can run on it$`},
		{"doctor" + at, exitFailure, `(?m)^WRONG +durability +the database has fsync off and may lose .*\n +-> turn it on, or set --allow-data-loss$`},
		{"doctor --lease 0s --allow-data-loss" + at, exitFailure, `(?m)^WRONG +settings +lease must be at least 1s`},
		{"doctor --policy /nonexistent.yaml --allow-data-loss" + at, exitFailure, `(?m)^WRONG +settings +.*/nonexistent.yaml`},
		{"doctor --max-connections 1000000000" + at, exitFailure, `(?m)^warn +files `},
		{"doctor --database-url postgres://127.0.0.1:1/pawl", exitFailure, `(?m)^WRONG +database .*\n +-> start PostgreSQL there`},
		{"doctor --data-dir " + dataFolder(t), 0, `(?m)^(ok|warn) +postgres (.*\n)+(ok|warn) +disk (.*\n)+warn +database +there is none yet`},
		{"doctor --pg-bin /nonexistent --data-dir " + dataFolder(t), exitFailure, `(?m)^WRONG +postgres .*/nonexistent`},
		{"doctor -o yaml", exitUsage, `^$`},
	} {
		checkLine(t, c.line, c.code, c.prints)
	}
	var report doctor.Report
	if err := json.Unmarshal([]byte(printed(t, strings.Fields("doctor -o json --allow-data-loss"+at)...)),
		&report); err != nil || len(report.Findings) < 9 {
		t.Errorf("%+v: %v", report, err)
	}
}

func TestUnknownVariables(t *testing.T) {
	t.Parallel()
	got := unknownVariables([]string{
		"PAWL_LEASE=9s", "PAWL_MAX_CONN=3", "PAWL_SECRET_STRIPE=x", "PAWL_PORT_3000_TCP=tcp://10.0.0.1", "PAWL_SERVICE_HOST=10.0.0.1", "PAWL_TOKEN=t", "HOME=/",
	}, "PAWL_SECRET_")
	assert.Equal(t, strings.Join(got, " "), "PAWL_MAX_CONN", got)
}
