package httpapi

import (
	"cmp"
	"context"
	"errors"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pawl/internal/books"
	"pawl/internal/orders"
)

var startVerificationOperation = failing(huma.Operation{
	OperationID: "startVerification", Method: http.MethodPost, Path: "/api/verification", Tags: []string{"service"}, DefaultStatus: http.StatusAccepted,
	Summary: "Start a verification of the books",
	Description: "Like `pawl verify`: reads the whole database and looks for violations. The server that takes the request does it in the background, on one connection, " +
		"unless one is already running. The report is stored. With compare, it also compares the books with those of providers.",
}, "cross_origin", "invalid_parameter", "stopping", "unavailable", "internal")

// startVerificationRequest documents what startVerification reads.
type startVerificationRequest struct {
	Compare []string `query:"compare" nullable:"false" doc:"Compare the books with those of these providers, separated by commas. Each must be one of the providers that getVerification returns, such as charge=https://payments.example.com."`
}

func (s *server) startVerification(w http.ResponseWriter, r *http.Request) error {
	compare := strings.FieldsFunc(r.URL.Query().Get("compare"), func(c rune) bool { return c == ',' })
	err := s.Books.Start(r.Context(), principalOf(w).Name, compare...)
	switch {
	case errors.Is(err, books.ErrStopped):
		return orders.ErrStopping
	case errors.Is(err, books.ErrAddress):
		return invalidParameter("compare", "invalid", "must be addresses of known providers, as GET /api/verification returns them")
	case err != nil:
		return orders.Unavailable("start verification", err)
	}
	state, err := s.getVerification(r.Context(), &getVerificationRequest{})
	if err != nil {
		return err
	}
	w.Header()["Content-Type"] = jsonType
	w.WriteHeader(http.StatusAccepted)
	return writeJSON(w, state)
}

var getVerificationOperation = failing(huma.Operation{
	OperationID: "getVerification", Method: http.MethodGet, Path: "/api/verification", Tags: []string{"service"},
	Summary:     "Get the verification of the books",
	Description: "The progress of the newest verification, the newest report, of any server or of `pawl verify --store`, and the newest comparison with each provider.",
}, "invalid_parameter", "unavailable", "internal")

type getVerificationRequest struct {
	OrderID string `query:"orderId" doc:"Only what the comparisons found of this order, without the report."`
}

func (s *server) getVerification(ctx context.Context, in *getVerificationRequest) (out verification, err error) {
	if in.OrderID == "" {
		if out.Providers, err = s.Books.Providers(ctx); err != nil {
			return out, orders.Unavailable("read providers", err)
		}
	}
	last, err := s.Books.Last(ctx)
	if err != nil || last == nil {
		out.State = "none"
		return out, orders.Unavailable("read verification", err)
	}
	if in.OrderID == "" {
		report, err := s.Books.Report(ctx, 0)
		if err != nil {
			return out, orders.Unavailable("read report", err)
		}
		if report != nil {
			out.Report = new(verificationReportOf(report))
		}
	}
	compared, err := s.Books.Comparisons(ctx, in.OrderID)
	out.State, out.StartedAt, out.StartedBy, out.Failure = stateOfVerification(last), utc(&last.StartedAt), last.StartedBy, last.Failure
	out.Done, out.Total = last.Done, last.Total
	out.Comparisons = each(compared, comparisonOf)
	return out, orders.Unavailable("read comparisons", err)
}

var listVerificationsOperation = failing(huma.Operation{
	OperationID: "listVerifications", Method: http.MethodGet, Path: "/api/verifications", Tags: []string{"service"},
	Summary:     "List verifications of the books",
	Description: "Newest first, without their reports. The newest 100 are kept.",
}, "invalid_parameter", "unavailable", "internal")

type listVerificationsRequest struct {
	Before int64 `query:"before" minimum:"1" doc:"Only verifications with smaller numbers."`
	Limit  int32 `query:"limit" minimum:"1" maximum:"100" default:"50" doc:"Maximum number of verifications."`
}

