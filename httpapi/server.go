// Package httpapi is the JSON over HTTP edge of the service: it reads requests,
// makes one call to the engine for each, and writes the answers. It decides
// nothing about orders.
//
// Requests are read strictly (RFC 8259 within the limits of I-JSON, RFC 7493):
// what is accepted has one reading. Faults of the caller are
// answered with problem documents (RFC 9457) that name the field and never repeat
// a text; the one exception is a conflict, which shows what is stored beside
// what was sent. Everything that is not the caller's fault is one of a few
// answers with Retry-After, or a mute 500. Fields that are not known are named in
// the answer, or refused if the caller prefers; query parameters are refused always.
//
// The OpenAPI 3.1 document is made from the types of this package; go generate
// writes it to openapi.yaml. The same types say how bodies are read, but for that
// of the process route: it is the hot one, and read by hand. No path of the API
// redirects, and no path segment in the place of an id has a meaning of its own, so any id
// can be asked for; the names that no path can carry are refused.
package httpapi

import (
	"cmp"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"

	"pawl/engine"
	"pawl/internal/access"
	"pawl/internal/books"
	"pawl/internal/events"
	"pawl/internal/iso4217"
	"pawl/internal/orders"
	"pawl/internal/webhooks"
)

// Config is what the edge can be told.
type Config struct {
	// Currency of orders that name none: one that iso4217 knows.
	// Empty means USD.
	Currency string
	// ResponseTimeout is how long a caller who says nothing of it waits for the end of an
	// order, up to a minute. Zero means not at all: 202 as soon as it is stored.
	ResponseTimeout time.Duration
	// Metrics answers GET /metrics. Nil means there is no such path.
	Metrics http.Handler
	// AllowedHosts are the names of the service beside localhost, as requests have them in Host.
	AllowedHosts []string
	// Proxies are the networks of the reverse proxies that are believed where a request comes from.
	Proxies []netip.Prefix
	// Registerer takes the metrics of requests. Nil means that there are none.
	Registerer prometheus.Registerer
	// Events is the feed, and its tail for callers that wait for more. Nil means that events are unavailable.
	Events *events.Tail
	// Access identifies callers. Nil means that the service is open: entirely to this machine, and to others for the
	// operations of the contract.
	Access *access.Control
	// Webhooks are the endpoints that events are sent to. Nil is only for handlers that never use them.
	Webhooks *webhooks.Endpoints
	// Books proves the books. Nil is only for handlers that never use it.
	Books *books.Verification
	// Console makes the handler of /console of that of the API, which it asks for all it shows and does. Where there is
	// an address for operations it is there only. Nil means there is none.
	Console func(api http.Handler) http.Handler
	// Quarantine says why nothing may be done with the database, which belongs elsewhere: then all requests but reads
	// are refused. Empty means that it belongs here.
	Quarantine string
	// Log takes faults of the service, with the request id. Nil means that they are not logged.
	Log *slog.Logger

	operations bool // they have an address of their own
	streams    streamTimes
}

type server struct {
	Config                 // as New was given it, and with what goes without saying
	document func() []byte // OpenAPI, in YAML
	engine   *engine.Engine
	clock    func() time.Time // the database's
	currency iso4217.Currency
	mux      *http.ServeMux // of the public address
	ops      *http.ServeMux // of the address for operations; the same one where there is none
	inside   *http.ServeMux // of the console: everything; the same one again where there is no other address
	hosts    hosts
	checks   singleflight.Group // of health
	lists    *shares            // places for requests that read much at once
	looks    *shares            // places for requests whose answer takes the processor
	bodies   *shares            // bytes for bodies that are not small
	lines    *shares            // bytes for lines of order streams
	catchUps *shares            // places for streams that send what was read for them alone
	bounded  map[string]*shares // which places requests need, by their patterns
	api      huma.API
	own      map[string]http.HandlerFunc // patterns huma documents and we serve
	// The operations of the document, in the order of the routes.
	documented []*huma.Operation
	metrics    *metrics
	// What tells requests of browsers apart by Sec-Fetch-Site and Origin.
	crossOrigin *http.CrossOriginProtection
}

// New returns the handler of every path of the service. It panics when cfg holds
// a currency that is not known; it starts nothing, and is safe for concurrent use
// while the engine runs.
func New(e *engine.Engine, cfg Config) http.Handler { return newServer(e, cfg) }

// NewWithOperations is New with a second handler, for another address. What is for operations alone is answered there
// only: metrics, why the service is not ready, and what needs the role admin.
func NewWithOperations(e *engine.Engine, cfg Config) (api, forOperations http.Handler) {
	cfg.operations = true
	s := newServer(e, cfg)
	return s, operations{s}
}

