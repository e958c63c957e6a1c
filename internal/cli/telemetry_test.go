package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govalues/decimal"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"pawl/db"
	"pawl/engine"
	"pawl/httpapi"
	"pawl/internal/access"
	"pawl/internal/events"
	"pawl/internal/pg"
	"pawl/internal/policy"
	"pawl/internal/policy/store"
	"pawl/internal/signing"
	"pawl/internal/webhooks"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// illProvider is a policy of a charge at a provider that is away.
const illProvider = `
charge: {executor: http, url: "http://127.0.0.1:1/c", undoUrl: "http://127.0.0.1:1/u", breaker: {failures: 1, open: 1h}, retry: {initial: 1ms, cap: 1ms}}`

// watched is a service on a database of its own, and its metrics.
type watched struct {
	*dbtest.Database
	orders   *engine.Engine
	query    *db.Queries
	registry *prometheus.Registry
}

func watch(t *testing.T) *watched {
	t.Helper()
	w := &watched{Database: dbtest.New(t), registry: prometheus.NewRegistry()}
	pool, err := pg.Open(t.Context(), w.URL, pg.Options{MaxConns: 4, Patience: 5 * time.Second, Observe: observeStatements(w.registry)})
	assert.NoError(t, err)
	t.Cleanup(pool.Close)
	w.query = db.New(pool)
	w.orders = engine.New(pool, engine.Config{RecoveryInterval: 10 * time.Millisecond, Registerer: w.registry,
		Bounds: policy.Bounds{AllowPrivate: true}})
	registerMetrics(w.registry, w.orders, pool)
	return w
}

// start takes orders under a policy. Held ones are left at the end.
func (w *watched) start(t *testing.T, policy string) (version int32) {
	t.Helper()
	used, err := store.Use(t.Context(), w.query, []byte(policy), "test")
	assert.NoError(t, err)
	w.orders.Start()
	t.Cleanup(func() {
		if err := w.orders.Stop(t.Context()); err != nil {
			t.Log(err)
		}
	})
	return used.Version
}

// scrape is what Prometheus reads.
func (w *watched) scrape(t *testing.T) string {
	t.Helper()
	rec := httptest.NewRecorder()
	promhttp.HandlerFor(w.registry, promhttp.HandlerOpts{}).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return rec.Body.String()
}

// until scrapes until all lines are there, and returns what was read then.
func (w *watched) until(t *testing.T, lines ...string) string {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		text := w.scrape(t)
		missing := slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return strings.Contains(text, "\n"+line+"\n") })
		if len(missing) == 0 {
			return text
		}
		assert.True(t, !time.Now().After(deadline), "missing", missing, "in", text)
	}
}

func TestMetricsOfSteps(t *testing.T) {
	t.Parallel()
	w := watch(t)
	version := w.start(t, illProvider)
	assert.NoError(t, assert.Err(w.orders.Admit(t.Context(), engine.Input{OrderID: "o", Amount: decimal.MustParse("1"), Item: "i"})))
	labels := fmt.Sprintf(`{policy="%d",step="charge"} `, version)
	text := w.until(t,
		`pawl_step_calls_total{operation="do",outcome="retry",step="charge"} 1`, `pawl_step_call_duration_seconds_count{operation="do",step="charge"} 1`,
		"pawl_step_breaker_state"+labels+"2", "pawl_step_calls_in_flight"+labels+"0", "pawl_step_queue"+labels+"0",
		`pawl_orders_on_hold{hold="retry"} 1`, `pawl_orders_on_hold{hold="attention"} 0`, `pawl_oldest_hold_age_seconds{hold="attention"} 0`,
		`pawl_orders_held_total{hold="attention"} 0`, `pawl_orders_finished_total{status="failed"} 0`, "pawl_late_undos_open 0", "pawl_authorizations_ending 0", "pawl_charge_operations_open 0", "pawl_oldest_charge_operation_age_seconds 0", "pawl_leases_held 0",
		"pawl_step_answers_fenced_total 0", "pawl_orders_expired_total 0", "pawl_orders_unknown_policy_total 0",
	)
	for _, line := range []string{
		`pawl_oldest_hold_age_seconds\{hold="retry"\} [0-9.e-]*[1-9]`,
		`pawl_oldest_overdue_age_seconds [0-9.e-]+`, // it may have been due just when all orders were looked at
	} {
		assert.True(t, regexp.MustCompile("(?m)^"+line).MatchString(text), "no", line, "in", text)
	}
}

