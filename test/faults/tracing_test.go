package faults

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	traces "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"pawl/test/dbtest"
)

// spanStore is a collector of traces: OTLP over HTTP, protobuf.
type spanStore struct {
	mu       sync.Mutex
	services []string
	spans    []*traces.Span
}

func (s *spanStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var request collector.ExportTraceServiceRequest
	if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(body, &request) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, resource := range request.ResourceSpans {
		for _, a := range resource.Resource.Attributes {
			if a.Key == "service.name" {
				s.services = append(s.services, a.Value.GetStringValue())
			}
		}
		for _, scope := range resource.ScopeSpans {
			s.spans = append(s.spans, scope.Spans...)
		}
	}
}

// TestTraces has the program send its spans to a collector, the last of them while it ends.
func TestTraces(t *testing.T) {
	build(t)
	t.Parallel()
	store := &spanStore{}
	server := httptest.NewServer(store)
	t.Cleanup(server.Close)
	p := launch(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + server.URL, "OTEL_SERVICE_NAME=shop"},
		"--allow-data-loss", "--database-url", dbtest.Empty(t), "--listen", "127.0.0.1", "--port", "0")
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url()+"/api/orders/process",
		strings.NewReader(`{"orderId":"secret","amount":1,"item":"widget"}`))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	answer, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if code := p.terminate(); code != 0 || answer.StatusCode != http.StatusOK {
		t.Errorf("answered %s, ended with %d", answer.Status, code)
	}
	store.mu.Lock()
	defer store.mu.Unlock()
	if len(store.spans) != 1 || len(store.services) != 1 || store.services[0] != "shop" {
		t.Fatalf("%d spans, of %q", len(store.spans), store.services)
	}
	if s := store.spans[0]; s.Name != "POST /api/orders/process" || s.Kind != traces.Span_SPAN_KIND_SERVER ||
		string(s.TraceId) != "\x0a\xf7\x65\x19\x16\xcd\x43\xdd\x84\x48\xeb\x21\x1c\x80\x31\x9c" || strings.Contains(s.String(), "secret") {
		t.Errorf("%v", s)
	}
}

// TestTracesThatNobodyTakes: a collector that is not there neither keeps the program from serving nor from ending.
func TestTracesThatNobodyTakes(t *testing.T) {
	build(t)
	t.Parallel()
	p := launch(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1"},
		"--allow-data-loss", "--database-url", dbtest.Empty(t), "--listen", "127.0.0.1", "--port", "0", "--grace", "2s")
	a := newClient(1, false).insist(t.Context(), p.url(), order{id: "o-1", amount: "1.00", item: "widget"})
	if a.state() != "completed" {
		t.Errorf("answered %s", a)
	}
	if code := p.terminate(); code != 0 {
		t.Errorf("ended with %d", code)
	}
}
