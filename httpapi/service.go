package httpapi

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pawl/engine"
	"pawl/internal/access"
	"pawl/internal/books"
	"pawl/internal/orders"
	"pawl/internal/pg"
	"pawl/internal/version"
)

var healthOperation = failing(huma.Operation{
	OperationID: "health", Method: http.MethodGet, Path: "/health", Tags: []string{"service"},
	Summary: "Readiness",
	Description: "Checks that the database answers, is migrated and belongs to this installation, and that the service " +
		"is not shutting down. For load balancers.",
}, "invalid_parameter", "stopping", "quarantined", "unavailable", "internal")

var livezOperation = failing(huma.Operation{
	OperationID: "livez", Method: http.MethodGet, Path: "/livez", Tags: []string{"service"},
	Summary:     "Liveness",
	Description: "Does not use the database. For supervisors.",
}, "invalid_parameter", "internal")

type health struct {
	Status  string `json:"status" enum:"ok"`
	Version string `json:"version,omitempty" doc:"The release that answers. Only for callers with the role read."`
	Warning string `json:"warning,omitempty" doc:"Shown while the service is open because no token was created."`
}

// health waits for the database as long as any read does (guarded has set the deadline): a few busy seconds are no
// reason to take a replica out of service, and a balancer has its own timeout. Concurrent requests share one check,
// because the route is open to everyone.
func (s *server) health(ctx context.Context, _ *struct{}) (health, error) {
	if s.Quarantine != "" {
		return health{}, newProblem("quarantined", s.forReaders(ctx,
			"The service processes no orders and sends no webhooks, because the database was restored or copied: "+
				s.Quarantine+". As the database's owner, run pawl adopt or pawl adopt --as-copy."))
	}
	checked := s.checks.DoChan("", func() (any, error) {
		check, cancel := context.WithTimeout(context.WithoutCancel(ctx), readLimit) // other requests share it
		defer cancel()
		return nil, s.engine.Ready(check)
	})
	var err error
	select {
	case result := <-checked:
		err = result.Err
	case <-ctx.Done():
		err = orders.ErrUnavailable
	}
	missing, unmade := errors.AsType[*pg.NoSchema](err)
	switch {
	case errors.Is(err, orders.ErrStopping):
		return health{}, err
	case unmade: // so no caller can be identified as a reader
		return health{}, newProblem("unavailable", s.forOperations(ctx, strings.ToUpper(missing.Found[:1])+missing.Error()[1:]+"."))
	case errors.Is(err, engine.ErrNotMigrated):
		return health{}, newProblem("unavailable", s.forReaders(ctx,
			"The database is not migrated to this version, was changed since, or the role lacks privileges on it. As "+
				"the database's owner, run pawl migrate up. The log has the details."))
	case err != nil:
		return health{}, orders.ErrUnavailable
	}
	out := health{Status: "ok", Version: s.forReaders(ctx, version.Number)}
	if s.Access.Open(ctx) {
		out.Warning = s.forOperations(ctx, "The service is open: no token was made yet. To close it: "+HowToClose)
	}
	return out, nil
}

// HowToClose is the command that makes a token, which closes an open service.
const HowToClose = "pawl token create NAME --roles ROLES"

// forOperations is a text for people who run the service. If there is an address for operations, it is empty
// elsewhere.
func (s *server) forOperations(ctx context.Context, text string) string {
	if mux := recordOf(writerOf(ctx)).mux; mux != s.ops && mux != s.inside {
		return ""
	}
	return text
}

// forReaders is forOperations, and empty for callers without the role read.
func (s *server) forReaders(ctx context.Context, text string) string {
	if !principalOf(writerOf(ctx)).Has(access.Read) {
		return ""
	}
	return s.forOperations(ctx, text)
}

func (s *server) livez(context.Context, *struct{}) (health, error) { return health{Status: "ok"}, nil }

var startVerificationOperation = failing(huma.Operation{
	OperationID: "startVerification", Method: http.MethodPost, Path: "/api/verification", Tags: []string{"service"}, DefaultStatus: http.StatusAccepted,
	Summary: "Start a verification of the books",
	Description: "Like `pawl verify`: reads the whole database and looks for violations. The server that takes the request does it in the background, on one connection, " +
		"unless one is already running. It writes nothing.",
}, "cross_origin", "invalid_parameter", "stopping", "unavailable", "internal")

func (s *server) startVerification(w http.ResponseWriter, _ *http.Request) error {
	state, err := s.Books.Start(principalOf(w).Name)
	if errors.Is(err, books.ErrStopped) {
		return orders.ErrStopping
	}
	w.Header()["Content-Type"] = jsonType
	w.WriteHeader(http.StatusAccepted)
	return writeJSON(w, verificationOf(state))
}