// deliver inserts a message for a webhook endpoint that does not answer.
func (w *watched) deliver(t *testing.T) {
	t.Helper()
	_, err := w.Pool.Exec(t.Context(), `WITH e AS (
		INSERT INTO webhook_endpoints (url, secret, event_no, created_by) VALUES ('http://127.0.0.1:1', $1, 0, 'test') RETURNING endpoint_no)
		INSERT INTO webhook_deliveries (endpoint_no, delivery_no, type, event_id, subject, body, due_at)
			SELECT endpoint_no, 1, 'x', 'x', 'x', '{}', now() FROM e`, signing.NewSecret())
	assert.NoError(t, err)
	d := webhooks.NewDeliverer(w.query, events.NewReader(w.query, w.orders.Orders), webhooks.Config{AllowPrivate: true, Registerer: w.registry})
	d.Start()
	t.Cleanup(func() { d.Stop(context.WithoutCancel(t.Context())) })
	w.until(t, `pawl_webhook_attempts_total{endpoint="whe_1",outcome="failed"} 1`)
}

// TestMetricsThatTheDocsName looks for every metric, and every label, that the documentation, the alerts and the
// dashboard name, in what a service answers that has seen a bit of everything. The names are those that Prometheus
// recommends, and each is in the documentation.
func TestMetricsThatTheDocsName(t *testing.T) {
	t.Parallel()
	w := watch(t)
	control, err := access.New(t.Context(), w.query, access.Config{Registerer: w.registry})
	assert.NoError(t, err)
	t.Cleanup(control.Stop)
	events.NewRelay(w.query, events.RelayConfig{Registerer: w.registry})
	events.NewTail(nil, events.TailConfig{Registerer: w.registry})
	w.deliver(t)
	api := httpapi.New(w.orders, httpapi.Config{Registerer: w.registry, Access: control})
	post := func(path, body string) {
		request := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
		request.RemoteAddr, request.Host = "127.0.0.1:40000", "localhost" // of this machine
		request.Header.Set("Content-Type", "application/json")
		api.ServeHTTP(httptest.NewRecorder(), request)
	}
	w.start(t, illProvider+"\nconcurrency: {by: item, limit: 1}")
	post("/api/orders/process", `{"orderId":"held","amount":1,"item":"i"}`)
	w.until(t, `pawl_orders_on_hold{hold="retry"} 1`)
	post("/api/orders/held/cancel", "{}")
	w.until(t, `pawl_orders_finished_total{status="canceled"} 1`)
	problems, err := promlint.New(strings.NewReader(w.scrape(t))).Lint()
	assert.True(t, err == nil && len(problems) == 0, problems, err)
	labels := w.labels(t)
	operations := documents(t, "../../docs/operations.md")
	for name := range labels {
		assert.True(t, !strings.HasPrefix(name, "pawl_") || strings.Contains(operations, "`"+name+"`"),
			"docs/operations.md does not name", name)
	}
	for _, found := range metricNamed.FindAllStringSubmatch(documents(t, "../../README.md", "../../docs/*.md", "../../docs/operations/*"), -1) {
		name := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(found[1], "")
		if labels[name] == nil {
			name = found[1]
		}
		assert.True(t, labels[name] != nil, "there is no metric", found[1])
		for _, label := range labelNamed.FindAllStringSubmatch(found[2], -1) {
			assert.True(t, slices.Contains(append(labels[name], "job", "instance", "le"), label[1]), name, "has no label", label[1])
		}
	}
}

var (
	metricNamed = regexp.MustCompile(`\b((?:pawl|http_server|process)_[a-z0-9_]+_[a-z0-9_]*[a-z0-9])(?:\{([^}]*)\})?`)
	labelNamed  = regexp.MustCompile(`(\w+)(?:=~|!~|!=|=)\\?"`)
)

