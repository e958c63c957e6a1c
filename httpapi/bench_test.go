package httpapi

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/govalues/decimal"

	"pawl/fsm"
	"pawl/internal/orders"
)

const benchBody = `{"orderId": "0f8fad5bd9cb469fa16570867728950e", "amount": 12345678901.23, "item": "widget-4711", "quantity": 2, "currency": "EUR"}`

func finishedOrder() orders.Order {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC)
	return orders.Order{
		OrderNo: 1, CreatedAt: at, FinishedAt: &at, Fence: 1, Quantity: 2, Seq: 4, Status: fsm.Completed,
		OrderID: "0f8fad5bd9cb469fa16570867728950e", Currency: "EUR", Item: "widget-4711", Amount: decimal.MustParse("12345678901.23"),
		ChargedAt:  &at,
		ReservedAt: &at,
	}
}

// The hot route without the engine: middleware, routing, metrics, reading,
// checking and writing one order.
func BenchmarkProcessWithoutEngine(b *testing.B) {
	s, ok := New(nil, Config{}).(*server)
	if !ok {
		b.Fatal("not a server")
	}
	o := finishedOrder()
	rules["POST /api/orders/bench"] = rules["processOrder"]
	s.handle("POST /api/orders/bench", s.answered(s.sameOrigin(func(w http.ResponseWriter, r *http.Request) error {
		if _, _, err := s.readInput(w, r); err != nil {
			return err
		}
		s.writeOrder(w, &o, preferenceOf(r.Header["Prefer"], s.ResponseTimeout), nil)
		return nil
	})))
	reader := bytes.NewReader([]byte(benchBody))
	r := httptest.NewRequest(http.MethodPost, "/api/orders/bench", reader)
	r.Header.Set("Content-Type", "application/json")
	b.ReportAllocs()
	for b.Loop() {
		reader.Reset([]byte(benchBody))
		r.Body = io.NopCloser(reader)
		w := discard{http.Header{}}
		s.ServeHTTP(w, r)
	}
}

// An order from its request to its answer, with 64 callers, without a connection.
func BenchmarkProcess(b *testing.B) {
	s := setup(b)
	var orders atomic.Int64
	b.ReportAllocs()
	b.SetParallelism(64 / runtime.GOMAXPROCS(0))
	b.RunParallel(func(work *testing.PB) {
		for work.Next() {
			body := fmt.Sprintf(`{"orderId": "%032x", "amount": 99.99, "item": "widget-4711"}`, orders.Add(1))
			r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, "/api/orders/process", strings.NewReader(body))
			r.RemoteAddr, r.Host = fromHere, "localhost"
			r.Header.Set("Content-Type", "application/json")
			s.api.ServeHTTP(discard{http.Header{}}, r)
		}
	})
}

type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(b []byte) (int, error) { return len(b), nil }
func (d discard) WriteHeader(status int) {
	if status != http.StatusOK {
		panic(status)
	}
}

func BenchmarkDecodeInput(b *testing.B) {
	data := []byte(benchBody)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := decodeInput(data, dollars, time.Now); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppendOrder(b *testing.B) {
	o := finishedOrder()
	var out []byte
	b.ReportAllocs()
	for b.Loop() {
		wire := orderOf(&o)
		out = wire.append(out[:0])
	}
}
