// Package httpapi is the HTTP API of the service: it reads requests, makes one call to the engine for each, and writes the
// answers. It decides nothing about orders.
//
// Requests are read strictly (RFC 8259 within the limits of I-JSON, RFC 7493), so that each has one meaning. Faults of the
// caller are answered with problem documents (RFC 9457) that name the field and never repeat a text, except for a conflict,
// which shows the stored value beside the sent one. All other errors are a 503 with Retry-After, or a 500 without details.
// Unknown fields of a body are listed in the answer, or rejected if the caller prefers. Unknown query parameters are always
// rejected.
//
// The OpenAPI 3.1 document is made from the types of this package; go generate writes it to openapi.yaml. Bodies are decoded
// by the same types. The answers of the process route, the hot one, are written by hand. No path of the API redirects, and
// no path segment in the place of an id has another meaning, so any id can be requested. Names that a path can't carry are
// rejected.
package httpapi

import (
	"cmp"
	"log/slog"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"

	"pawl/engine"
	"pawl/internal/access"
	"pawl/internal/books"
	"pawl/internal/cell"
	"pawl/internal/events"
	"pawl/internal/iso4217"
	"pawl/internal/orders"
	"pawl/internal/webhooks"
)

// Config holds the settings of the HTTP API.
type Config struct {
	// Currency is the default currency of orders, one that iso4217 knows. Empty means USD.
	Currency string
	// ResponseTimeout is how long a request without Prefer: wait waits for the end of an order, up to a minute. Zero
	// means not at all: it is answered with 202 as soon as the order is stored.
	ResponseTimeout time.Duration
	// Metrics answers GET /metrics. Nil: that path does not exist.
	Metrics http.Handler
	// AllowedHosts are the names of the service in addition to localhost, as in the Host header.
	AllowedHosts []string
	// Proxies are the networks of the reverse proxies that are trusted to state where a request comes from.
	Proxies []netip.Prefix
	// Registerer receives the metrics of requests. Nil: they are not exported.
	Registerer prometheus.Registerer
	// Events is the feed, and its tail for callers that wait for more. Nil: events are unavailable.
	Events *events.Tail
	// Access identifies callers. Nil: the service is open, entirely to this machine, and to others for the operations
	// of the contract.
	Access *access.Control
	// Webhooks are the endpoints that events are sent to. Nil only for handlers that never use them.
	Webhooks *webhooks.Endpoints
	// Books verifies the books. Nil only for handlers that never use it.
	Books *books.Verification
	// Console makes the handler of /console, which uses the given handler of the API for everything it shows and
	// does. If there is an address for operations, the console is only there. Nil: there is no console.
	Console func(api http.Handler) http.Handler
	// Quarantine is why the database may only be read, because it was restored or copied. Empty: it is not
	// restricted.
	Quarantine string
	// Cell says which orders the service has; requests about others are refused. Zero: all.
	Cell cell.Cell
	// Log receives faults of the service, with the request id. Nil: they are not logged.
	Log *slog.Logger

	operations bool // there is a separate address for operations
	streams    streamTimes
}

type server struct {
	Config                               // with defaults
	document    func() []byte            // OpenAPI, in YAML
	docs        func() map[string][]byte // its pages
	engine      *engine.Engine
	clock       func() time.Time // of the database
	currency    iso4217.Currency
	mux         *http.ServeMux // of the public address
	ops         *http.ServeMux // of the address for operations; mux if there is none
	inside      *http.ServeMux // of the console: all routes; mux if there is no address for operations
	hosts       hosts
	checks      singleflight.Group // of health
	lists       *shares            // places for requests that read a lot at once
	looks       *shares            // places for requests that take processor time
	bodies      *shares            // bytes for large bodies
	lines       *shares            // bytes for lines of order streams
	singleAt    atomic.Int64       // when the last request for one order came, in microseconds of Unix time
	catchUps    *shares            // places for streams that read from the database
	bounded     map[string]*shares // the places that a route needs, by pattern
	api         huma.API
	own         map[string]http.HandlerFunc // by pattern: routes that huma documents and this package serves
	documented  []*huma.Operation           // in the order of the routes
	metrics     *metrics
	crossOrigin *http.CrossOriginProtection
}

// New returns the handler of all paths of the service. It panics if the currency in cfg is unknown. It starts
// nothing, and is safe for concurrent use while the engine runs.
func New(e *engine.Engine, cfg Config) http.Handler { return newServer(e, cfg) }

// NewWithOperations is New with a second handler, for a separate address. Only that one has what is for operations:
// metrics, the reason why the service is not ready, and the routes that need the role admin.
func NewWithOperations(e *engine.Engine, cfg Config) (api, forOperations http.Handler) {
	cfg.operations = true
	s := newServer(e, cfg)
	return s, operations{s}
}

// Document is the OpenAPI 3.1 description of the API in YAML, as in GET /openapi.yaml.
func Document() string { return string(newServer(nil, Config{}).document()) }

func newServer(e *engine.Engine, cfg Config) *server {
	known, ok := iso4217.Find(cmp.Or(cfg.Currency, "USD"))
	if !ok {
		panic("httpapi: unknown currency " + cfg.Currency)
	}
	cfg.Cell = cmp.Or(cfg.Cell, cell.All)
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

// routes lists every route. Those with a body are read by our own decoder and only documented by huma; huma serves
// the others. No literal is in the place of an id: an order may be called process.
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
	postBody[verbRequest[captureBody], orderAnswer](s, captureOperation, nil, s.capture)
	postBody[verbRequest[voidBody], orderAnswer](s, voidOperation, nil, s.void)
	postBody[verbRequest[disputeBody], orderAnswer](s, recordDisputeOperation, nil, s.recordDispute)
	s.bound(bulkOperation, s.lists)
	post[bulkRequest, plainAnswer[bulkOutcome]](s, bulkOperation, s.bulk)
	list(s, getRequestOperation, s.getRequest)
	postBody[Keyed[erasureBody], plainAnswer[erasure]](s, createErasureOperation, nil, s.createErasure)
	list(s, listErasuresOperation, s.listErasures)
	list(s, listInventoryOperation, s.listInventory)
	getWithin(s, getInventoryOperation, readWithin, s.getInventory)
	postBody[setInventoryRequest, itemAnswer](s, setInventoryOperation, nil, s.setInventory)
	postBody[adjustInventoryRequest, itemAnswer](s, adjustInventoryOperation, checkAdjustment, s.adjustInventory)
	list(s, listMovementsOperation, s.listMovements)
	list(s, listMoneyMovementsOperation, s.listMoneyMovements)
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
	s.handle("GET /{$}", s.home)                            // for people who type only the address
	s.handle("GET /problems/{code}", s.page(s.problemPage)) // for people who follow the type of a problem
	s.handleAnyQuery("/", s.page(s.unknown))                // everything else
}
