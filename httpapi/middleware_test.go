package httpapi

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"pawl/engine"
	"pawl/test/assert"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

func TestRequestID(t *testing.T) {
	t.Parallel()
	b := withoutEngine()
	for given, kept := range map[string]bool{
		"abc-123": true, "a.b/c=": true, "": false, "with space": false, "line\u0085": false, "\x7f": false, strings.Repeat("x", 129): false,
	} {
		a := b.call(t, "GET /livez", "", "X-Request-Id", given)
		if got := a.header.Get("X-Request-Id"); (got == given) != kept || got == "" {
			t.Errorf("%q is answered with %q", given, got)
		}
	}
	first, second := b.call(t, "GET /livez", ""), b.call(t, "GET /livez", "")
	if first.header.Get("X-Request-Id") == second.header.Get("X-Request-Id") {
		t.Error("two requests have one id")
	}
}

// testServer is a server whose routes a test can add to, and its log.
func testServer(t *testing.T, cfg Config) (*server, *bytes.Buffer) {
	t.Helper()
	var logged bytes.Buffer
	cfg.Log = slog.New(slog.NewTextHandler(&logged, nil))
	s, ok := New(nil, cfg).(*server)
	if !ok {
		t.Fatal("not a server")
	}
	return s, &logged
}

func TestFaultsOfTheServiceShowNoDetails(t *testing.T) {
	t.Parallel()
	const secret = "s3cret"
	t.Run("an unknown error", func(t *testing.T) {
		t.Parallel()
		s, logged := testServer(t, Config{})
		s.handle("POST /test", s.answered(func(http.ResponseWriter, *http.Request) error {
			return errors.New(secret)
		}))
		a := (&bundle{api: s}).call(t, "POST /test", "", "X-Request-Id", "id-1")
		a.wantProblem(t, 500, "internal")
		if strings.Contains(a.body, secret) || !strings.Contains(logged.String(), secret) || !strings.Contains(logged.String(), "request_id=id-1") {
			t.Errorf("%s\n%s", a.body, logged)
		}
	})
	t.Run("a panic", func(t *testing.T) {
		t.Parallel()
		s, logged := testServer(t, Config{})
		s.handle("POST /test", func(http.ResponseWriter, *http.Request) { panic(secret) })
		a := (&bundle{api: s}).call(t, "POST /test", "", "X-Request-Id", "id-2")
		a.wantProblem(t, 500, "internal")
		for _, want := range []string{secret, "request_id=id-2", "middleware_test.go"} {
			if strings.Contains(a.body, secret) || !strings.Contains(logged.String(), want) {
				t.Errorf("%s\n%s", a.body, logged)
			}
		}
	})
	t.Run("a panic of an operation of huma's", func(t *testing.T) {
		t.Parallel()
		s, logged := testServer(t, Config{}) // without an engine
		(&bundle{api: s}).get(t, "/api/orders/o").wantProblem(t, 500, "internal")
		if !strings.Contains(logged.String(), "request_id=") {
			t.Error(logged)
		}
	})
	t.Run("a panic behind half an answer cuts the connection", func(t *testing.T) {
		t.Parallel()
		s, _ := testServer(t, Config{})
		s.handle("POST /test", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusOK)
			panic(secret)
		})
		defer func() {
			cause, _ := recover().(error)
			assert.ErrorIs(t, cause, http.ErrAbortHandler, "recovered")
		}()
		s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/test", nil))
	})
}

// Each request is a line of the log at debug, and none at info.
func TestRequestsAreLogged(t *testing.T) {
	t.Parallel()
	for level, lines := range map[slog.Level]int{slog.LevelInfo: 0, slog.LevelDebug: 4} {
		var logged bytes.Buffer
		b := setupWith(t, engine.Config{}, Config{ResponseTimeout: patience,
			Log: slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: level}))})
		b.call(t, "POST /api/orders/process", `{"orderId":"o1","amount":1,"item":"i"}`, "X-Request-Id", "first")
		b.call(t, "POST /api/orders/process", `{"orderId":"o1","amount":2,"item":"i"}`, "X-Request-Id", "second")
		b.call(t, "GET /api/orders/o1/transitions", "", "X-Request-Id", "third")
		b.call(t, "GET /api/orders/o2", "", "X-Request-Id", "fourth")
		assert.Equal(t, strings.Count(logged.String(), "msg=request"), lines, "lines at", level, &logged)
		for _, want := range []string{
			`request_id=first method=POST route="POST /api/orders/process" status=200 order_id=o1 outcome=completed duration_seconds=`,
			`request_id=second method=POST route="POST /api/orders/process" status=409 order_id=o1 outcome=order_conflict duration_seconds=`,
			`request_id=third method=GET route="GET /api/orders/{orderId}/transitions" status=200 order_id=o1 outcome="" duration_seconds=`,
			`request_id=fourth method=GET route="GET /api/orders/{orderId}" status=404 order_id=o2 outcome=not_found duration_seconds=`,
		} {
			assert.Equal(t, strings.Contains(logged.String(), want), (lines > 0), "at", level, want, &logged)
		}
	}
}

func TestACallerWhoHungUp(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	s, logged := testServer(t, Config{Registerer: registry})
	s.handle("POST /test", s.answered(func(_ http.ResponseWriter, r *http.Request) error {
		return r.Context().Err()
	}))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodPost, "/test", nil))
	if w.Body.Len() > 0 || logged.Len() > 0 {
		t.Errorf("answered %q, logged %q", w.Body, logged)
	}
	assert.Equal(t, codesOf(t, registry, "POST /test"), "499", "counted as")
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	b := &bundle{api: New(nil, Config{Registerer: registry, Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte("metrics")) //nolint:errcheck // a recorder
	})})}
	b.process(t, "{}")
	b.process(t, "{")
	b.get(t, "/api/orders/o1/nothing")
	assert.Equal(t, codesOf(t, registry, "POST /api/orders/process"), "400 422")
	assert.Equal(t, codesOf(t, registry, "/"), "404")
	if a := b.get(t, "/metrics"); a.body != "metrics" {
		t.Error(a.body)
	}
}

// codesOf lists the codes that requests of a route were counted under.
func codesOf(t *testing.T, registry *prometheus.Registry, route string) string {
	t.Helper()
	families, err := registry.Gather()
	assert.NoError(t, err)
	var codes []string
	for _, family := range families {
		for _, metric := range family.Metric {
			labels := labelsOf(metric)
			if strings.Contains(labels["route"], "o1") {
				t.Errorf("a label holds an order id: %v", labels)
			}
			if family.GetName() == "http_server_request_duration_seconds" && labels["route"] == route {
				codes = append(codes, labels["code"])
			}
			if family.GetName() == "http_server_requests_in_flight" && metric.GetGauge().GetValue() != 0 {
				t.Errorf("%v: in flight for ever", labels)
			}
		}
	}
	return strings.Join(codes, " ")
}

func labelsOf(metric *dto.Metric) map[string]string {
	labels := map[string]string{}
	for _, pair := range metric.Label {
		labels[pair.GetName()] = pair.GetValue()
	}
	return labels
}
