package browser

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
)

// shop is the provider of charges, and the receiver of webhooks. The item decides the answer.
type shop struct {
	server *httptest.Server
}

func startShop() error {
	s := &shop{}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /charge", s.charge)
	mux.HandleFunc("POST /undo", func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, "{}") })
	mux.HandleFunc("POST /refund", func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, `{"reference":"re_1"}`) })
	mux.HandleFunc("POST /hook", func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, "{}") })
	mux.HandleFunc("POST /broken", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, 500, `{"error":"the database is away"}`)
	})
	s.server = httptest.NewServer(mux)
	shared.shop, shared.stops = s, append(shared.stops, s.server.Close)
	return nil
}

func (s *shop) address() string { return s.server.Listener.Addr().(*net.TCPAddr).String() }

// policy has the shop charge. Yachts wait for a person.
func (s *shop) policy() string {
	return fmt.Sprintf(`
charge: {executor: http, url: "http://%[1]s/charge", undoUrl: "http://%[1]s/undo", refundUrl: "http://%[1]s/refund"}
approval:
  - {items: [yacht]}
`, s.address())
}

func (s *shop) charge(w http.ResponseWriter, r *http.Request) {
	var order struct{ OrderID, Item string }
	if err := json.NewDecoder(r.Body).Decode(&order); err != nil {
		answer(w, 400, `{"outcome":"not_done"}`)
		return
	}
	item, _, _ := strings.Cut(order.Item, ":")
	switch item {
	case "declined":
		answer(w, 402, `{"outcome":"refused","code":"card_declined","detail":"the bank says no"}`)
	case "stuck": // the policy allows no such pause, so the order needs a person
		w.Header().Set("Retry-After", "999999")
		answer(w, 503, `{"code":"maintenance","detail":"back on Monday"}`)
	case "later":
		answer(w, 202, `{"reference":"ch_later"}`)
	case "hostile":
		answer(w, 200, fmt.Sprintf(`{"reference":%[1]s,"data":{%[1]s:%[2]s}}`, quoted(order.Item), quoted(order.Item+unseen)))
	case "hostile-refusal":
		answer(w, 402, fmt.Sprintf(`{"outcome":"refused","code":%[1]s,"detail":%[2]s}`, quoted(order.Item), quoted(order.Item+unseen)))
	default:
		answer(w, 200, fmt.Sprintf(`{"reference":%s,"data":{"receipt":"R-77"}}`, quoted("ch_"+order.OrderID)))
	}
}

func answer(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	fmt.Fprint(w, body)
}

func quoted(text string) string {
	quoted, err := json.Marshal(text)
	if err != nil {
		panic(err)
	}
	return string(quoted)
}
