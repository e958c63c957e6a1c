package cli

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pawl/db"
	"pawl/internal/access"
	"pawl/test/dbtest"
)

// TestAnOpenServiceSaysSo: in the log, with the command that closes it, and as a metric. Where a token is required it does not start.
func TestAnOpenServiceSaysSo(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	start := func(auth string) (log string, open float64, err error) {
		t.Helper()
		control, err := access.New(t.Context(), db.New(database.Pool), access.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer control.Stop()
		var said bytes.Buffer
		registry := prometheus.NewRegistry()
		err = checkOpen(t.Context(), &config{Auth: auth}, control, telemetry{registry, slog.New(slog.NewTextHandler(&said, nil))})
		families, gatherErr := registry.Gather()
		if gatherErr != nil || len(families) != 1 {
			t.Fatalf("%v %v", families, gatherErr)
		}
		return said.String(), families[0].GetMetric()[0].GetGauge().GetValue(), err
	}
	if log, open, err := start(authOnceThereIsAToken); err != nil || open != 1 || !strings.Contains(log, "pawl token create") || !strings.Contains(log, "WARN") {
		t.Errorf("open: %v, %v: %s", err, open, log)
	}
	if _, _, err := start(authRequired); exitCode(err) != exitConfig || !strings.Contains(err.Error(), "pawl token create") {
		t.Errorf("where a token is required: %v", err)
	}
	if _, err := access.Create(t.Context(), db.New(database.Pool), access.Template{Name: "shop", Lifetime: time.Hour, Actor: "test"}); err != nil {
		t.Fatal(err)
	}
	for _, auth := range []string{authOnceThereIsAToken, authRequired} {
		if log, open, err := start(auth); err != nil || open != 0 || log != "" {
			t.Errorf("closed, with auth %s: %v, %v: %s", auth, err, open, log)
		}
	}
}
