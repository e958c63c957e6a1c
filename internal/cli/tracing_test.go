package cli

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

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
		if got := map[bool]string{true: "on", false: "off"}[on]; err != nil && want != "error" || err == nil && got != want {
			t.Errorf("%s: %s, %v; want %s", settings, got, err, want)
		}
	}
}

func TestNoTracesCostNothing(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	off := startTracing(t.Context(), func(string) string { return "" }, slog.New(slog.NewTextHandler(&log, nil)))
	handler := http.NewServeMux()
	if off.wrap(handler) != http.Handler(handler) || log.Len() > 0 {
		t.Errorf("requests take another way; log: %s", log.String())
	}
	protocol := func(name string) string {
		return map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}[name]
	}
	if startTracing(t.Context(), protocol, slog.New(slog.NewTextHandler(&log, nil))) != nil || !strings.Contains(log.String(), "level=WARN") {
		t.Errorf("a protocol that is not spoken; log: %s", log.String())
	}
}

// traced records the spans of requests to a mux.
func traced(t *testing.T, sampler sdktrace.Sampler, requests ...*http.Request) tracetest.SpanStubs {
	t.Helper()
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans), sdktrace.WithSampler(sampler))
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
	spans := traced(t, sdktrace.AlwaysSample(), get("/orders/secret", "Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
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
			if strings.Contains(strings.ToLower(a.Value.String()), "secret") {
				t.Errorf("%s: %s", a.Key, a.Value.String())
			}
		}
		if span.Name != want.name || route != want.route || status != want.status || span.Status.Code != want.code ||
			span.SpanKind != trace.SpanKindServer {
			t.Errorf("%q, route %q, status %d, %v, want %+v", span.Name, route, status, span.Status.Code, want)
		}
	}
	if p := spans[0].Parent; p.TraceID().String() != "0af7651916cd43dd8448eb211c80319c" || p.SpanID().String() != "b7ad6b7169203331" || !p.IsRemote() {
		t.Errorf("the parent is %v", p)
	}
	if spans[2].Parent.IsValid() {
		t.Error("nonsense is no parent")
	}
}

func TestSamplerDecides(t *testing.T) {
	t.Parallel()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/orders/1", nil)
	if spans := traced(t, sdktrace.NeverSample(), r); len(spans) > 0 {
		t.Errorf("%d spans", len(spans))
	}
}