// Document is the description of the API, OpenAPI 3.1 in YAML, as GET /openapi.yaml answers it.
func Document() string { return string(newServer(nil, Config{}).document()) }

func newServer(e *engine.Engine, cfg Config) *server {
	known, ok := iso4217.Find(cmp.Or(cfg.Currency, "USD"))
	if !ok {
		panic("httpapi: unknown currency " + cfg.Currency)
	}
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	cfg.ResponseTimeout = min(max(cfg.ResponseTimeout, 0), maxWait)
	cfg.streams = streamTimes{cmp.Or(cfg.streams.heartbeat, heartbeat), cmp.Or(cfg.streams.rightsHold, rightsHold)}
	s := &server{
		Config:   cfg,
		engine:   e,
		clock:    func() time.Time { return e.Now() }, // Document has no engine
		currency: known,
		mux:      http.NewServeMux(),
		hosts:    newHosts(cfg.AllowedHosts),
		lists:    newShares(listPlaces),
		looks:    newShares(lookPlaces),
		bodies:   newShares(bodyBytes),
		lines:    newShares(lineBytes),
		catchUps: newShares(catchUps),
		bounded:  map[string]*shares{},
		own:      map[string]http.HandlerFunc{},
		metrics:  newMetrics(cfg.Registerer),

		crossOrigin: http.NewCrossOriginProtection(),
	}
	if s.ops, s.inside = s.mux, s.mux; s.operations {
		s.ops, s.inside = http.NewServeMux(), http.NewServeMux()
	}
	s.api = newAPI(s)
	s.routes()
	if cfg.Metrics != nil {
		s.bounded[metricsPattern] = s.looks
		s.handleAnyQuery(metricsPattern, cfg.Metrics.ServeHTTP) // Prometheus
	}
	if cfg.Console != nil {
		s.serveConsole(cfg.Console(console{s}))
	}
	s.publish()
	return s
}

// routes lists every route. Those with a body are read by our own decoder and
// only documented by huma; huma serves the others. No literal ever stands where
// an id can: an order may be called process.
func (s *server) routes() {
	post[processRequest, orderAnswer](s, processOperation, s.process)
	getWithin(s, getOrderOperation, (*getOrderRequest).limit, s.getOrder)
	list(s, listOrdersOperation, s.listOrders)
	list(s, listTransitionsOperation, s.listTransitions)
	list(s, listCallsOperation, s.listCalls)
	post[callbackRequest, plainAnswer[receipt]](s, callbackOperation, s.callback)
	post[stripeRequest, plainAnswer[receipt]](s, stripeOperation, s.stripe)
	postVerb[VerbBody](s, cancelOperation, orders.Cancel)
	postVerb[retryBody](s, retryOperation, orders.Retry)
	postVerb[VerbBody](s, pauseOperation, orders.Pause)
	postVerb[VerbBody](s, resumeOperation, orders.Resume)
	postVerb[VerbBody](s, approveOperation, orders.Approve)
	postVerb[VerbBody](s, rejectOperation, orders.Reject)
	postVerb[stepResultBody](s, stepResultOperation, orders.StepResult)
	postBody[verbRequest[refundBody], orderAnswer](s, refundOperation, nil, s.refund)
	s.bound(bulkOperation, s.lists)
	post[bulkRequest, plainAnswer[bulkOutcome]](s, bulkOperation, s.bulk)
	list(s, listInventoryOperation, s.listInventory)
	getWithin(s, getInventoryOperation, readWithin, s.getInventory)
	postBody[setInventoryRequest, itemAnswer](s, setInventoryOperation, nil, s.setInventory)
	postBody[adjustInventoryRequest, itemAnswer](s, adjustInventoryOperation, checkAdjustment, s.adjustInventory)
	list(s, listMovementsOperation, s.listMovements)
	getWithin(s, listEventsOperation, (*listEventsRequest).limit, s.listEvents)
	look(s, getOverviewOperation, s.getOverview)
	list(s, listErrorGroupsOperation, s.listErrorGroups)
	getWithin(s, getCallerOperation, readWithin, s.getCaller)
	get(s, healthOperation, s.health)
	get(s, livezOperation, s.livez)

	s.verificationRoutes()
	s.webhookRoutes()
	s.policyRoutes()
	s.sessionRoutes()
	s.handle("GET /{$}", s.home)                                // people who type the address alone
	s.handle("GET /problems/{code}", s.answered(s.problemPage)) // people who follow the type of a problem
	s.handleAnyQuery("/", s.answered(s.unknown))                // everything else
}
