package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"pawl/httpapi"
	"pawl/internal/version"
)

// tracing sends a span for each request to an OpenTelemetry collector. A nil tracing sends none.
type tracing struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	parent   propagation.TraceContext // W3C Trace Context
}

// tracesWanted reports whether the environment names a collector (OpenTelemetry specification: environment variables).
// The exporter and the sampler read the other variables.
func tracesWanted(getenv func(string) string) (bool, error) {
	endpoint := cmp.Or(getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), getenv("OTEL_EXPORTER_OTLP_ENDPOINT"))
	exporter := getenv("OTEL_TRACES_EXPORTER")
	if endpoint == "" || strings.EqualFold(getenv("OTEL_SDK_DISABLED"), "true") || exporter != "" && exporter != "otlp" {
		return false, nil
	}
	protocol := cmp.Or(getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), getenv("OTEL_EXPORTER_OTLP_PROTOCOL"))
	if protocol != "" && protocol != "http/protobuf" {
		return false, fmt.Errorf("traces can be sent only by http/protobuf, not %s", protocol)
	}
	return true, nil
}

// startTracing sends spans if the environment requests it. If that fails, it only logs a warning.
func startTracing(ctx context.Context, getenv func(string) string, log *slog.Logger) *tracing {
	wanted, err := tracesWanted(getenv)
	var provider *sdktrace.TracerProvider
	if wanted {
		provider, err = newTracerProvider(ctx)
	}
	if err != nil {
		log.Warn("no traces are sent", "error", err)
	}
	if provider == nil {
		return nil
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("send traces", "error", err) }))
	return &tracing{provider: provider, tracer: provider.Tracer("pawl")}
}

func newTracerProvider(ctx context.Context) (*sdktrace.TracerProvider, error) {
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("make trace exporter: %w", err)
	}
	// Later ones win: OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES over ours.
	about, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(),
		resource.WithAttributes(attribute.String("service.name", "pawl"), attribute.String("service.version", version.Number)),
		resource.WithFromEnv())
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, fmt.Errorf("describe trace source: %w", err)
	}
	return sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about)), nil
}

// wrap makes a span of each request, as a child of the caller's span, if any. The span is named by the route, because
// the path has identifiers of callers.
func (t *tracing) wrap(next http.Handler) http.Handler {
	if t == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := t.parent.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		ctx, span := t.tracer.Start(ctx, "HTTP", trace.WithSpanKind(trace.SpanKindServer))
		defer span.End()
		answered := &httpapi.Recorder{ResponseWriter: w}
		r = r.WithContext(ctx)
		next.ServeHTTP(answered, r)
		describe(span, r, answered.Status())
	})
}

// describe sets the attributes of a span, by the semantic conventions for HTTP.
func describe(span trace.Span, r *http.Request, status int) {
	if method, route, ok := strings.Cut(r.Pattern, " "); ok { // without a route, the method or path may be a secret
		span.SetName(method + " " + route)
		span.SetAttributes(attribute.String("http.request.method", r.Method), attribute.String("http.route", route))
	}
	if status != 0 { // 0: the caller has disconnected
		span.SetAttributes(attribute.Int("http.response.status_code", status))
	}
	if status >= http.StatusInternalServerError {
		span.SetStatus(codes.Error, "")
	}
}

// close sends the remaining spans, until the deadline.
func (t *tracing) close(deadline time.Time, log *slog.Logger) {
	if t == nil {
		return
	}
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		log.Warn("traces were lost", "error", err)
	}
}