type verificationPage struct {
	Verifications []storedVerification `json:"verifications" nullable:"false"`
}

// storedVerification is a verification without its report.
type storedVerification struct {
	Number     int64      `json:"number" minimum:"1"`
	State      string     `json:"state" enum:"running,done,failed" doc:"failed: it could not read everything, or its process ended."`
	StartedAt  time.Time  `json:"startedAt"`
	StartedBy  string     `json:"startedBy"`
	FinishedAt *time.Time `json:"finishedAt,omitempty"`
	Compared   bool       `json:"compared" doc:"Whether the books were compared with those of providers."`
	Providers  []string   `json:"providers,omitempty" nullable:"false" doc:"With which providers."`
	Others     int64      `json:"others" minimum:"0" doc:"Number of charges and other effects at these providers that are not Pawl's."`
	Failure    string     `json:"failure,omitempty" doc:"Why it could not read everything, or with done, not the books of all providers; for people. Absent if its process ended."`
	Wrong      []string   `json:"wrong" nullable:"false" doc:"The checks that failed, not counting warnings."`
}

func (s *server) listVerifications(ctx context.Context, in *listVerificationsRequest) (verificationPage, error) {
	list, err := s.Books.List(ctx, cmp.Or(in.Before, math.MaxInt64), in.Limit)
	return verificationPage{each(list, func(v *books.Stored) storedVerification {
		return storedVerification{
			v.Number, stateOfVerification(v), v.StartedAt.UTC(), v.StartedBy, utc(v.FinishedAt), len(v.Compared) > 0, v.Compared, v.Others, v.Failure, v.Wrong,
		}
	})}, orders.Unavailable("list verifications", err)
}

var getVerificationReportOperation = failing(huma.Operation{
	OperationID: "getVerificationReport", Method: http.MethodGet, Path: "/api/verifications/{number}", Tags: []string{"service"},
	Summary:     "Get the report of a verification of the books",
	Description: "As CSV (format=csv, or Accept: text/csv), its days, movements or months.",
}, "not_found", "invalid_parameter", "unavailable", "internal")

type getVerificationReportRequest struct {
	Number int64     `path:"number" minimum:"1" doc:"The number of the verification."`
	Format csvFormat `query:"format" doc:"Format of the response; JSON by default."`
	Table  string    `query:"table" enum:"days,movements,months" default:"days" doc:"What the CSV has a line for."`
}

func (s *server) getVerificationReport(ctx context.Context, in *getVerificationReportRequest) (out verificationReport, err error) {
	report, err := s.Books.Report(ctx, in.Number)
	switch {
	case err != nil:
		return out, orders.Unavailable("read report", err)
	case report == nil:
		return out, &orders.NotFound{What: "report"}
	}
	return verificationReportOf(report), nil
}

// verificationRoutes registers the routes of the verification of the books.
func (s *server) verificationRoutes() {
	post[startVerificationRequest, plainAnswer[verification]](s, startVerificationOperation, s.startVerification)
	get(s, getVerificationOperation, s.getVerification)
	list(s, listVerificationsOperation, s.listVerifications)
	list(s, getVerificationReportOperation, s.getVerificationReport)
}

// verification is the progress of a verification of the books, and the newest report.
type verification struct {
	State     string     `json:"state" enum:"none,running,done,failed" doc:"State of the newest verification. none: there is none. failed: it could not read everything, or its process ended, which says nothing about the books; see the log."`
	StartedAt *time.Time `json:"startedAt,omitempty"`
	StartedBy string     `json:"startedBy,omitempty" doc:"Who requested it, as in the history of an order; shell:NAME is a user of the operating system."`
	Done      int64      `json:"done" minimum:"0" doc:"Orders and items read."`
	Total     int64      `json:"total" minimum:"0" doc:"Orders and items in total."`

	Report *verificationReport `json:"report,omitempty" doc:"The newest report. Absent if there is none."`

	Failure   string   `json:"failure,omitempty" doc:"Why it could not read everything, or with done, not the books of all providers; for people. Absent if its process ended."`
	Providers []string `json:"providers,omitempty" nullable:"false" doc:"Which providers a verification can compare the books with: those of the comparisons, and simulators that the active policy calls."`

	Comparisons []comparison `json:"comparisons,omitempty" nullable:"false" doc:"The newest comparison with each provider, newest first. A difference stays here until a newer comparison finds none."`
}