// documents is the text of all files of the patterns.
func documents(t *testing.T, patterns ...string) string {
	t.Helper()
	var all strings.Builder
	for _, pattern := range patterns {
		files, err := filepath.Glob(pattern)
		assert.Require(t, err == nil && len(files) != 0, pattern, err)
		for _, file := range files {
			if info, err := os.Stat(file); err == nil && info.IsDir() {
				continue
			}
			text, err := os.ReadFile(file)
			assert.NoError(t, err)
			all.Write(text)
		}
	}
	return all.String()
}

// labels are the names of the labels that each metric has, by its name.
func (w *watched) labels(t *testing.T) map[string][]string {
	t.Helper()
	families, err := w.registry.Gather()
	assert.NoError(t, err)
	named := map[string][]string{}
	for _, family := range families {
		names := []string{}
		for _, pair := range family.Metric[0].Label {
			names = append(names, pair.GetName())
		}
		named[family.GetName()] = names
	}
	return named
}

// TestScrapesAreShared: all requests within a second get what was encoded for the first of their format, whatever else they say.
func TestScrapesAreShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		var looks atomic.Int64
		registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "looks"}, func() float64 { return float64(looks.Add(1)) }))
		shared := newScrapes(registry)
		ask := func(header, value string) *httptest.ResponseRecorder {
			r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
			r.Header.Set(header, value)
			w := httptest.NewRecorder()
			shared.ServeHTTP(w, r)
			return w
		}
		for n := range 50 {
			plain := ask("Accept", fmt.Sprintf("text/plain;version=0.0.4;q=0.%d", n+1))
			assert.Require(t, strings.Contains(plain.Body.String(), "\nlooks 1\n") && strings.HasPrefix(plain.Header().Get("Content-Type"), "text/plain"),
				plain.Header(), plain.Body)
			zipped := ask("Accept-Encoding", fmt.Sprintf("gzip, x-%d", n))
			assert.Require(t, zipped.Header().Get("Content-Encoding") == "gzip", zipped.Header())
		}
		assert.Equal(t, looks.Load(), 2, "looks for two encodings")
		<-time.After(scrapeEvery)
		assert.Contains(t, ask("Accept", "*/*").Body.String(), "\nlooks 3\n")
	})
}

// TestPrometheusScrapesAsDocumented runs Prometheus with the configuration of docs/operations.md and a token as it says
// there, on a service that wants one.
func TestPrometheusScrapesAsDocumented(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("NOT TESTED: prometheus is not installed; .ci/run installs it")
	}
	w := watch(t)
	w.start(t, illProvider)
	token, err := execute(t, "token", "create", "prometheus", "--roles", "metrics", "--database-url", w.AdminURL)
	assert.NoError(t, err, token)
	control, err := access.New(t.Context(), w.query, access.Config{})
	assert.NoError(t, err)
	t.Cleanup(control.Stop)
	service := httptest.NewServer(httpapi.New(w.orders, httpapi.Config{Access: control,
		Metrics: promhttp.HandlerFor(w.registry, promhttp.HandlerOpts{})}))
	t.Cleanup(service.Close)
	folder, address := t.TempDir(), "127.0.0.1:"+dbtest.FreePort(t)
	write := func(name, text string) {
		assert.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600))
	}
	documented := regexp.MustCompile("(?s)```yaml\n(rule_files: .*?)```").FindStringSubmatch(page(t, "docs/operations.md"))
	assert.Require(t, documented != nil, "docs/operations.md shows no configuration of Prometheus")
	write("prometheus.yml", "global: {scrape_interval: 1s}\n"+strings.ReplaceAll(documented[1], "127.0.0.1:3000",
		strings.TrimPrefix(service.URL, "http://")))
	write("pawl.token", token)
	write("alerts.yml", page(t, "docs/operations/alerts.yml"))
	log := run(t, program, "--config.file="+filepath.Join(folder, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(folder, "data"), "--web.listen-address="+address)
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	for end := time.Now().Add(time.Minute); ; <-look.C {
		up, found := queryPrometheus(t, address, `up{job="pawl"}`)
		if _, scraped := queryPrometheus(t, address, "pawl_orders_admitted_total"); found && up == "1" && scraped {
			return
		}
		assert.Require(t, !time.Now().After(end), "up is", up, log())
	}
}

