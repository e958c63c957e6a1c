package cli

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"pawl/httpapi"
	"pawl/internal/access"
)

// TestPrometheusScrapesAsDocumented runs Prometheus with the configuration of docs/operations.md and a token as it says there, on a
// service that wants one.
func TestPrometheusScrapesAsDocumented(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("NOT TESTED: prometheus is not installed; .ci/run installs it")
	}
	w := watch(t)
	w.start(t, illProvider)
	token, err := execute(t, "token", "create", "prometheus", "--roles", "metrics", "--database-url", w.AdminURL)
	if err != nil {
		t.Fatal(err, token)
	}
	control, err := access.New(t.Context(), w.query, access.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(control.Stop)
	service := httptest.NewServer(httpapi.New(w.orders, httpapi.Config{Access: control, Metrics: promhttp.HandlerFor(w.registry, promhttp.HandlerOpts{})}))
	t.Cleanup(service.Close)
	folder, address := t.TempDir(), freeAddress(t)
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	documented := regexp.MustCompile("(?s)```yaml\n(rule_files: .*?)```").FindStringSubmatch(document(t, "operations.md"))
	if documented == nil {
		t.Fatal("docs/operations.md shows no configuration of Prometheus")
	}
	write("prometheus.yml", "global: {scrape_interval: 1s}\n"+strings.ReplaceAll(documented[1], "127.0.0.1:3000", strings.TrimPrefix(service.URL, "http://")))
	write("pawl.token", token)
	write("alerts.yml", document(t, "operations/alerts.yml"))
	log := run(t, program, "--config.file="+filepath.Join(folder, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(folder, "data"), "--web.listen-address="+address)
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	for end := time.Now().Add(time.Minute); ; <-look.C {
		up, found := queryPrometheus(t, address, `up{job="pawl"}`)
		if _, scraped := queryPrometheus(t, address, "pawl_orders_admitted_total"); found && up == "1" && scraped {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("up is %q\n%s", up, log())
		}
	}
}

func document(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// run starts a program that ends with the test, and returns what it has said so far.
func run(t *testing.T, program string, args ...string) (said func() string) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "log")
	log, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		log.Close()
	})
	return func() string {
		text, _ := os.ReadFile(name)
		return string(text)
	}
}

// queryPrometheus is the value of the first series that a query finds.
func queryPrometheus(t *testing.T, address, query string) (value string, found bool) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/api/v1/query?query="+url.QueryEscape(query), nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", false // it has not started yet
	}
	defer response.Body.Close()
	var answer struct {
		Data struct {
			Result []struct{ Value [2]any }
		}
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil || len(answer.Data.Result) == 0 {
		return "", false
	}
	value, _ = answer.Data.Result[0].Value[1].(string)
	return value, true
}