// comparison is what a verification found at a provider.
type comparison struct {
	Number     int64                     `json:"number" minimum:"1" doc:"Of the verification, which has the whole report."`
	FinishedAt time.Time                 `json:"finishedAt"`
	StartedBy  string                    `json:"startedBy"`
	Providers  []string                  `json:"providers" nullable:"false" doc:"Where the books of the providers are, by step and route."`
	Right      bool                      `json:"right" doc:"Whether the books agreed with these, not counting warnings."`
	Wrong      []books.VerificationCheck `json:"wrong" nullable:"false" doc:"The checks against providers that failed."`
	Steps      []books.VerificationStep  `json:"steps" nullable:"false"`
}

func comparisonOf(c *books.Comparison) comparison {
	return comparison{Number: c.Number, FinishedAt: c.FinishedAt.UTC(), StartedBy: c.StartedBy, Providers: c.Providers, Right: len(c.Differ) == 0,
		Wrong: each(c.Checks, checkOf), Steps: append([]books.VerificationStep{}, c.Steps...)}
}

// booksVerdict is what the newest verification and the newest comparisons say.
type booksVerdict struct {
	Number     int64      `json:"number" minimum:"1" doc:"Of the newest verification with a report."`
	FinishedAt time.Time  `json:"finishedAt"`
	Wrong      []string   `json:"wrong" nullable:"false" doc:"The checks of Pawl's own books that failed."`
	ComparedAt *time.Time `json:"comparedAt,omitempty" doc:"When the books were last compared with those of a provider. Absent: never."`
	Failure    string     `json:"failure,omitempty" doc:"Why the newest verification could not compare with all providers; for people. Absent: it could, or was not asked to."`
	Differ     []string   `json:"differ,omitempty" nullable:"false" doc:"The providers whose newest comparison found differences. Absent: none."`

	Others int64 `json:"others" minimum:"0" doc:"Number of charges and other effects at providers that are not Pawl's, in the newest comparisons."`

	foundAt time.Time // the differences
}

// verdict returns nil if there is no report.
func (s *server) verdict(ctx context.Context) (*booksVerdict, error) {
	v, err := s.Books.Verdict(ctx)
	if err != nil || v.Number == 0 {
		return nil, orders.Unavailable("read verdict", err)
	}
	out := &booksVerdict{Number: v.Number, FinishedAt: v.FinishedAt.UTC(), Wrong: []string{}, Failure: v.Failure, Differ: v.Providers, Others: v.Others, foundAt: v.DiffersAt}
	for _, name := range v.Wrong {
		if check := (books.VerificationCheck{Name: name}); !check.OfProvider() {
			out.Wrong = append(out.Wrong, name)
		}
	}
	if v.Compared {
		out.ComparedAt = utc(&v.ComparedAt)
	}
	return out, nil
}

func (v *booksVerdict) incidents() (all []incident) {
	if v == nil {
		return nil
	}
	if len(v.Wrong) > 0 {
		all = append(all, incident{Kind: "books_wrong", Since: &v.FinishedAt, Detail: strings.Join(v.Wrong, ", ")})
	}
	if len(v.Differ) > 0 {
		all = append(all, incident{Kind: "books_differ", Since: utc(&v.foundAt), Detail: strings.Join(v.Differ, ", ")})
	}
	return all
}

func stateOfVerification(v *books.Stored) string {
	switch {
	case v.Running:
		return "running"
	case v.Reported:
		return "done"
	}
	return "failed"
}