var getVerificationOperation = failing(huma.Operation{
	OperationID: "getVerification", Method: http.MethodGet, Path: "/api/verification", Tags: []string{"service"},
	Summary:     "Get the verification of the books",
	Description: "The progress of the current verification, and the last report. Each server keeps its own in memory, until it is restarted.",
}, "invalid_parameter", "unavailable", "internal")

func (s *server) getVerification(context.Context, *struct{}) (verification, error) {
	return verificationOf(s.Books.State()), nil
}

// verificationRoutes registers the routes of the verification of the books.
func (s *server) verificationRoutes() {
	post[struct{}, plainAnswer[verification]](s, startVerificationOperation, s.startVerification)
	get(s, getVerificationOperation, s.getVerification)
}

// verification is the progress of a verification of the books, and the last report.
type verification struct {
	State     string     `json:"state" enum:"none,running,done,failed" doc:"State of the last verification. none: not started on this server. failed: it could not read everything, which says nothing about the books; see the log."`
	StartedAt *time.Time `json:"startedAt,omitempty"`
	StartedBy string     `json:"startedBy,omitempty" doc:"Who requested it, as in the history of an order." example:"token:operations"`
	Done      int64      `json:"done" minimum:"0" doc:"Orders and items read."`
	Total     int64      `json:"total" minimum:"0" doc:"Orders and items in total."`

	Report *verificationReport `json:"report,omitempty" doc:"The report of the last verification that finished. Absent if there is none."`
}

// verificationReport is the result of a verification.
type verificationReport struct {
	FinishedAt time.Time           `json:"finishedAt"`
	Seconds    float64             `json:"seconds" minimum:"0" doc:"How long it took."`
	Right      bool                `json:"right" doc:"Whether all checks passed, not counting warnings."`
	Checks     []verificationCheck `json:"checks" nullable:"false" doc:"The checks and their results."`
	Orders     map[string]int64    `json:"orders" doc:"Number of orders by status."`
	Money      []verificationMoney `json:"money" nullable:"false" doc:"What was charged and refunded, by currency."`
}

// verificationCheck is the result of one check.
type verificationCheck struct {
	Name       string                 `json:"name" example:"completed"`
	Proves     string                 `json:"proves" doc:"A sentence that is true if there are no violations."`
	About      string                 `json:"about" enum:"orders,items,currencies,numbers,keys,entries" doc:"What the ids of the offenders are. numbers: order_no, without an order. keys: keys at a provider. entries: entry_no of the access log."`
	Checked    int64                  `json:"checked" minimum:"0" doc:"Number of rows checked."`
	Violations int64                  `json:"violations" minimum:"0"`
	Offenders  []verificationOffender `json:"offenders" nullable:"false" doc:"The first 20 violations."`
	Warning    bool                   `json:"warning" doc:"Violations do not make the books wrong."`
}

// verificationOffender is one violation.
type verificationOffender struct {
	ID    string `json:"id" example:"order-123"`
	Fault string `json:"fault" doc:"What is wrong, in words."`
}

// verificationMoney is the total of one currency.
type verificationMoney struct {
	Currency   string `json:"currency" example:"USD"`
	Charges    int64  `json:"charges" minimum:"0" doc:"Number of charges."`
	Charged    string `json:"charged" doc:"Their sum, as a decimal." example:"99.99"`
	Refunded   string `json:"refunded" doc:"The sum refunded, as a decimal."`
	Authorized string `json:"authorized" doc:"Authorized and not captured yet."`
	Voided     string `json:"voided" doc:"Authorized by completed orders, and given up or ended."`
	Kept       string `json:"kept" doc:"Captured and not refunded."`
}

func verificationOf(s books.VerificationState) verification {
	out := verification{State: "done", StartedBy: s.StartedBy, Done: s.Done, Total: s.Total}
	switch {
	case s.StartedAt.IsZero():
		out.State = "none"
		return out
	case s.Running:
		out.State = "running"
	case s.Failed:
		out.State = "failed"
	}
	out.StartedAt = utc(&s.StartedAt)
	if s.Report != nil {
		out.Report = verificationReportOf(s.Report, s.ReportedAt)
	}
	return out
}

func verificationReportOf(r *books.Report, at time.Time) *verificationReport {
	return &verificationReport{
		FinishedAt: at.UTC(), Seconds: r.Seconds, Right: r.OK(), Orders: r.Orders,
		Checks: each(r.Checks, func(c *books.Check) verificationCheck {
			return verificationCheck{
				Name: c.Name, Proves: c.Proves, About: string(c.About), Checked: c.Checked, Violations: c.Violations, Warning: c.Warning,
				Offenders: each(c.Offenders, func(o *books.Offender) verificationOffender { return verificationOffender(*o) }),
			}
		}),
		Money: each(r.Money, func(m *books.Money) verificationMoney { return verificationMoney(*m) }),
	}
}