// run starts a program that ends with the test, and returns what it has said so far.
func run(t *testing.T, program string, args ...string) (said func() string) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "log")
	log, err := os.Create(name)
	assert.NoError(t, err)
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	assert.NoError(t, cmd.Start())
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
	assert.NoError(t, err)
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

func TestTracesAreWanted(t *testing.T) {
	t.Parallel()
	for settings, want := range map[string]string{
		"": "off",
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318":                              "on",
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://localhost:4318/v1/traces":             "on",
		"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=http://localhost:4318/v1/metrics":           "off",
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://a OTEL_SDK_DISABLED=true":                    "off",
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://a OTEL_TRACES_EXPORTER=none":                 "off",
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://a OTEL_TRACES_EXPORTER=otlp":                 "on",
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://a OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf": "on",
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://a OTEL_EXPORTER_OTLP_PROTOCOL=grpc":          "error",
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://a OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf " +
			"OTEL_EXPORTER_OTLP_PROTOCOL=grpc": "on",
	} {
		environ := map[string]string{}
		for _, entry := range strings.Fields(settings) {
			name, value, _ := strings.Cut(entry, "=")
			environ[name] = value
		}
		on, err := tracesWanted(func(name string) string { return environ[name] })
		got := map[bool]string{true: "on", false: "off"}[on]
		assert.True(t, (err == nil || want == "error") && (err != nil || got == want), settings, got, err, "want", want)
	}
}

func TestNoTracesCostNothing(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	off := startTracing(t.Context(), func(string) string { return "" }, slog.New(slog.NewTextHandler(&log, nil)))
	handler := http.NewServeMux()
	assert.True(t, off.wrap(handler) == http.Handler(handler) && log.Len() == 0, "requests take another way; log", log.String())
	protocol := func(name string) string {
		return map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}[name]
	}
	assert.True(t, startTracing(t.Context(), protocol, slog.New(slog.NewTextHandler(&log, nil))) == nil && strings.Contains(log.String(), "level=WARN"),
		"a protocol that is not spoken; log", log.String())
}

// traced records the spans of requests to a mux.
func traced(t *testing.T, requests ...*http.Request) tracetest.SpanStubs {
	t.Helper()
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	mux := http.NewServeMux()
	mux.HandleFunc("GET /orders/{id}", func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("id") == "broken" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = w.Write([]byte("x"))
	})
	handler := (&tracing{provider: provider, tracer: provider.Tracer("test")}).wrap(mux)
	for _, r := range requests {
		handler.ServeHTTP(httptest.NewRecorder(), r)
	}
	return spans.GetSpans()
}

func TestSpansOfRequests(t *testing.T) {
	t.Parallel()
	get := func(target string, header ...string) *http.Request {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, nil)
		if len(header) > 0 {
			r.Header.Set(header[0], header[1])
		}
		return r
	}
	odd := get("/orders/secret")
	odd.Method = "SECRET"
	spans := traced(t, get("/orders/secret", "Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
		get("/orders/broken"), get("/secret", "Traceparent", "nonsense"), odd)
	for i, want := range []struct {
		name, route string
		status      int64
		code        codes.Code
	}{
		{"GET /orders/{id}", "/orders/{id}", 200, codes.Unset}, {"GET /orders/{id}", "/orders/{id}", 503, codes.Error},
		{"HTTP", "", 404, codes.Unset}, {"HTTP", "", 405, codes.Unset},
	} {
		span := spans[i]
		var route string
		var status int64
		for _, a := range span.Attributes {
			switch a.Key {
			case "http.route":
				route = a.Value.AsString()
			case "http.response.status_code":
				status = a.Value.AsInt64()
			}
			assert.True(t, !strings.Contains(strings.ToLower(a.Value.String()), "secret"), a.Key, a.Value.String())
		}
		assert.True(t, span.Name == want.name && route == want.route && status == want.status && span.Status.Code == want.code &&
			span.SpanKind == trace.SpanKindServer, span.Name, "route", route, "status", status, span.Status.Code, "want", want)
	}
	p := spans[0].Parent
	assert.True(t, p.TraceID().String() == "0af7651916cd43dd8448eb211c80319c" && p.SpanID().String() == "b7ad6b7169203331" && p.IsRemote(), p)
	assert.True(t, !spans[2].Parent.IsValid(), "nonsense is no parent")
}