// verificationReport is the result of a verification.
type verificationReport struct {
	Number     int64                     `json:"number" minimum:"1" doc:"Of the verification."`
	FinishedAt time.Time                 `json:"finishedAt"`
	StartedBy  string                    `json:"startedBy"`
	Seconds    float64                   `json:"seconds" minimum:"0" doc:"How long it took."`
	Right      bool                      `json:"right" doc:"Whether all checks passed, not counting warnings."`
	Checks     []books.VerificationCheck `json:"checks" nullable:"false" doc:"The checks and their results."`
	Orders     map[string]int64          `json:"orders" doc:"Number of orders by status."`
	Money      []verificationMoney       `json:"money" nullable:"false" doc:"What was charged and refunded, by currency."`
	Days       []verificationMoney       `json:"days" nullable:"false" doc:"The same by the day (UTC) on which the orders were placed, newest first; up to 400."`
	Movements  []verificationMoved       `json:"movements" nullable:"false" doc:"What moved on each day (UTC), whenever the orders were placed, newest first; up to 400. In each currency, the sum of kept is what all orders keep."`
	Months     []verificationMoved       `json:"months" nullable:"false" doc:"The same by month."`
	Steps      []books.VerificationStep  `json:"steps,omitempty" nullable:"false" doc:"The comparison with providers, by step. Absent if the books were not compared."`
}

// verificationMoney is the money of the orders in one currency, or of those that were placed on one day.
type verificationMoney struct {
	Day      string `json:"day,omitempty" pattern:"^[0-9]{4}-[0-9]{2}-[0-9]{2}$" doc:"Absent in money."`
	Currency string `json:"currency"`
	Orders   int64  `json:"orders" minimum:"0" doc:"Number of orders."`
	Charges  int64  `json:"charges" minimum:"0" doc:"Number of charges."`
	Money
	UnderWay  string `json:"underWay" doc:"The part of kept that belongs to orders that have not ended."`
	Forgotten int64  `json:"forgotten" minimum:"0" doc:"Number of these orders that were forgotten. Lists do not have them."`
}

func verificationMoneyOf(day string, m *books.Money) verificationMoney {
	return verificationMoney{
		day, m.Currency, m.Orders, m.Charges, Money{m.Charged, m.Refunded, m.Authorized, m.Voided, m.Kept, m.Disputed, m.Lost}, m.UnderWay, m.Forgotten,
	}
}

// verificationMoved is the money that moved in one currency on a day or in a month.
type verificationMoved struct {
	Period   string `json:"period" doc:"A day or a month, in UTC."`
	Currency string `json:"currency"`
	Captured string `json:"captured" doc:"Taken, by charges and captures. An authorization takes nothing."`
	Undone   string `json:"undone" doc:"Given back, because the order did not complete."`
	Refunded string `json:"refunded" doc:"Given back, by requested refunds."`
	Lost     string `json:"lost" doc:"Lost in disputes, which counts from when they were lost."`
	Kept     string `json:"kept" doc:"captured - undone - refunded - lost"`
}

func verificationReportOf(r *books.StoredReport) verificationReport {
	return verificationReport{
		Number: r.Number, FinishedAt: r.FinishedAt.UTC(), StartedBy: r.StartedBy, Seconds: r.Seconds, Right: r.OK(), Orders: r.Orders,
		Checks:    each(r.Checks, checkOf),
		Money:     each(r.Money, func(m *books.Money) verificationMoney { return verificationMoneyOf("", m) }),
		Days:      each(r.Days, func(d *books.Day) verificationMoney { return verificationMoneyOf(d.Day, &d.Money) }),
		Movements: each(r.Movements, movedOf), Months: each(r.Months, movedOf),
		Steps: r.Steps,
	}
}

// movedOf also reads reports of older releases: their refunded has what was undone.
func movedOf(m *books.Movement) verificationMoved {
	m.Undone, m.Lost = cmp.Or(m.Undone, "0.00"), cmp.Or(m.Lost, "0.00")
	return verificationMoved{m.Period, m.Currency, m.Captured, m.Undone, m.Refunded, m.Lost, m.Kept()}
}

// checkOf names fewer offenders than are stored.
func checkOf(c *books.VerificationCheck) books.VerificationCheck {
	c.Offenders = c.Offenders[:min(len(c.Offenders), 20)]
	return *c
}
