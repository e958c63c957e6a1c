package simulator

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/govalues/decimal"
)

// The supported requests of Stripe's API, by their names in https://docs.stripe.com/api.
const (
	stripeCreate  = "create"  // a payment intent
	stripeConfirm = "confirm" // an intent, which charges or authorizes it
	stripeCapture = "capture" // an authorized intent or a part of it
	stripeCancel  = "cancel"  // an intent
	stripeRefund  = "refund"  // a charge or a part of it
	stripeRead    = "read"    // an intent or refunds
)

func (s *Simulator) stripeRoutes(mux *http.ServeMux) {
	mux.HandleFunc("POST /v1/payment_intents", s.stripe(stripeCreate))
	mux.HandleFunc("POST /v1/payment_intents/{intent}/confirm", s.stripe(stripeConfirm))
	mux.HandleFunc("POST /v1/payment_intents/{intent}/capture", s.stripe(stripeCapture))
	mux.HandleFunc("POST /v1/payment_intents/{intent}/cancel", s.stripe(stripeCancel))
	mux.HandleFunc("GET /v1/payment_intents/{intent}", s.stripe(stripeRead))
	mux.HandleFunc("POST /v1/refunds", s.stripe(stripeRefund))
	mux.HandleFunc("GET /v1/refunds", s.stripe(stripeRead))
	mux.HandleFunc("GET /v1/refunds/{refund}", s.stripe(stripeRead))
	mux.HandleFunc("/v1/", func(w http.ResponseWriter, r *http.Request) {
		s.deliver(w, r, invalid("", "", "Unrecognized request URL ("+r.Method+": "+r.URL.Path+").").status(http.StatusNotFound).reply())
	})
	mux.HandleFunc("POST /stripe/payment_intents/{intent}/{what}", s.postHappening)
}

func (s *Simulator) stripe(call string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		q, fault := s.readStripe(w, r, call)
		if fault != nil { // the key is not used yet: the request can be corrected
			s.deliver(w, r, fault.reply())
			return
		}
		if q.idempotency != "" {
			w.Header().Set("Idempotency-Key", q.idempotency)
		}
		s.serve(w, r, &q.request, func() reply {
			if call == stripeRead {
				return s.lookAt(q)
			}
			return s.attempt(r.Context(), &q.request, s.beginStripe(q),
				ending{func() { s.abandonStripe(q) }, func() reply { return s.decideStripe(q) }})
		})
	}
}

// broken reports whether the request fails inside Stripe, which then keeps the 500 for its key, whether it was done or
// not.
func (q *request) broken() bool {
	fails := (q.rule.Fault == Error || q.rule.Fault == ErrorAfter) && q.rule.Status == http.StatusInternalServerError
	return fails && q.stripe && q.operation != stripeRead
}

// worded translates a reply of our own API to Stripe's.
func (q *request) worded(a reply) reply {
	if _, ours := a.body.(said); ours && q.stripe {
		a.body = serverFault(a.status).reply().body
	}
	return a
}

// lookAt answers a request that reads.
func (s *Simulator) lookAt(q *stripeRequest) reply {
	if q.rule.Fault == Slow && !s.pause(q.rule.Delay) {
		return closedReply
	}
	if q.refund != "" || q.form.Has("payment_intent") {
		return s.durable(s.lookAtRefunds(q))
	}
	s.mu.Lock()
	shown := s.state.intents[q.intent].json(q.expand())
	s.mu.Unlock()
	return s.durable(reply{status: http.StatusOK, outcome: "read", body: shown})
}

// decideStripe processes a request, atomically.
func (s *Simulator) decideStripe(q *stripeRequest) reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.release(q)
	v := s.verdict(q)
	text := encode(v.body(q))
	a := reply{status: v.status(), outcome: v.outcome, body: text}
	if v.unsaved {
		return a
	}
	before, r := s.state.intents[q.intent], record{Intent: v.after}
	if q.idempotency != "" {
		r.Answer = &answer{Key: q.idempotency, Request: q.fingerprint, Status: a.status, Body: text, Outcome: v.outcome}
	}
	s.record(r)
	if v.after == nil {
		return a
	}
	a = s.telling(&q.request, s.eventMessage(before, v.after), a)
	if promise := v.after.Promise; promise != nil && (before == nil || before.Promise == nil) {
		tell := a.then
		a.then = func() {
			tell()
			s.fulfil(promise, s.keepingIntent(v.after.ID))
		}
	}
	if v.after.Dispute != "" && (before == nil || before.Dispute == "") {
		tell, dispute := a.then, s.event(v.after, "_dispute", "charge.dispute.created", v.after.disputed("needs_response"))
		a.then = func() {
			if tell != nil { // otherwise the event of the charge was sent before the answer
				tell()
			}
			s.call(dispute, 1)
		}
	}
	return a
}

type stripeRequest struct {
	request
	idempotency string // the key; empty: none
	intent      string // id
	refund      string // ID of a refund to read
	form        url.Values
	amount      int64
	currency    string
}

// stripeParameters are the known parameters. Others are rejected, as by Stripe.
var stripeParameters = map[string][]string{
	stripeCreate: {"amount", "currency", "payment_method", "capture_method", "customer", "confirm", "description", "expand", "metadata",
		"payment_method_types", "automatic_payment_methods", "payment_method_options"},
	stripeConfirm: {"payment_method", "expand"},
	stripeCapture: {"amount_to_capture", "final_capture", "metadata", "expand"},
	stripeCancel:  {"cancellation_reason", "expand"},
	stripeRefund:  {"payment_intent", "amount", "reason", "metadata"},
	stripeRead:    {"expand", "payment_intent", "limit"},
}

func (s *Simulator) readStripe(w http.ResponseWriter, r *http.Request, call string) (*stripeRequest, *stripeFault) {
	user, _, basic := r.BasicAuth()
	if !basic {
		user = strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	}
	if user == "" {
		return nil, invalid("", "", "You did not provide an API key.").status(http.StatusUnauthorized)
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	if err := r.ParseForm(); err != nil {
		return nil, invalid("", "", "The request can't be read: "+err.Error())
	}
	q := &stripeRequest{
		form: r.Form, refund: r.PathValue("refund"), intent: cmp.Or(r.PathValue("intent"), r.Form.Get("payment_intent")),
	}
	if r.Method == http.MethodPost {
		q.idempotency = r.Header.Get("Idempotency-Key")
	}
	if len(q.idempotency) > maxKey {
		return nil, invalid("", "", "Idempotency keys have up to 255 characters.")
	}
	sum := sha256.Sum256([]byte(r.URL.Path + "\x00" + r.Form.Encode()))
	q.fingerprint, q.stripe, q.operation, q.step = hex.EncodeToString(sum[:16]), true, call, "charge"
	switch {
	case call == stripeConfirm, call == stripeCreate && q.form.Get("confirm") == "true":
		q.means = operationDo
	case call == stripeCapture && !q.form.Has("amount_to_capture"): // others are of a part
		q.means, q.step = operationDo, "confirm"
	case call == stripeCancel, call == stripeRefund && q.form.Get("metadata[pawl_refund]") == "": // other refunds undo nothing
		q.means = operationUndo
	}
	if fault := q.checkParameters(); fault != nil {
		return nil, fault
	}
	return q, s.about(q)
}

func (q *stripeRequest) checkParameters() *stripeFault {
	for name := range q.form {
		known, _, _ := strings.Cut(name, "[")
		if !slices.Contains(stripeParameters[q.operation], known) {
			return invalid("parameter_unknown", name, "Received unknown parameter: "+name)
		}
	}
	for _, expanded := range q.expand() {
		if expanded != "latest_charge" {
			return invalid("", "expand", "This property cannot be expanded ("+expanded+").")
		}
	}
	switch {
	case q.operation == stripeCreate:
		return q.checkCreate()
	case q.intent == "" && q.refund == "": // Stripe would list the refunds of all intents
		return invalid("parameter_missing", "payment_intent", "Missing required param: payment_intent.")
	}
	for _, name := range []string{"amount", "amount_to_capture"} {
		if q.form.Get(name) == "" {
			continue
		}
		units, err := strconv.ParseInt(q.form.Get(name), 10, 64)
		if err != nil || units <= 0 {
			return invalid("parameter_invalid_integer", name, "Invalid integer: "+q.form.Get(name))
		}
		q.amount = units
	}
	return nil
}

var currencyName = regexp.MustCompile(`^[a-z]{3}$`)

func (q *stripeRequest) checkCreate() *stripeFault {
	for _, name := range []string{"amount", "currency"} {
		if q.form.Get(name) == "" {
			return invalid("parameter_missing", name, "Missing required param: "+name+".")
		}
	}
	units, err := strconv.ParseInt(q.form.Get("amount"), 10, 64)
	if err != nil {
		return invalid("parameter_invalid_integer", "amount", "Invalid integer: "+q.form.Get("amount"))
	}
	q.amount, q.currency = units, strings.ToLower(q.form.Get("currency"))
	if !currencyName.MatchString(q.currency) {
		return invalid("", "currency", "Invalid currency: "+q.currency+".")
	}
	if method := q.form.Get("capture_method"); !slices.Contains([]string{"", "automatic", "automatic_async", "manual"}, method) {
		return invalid("", "capture_method", "Invalid capture_method: must be one of automatic, automatic_async, or manual")
	}
	return checkAmount(units, q.currency)
}

func (q *stripeRequest) expand() (names []string) {
	for name, values := range q.form {
		if strings.HasPrefix(name, "expand[") {
			names = append(names, values...)
		}
	}
	return names
}

func (q *stripeRequest) metadata() map[string]string {
	found := map[string]string{}
	for name, values := range q.form {
		if inner, ok := strings.CutPrefix(name, "metadata["); ok {
			found[strings.TrimSuffix(inner, "]")] = values[0]
		}
	}
	return found
}

// about finds the subject of a request, for the fault plan and the log.
func (s *Simulator) about(q *stripeRequest) *stripeFault {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q.refund != "" {
		if q.intent = s.state.ofRefund(q.refund); q.intent == "" {
			return missing("refund", "refund", q.refund).status(http.StatusNotFound)
		}
	}
	i, about := &intent{Amount: q.amount, Currency: q.currency, Metadata: q.metadata()}, q.operation+" "+q.intent
	if q.operation != stripeCreate {
		q.counted = about // after an error, the key may change
		switch i = s.state.intents[q.intent]; {
		case i == nil && q.form.Has("payment_intent"):
			return missing("payment_intent", "payment_intent", q.intent)
		case i == nil:
			return missing("payment_intent", "intent", q.intent).status(http.StatusNotFound)
		}
	}
	q.body.Step, q.body.OrderID, q.body.Item = q.step, i.Metadata["pawl_order"], i.Metadata["pawl_item"]
	q.body.Generation = i.generation()
	q.request.amount, q.body.Currency = stripeDecimal(i.Amount, i.Currency), strings.ToUpper(i.Currency)
	q.body.Amount, q.key = q.request.amount.String(), cmp.Or(q.idempotency, about)
	return nil
}

// beginStripe returns the answer of a key, or begins to process the request and locks the intent. Stripe stores no
// answer for conflicting requests, and compares the requests of a key: https://docs.stripe.com/api/idempotent_requests.
func (s *Simulator) beginStripe(q *stripeRequest) *reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.state.answer(q.idempotency)
	var a reply
	switch {
	case known != nil && known.Request != q.fingerprint:
		a = (&stripeFault{Type: "idempotency_error", httpStatus: http.StatusBadRequest,
			Message: "Keys for idempotent requests can only be used with the same parameters they were first used with."}).reply()
	case known != nil && known.running:
		s.counts.suppressed++
		a = (&stripeFault{Type: "idempotency_error", Code: "idempotency_key_in_use", httpStatus: http.StatusConflict,
			Message: "There is currently another in-progress request using this Idempotent Key."}).reply()
	case known != nil:
		s.counts.suppressed++
		return &reply{status: known.Status, body: known.Body, outcome: known.Outcome, replayed: true}
	case q.locks() && s.state.intents[q.intent].busy:
		a = invalid("lock_timeout", "", "This object cannot be accessed right now because another request is accessing it.").
			status(http.StatusTooManyRequests).reply()
	default:
		s.take(q)
		return nil
	}
	return &a
}

// locks reports whether a request locks its intent. LateAfterVoid, which breaks the contract, does not.
func (q *stripeRequest) locks() bool { return q.intent != "" && q.rule.Fault != LateAfterVoid }

// take begins a request with a key, and locks the intent. The caller holds mu.
func (s *Simulator) take(q *stripeRequest) {
	q.logged.Outcome = "running"
	s.history.change()
	if q.idempotency != "" {
		s.state.answers[q.idempotency] = &answer{Request: q.fingerprint, running: true}
	}
	if q.locks() {
		s.state.intents[q.intent].busy = true
	}
}

// release undoes take. The caller holds mu.
func (s *Simulator) release(q *stripeRequest) {
	delete(s.state.answers, q.idempotency)
	if q.locks() {
		s.state.intents[q.intent].busy = false
	}
}

func (s *Simulator) abandonStripe(q *stripeRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.release(q)
}

// Currencies that Stripe does not count in hundredths: https://docs.stripe.com/currencies. The service has its own table,
// which is checked against this one.
var (
	withoutDecimals = strings.Fields("bif clp djf gnf jpy kmf krw mga pyg rwf vnd vuv xaf xof xpf")
	threeDecimals   = strings.Fields("bhd jod kwd omr tnd") // the last must be 0
	zeroDecimals    = strings.Fields("isk ugx")             // two, and both must be 0
)

// stripeDecimal is an amount in Stripe's units as a decimal number.
func stripeDecimal(units int64, currency string) decimal.Decimal {
	scale := 2
	switch {
	case slices.Contains(withoutDecimals, currency):
		scale = 0
	case slices.Contains(threeDecimals, currency):
		scale = 3
	}
	return decimal.MustNew(units, scale)
}

// checkAmount rejects amounts that Stripe can't charge. It knows the limits only for US dollars.
func checkAmount(units int64, currency string) *stripeFault {
	switch {
	case units < 1:
		return invalid("parameter_invalid_integer", "amount", "This value must be greater than or equal to 1.")
	case currency == "usd" && units < 50:
		return invalid("amount_too_small", "amount", "Amount must be at least $0.50 usd")
	case currency == "usd" && units > 999_999_99:
		return invalid("amount_too_large", "amount", "Amount must be no more than $999,999.99")
	case slices.Contains(threeDecimals, currency) && units%10 != 0, slices.Contains(zeroDecimals, currency) && units%100 != 0:
		return invalid("", "amount", "Invalid amount for "+strings.ToUpper(currency)+".")
	}
	return nil
}

// stripeFault is an error as Stripe answers it: https://docs.stripe.com/api/errors.
type stripeFault struct {
	Type          string `json:"type"`
	Code          string `json:"code,omitempty"`
	DeclineCode   string `json:"decline_code,omitempty"`
	Message       string `json:"message,omitempty"`
	Param         string `json:"param,omitempty"`
	Charge        string `json:"charge,omitempty"`
	PaymentMethod *named `json:"payment_method,omitempty"`
	PaymentIntent any    `json:"payment_intent,omitempty"`

	httpStatus int
}

// named is an object that is shown only by its ID.
type named struct {
	ID     string `json:"id"`
	Object string `json:"object"`
}

func (f *stripeFault) status(status int) *stripeFault {
	f.httpStatus = status
	return f
}

func (f *stripeFault) reply() reply {
	outcome := "refused"
	switch {
	case f.httpStatus >= http.StatusInternalServerError:
		outcome = "error"
	case f.Code == "idempotency_key_in_use" || f.Code == "lock_timeout":
		outcome = "in_progress"
	case f.Type == "idempotency_error":
		outcome = "idempotency_mismatch"
	}
	return reply{status: f.httpStatus, outcome: outcome, body: map[string]*stripeFault{"error": f}}
}

func invalid(code, param, message string) *stripeFault {
	return &stripeFault{Type: "invalid_request_error", Code: code, Param: param, Message: message, httpStatus: http.StatusBadRequest}
}

func missing(what, param, id string) *stripeFault {
	return invalid("resource_missing", param, "No such "+what+": '"+id+"'")
}

// serverFault is an error with only a status.
func serverFault(status int) *stripeFault {
	fault := &stripeFault{Type: "api_error", Message: "An error by the fault plan, or of the simulator.", httpStatus: status}
	if status < http.StatusInternalServerError {
		fault.Type = "invalid_request_error"
	}
	if status == http.StatusTooManyRequests {
		fault.Code = "rate_limit"
	}
	return fault
}

// ownCodes are refusals of a card with a code of their own; all others are card_declined with a decline code. See
// https://docs.stripe.com/declines/codes.
var ownCodes = []string{
	"card_declined", "expired_card", "incorrect_cvc", "incorrect_number", "processing_error", "authentication_required",
}

// declined is the error after a decline of the bank.
func declined(code string, i *intent) *stripeFault {
	fault := &stripeFault{Type: "card_error", Code: "card_declined", DeclineCode: code, Message: "Your card was declined.",
		httpStatus: http.StatusPaymentRequired}
	if slices.Contains(ownCodes, code) {
		fault.Code = code
	}
	if code == "card_declined" {
		fault.DeclineCode = "generic_decline"
	}
	if code == codeUnauthenticated {
		fault.Code, fault.DeclineCode, fault.Type = code, "", "invalid_request_error"
	}
	if i.PaymentMethod != "" {
		fault.PaymentMethod = &named{i.PaymentMethod, "payment_method"}
	}
	return fault
}

const (
	codeUnauthenticated = "payment_intent_authentication_failure"
	codeExpired         = "capture_charge_authorization_expired"
)

// unexpected rejects a request that the state of the intent does not allow.
func unexpected(i *intent, what string) *stripeFault {
	return invalid("payment_intent_unexpected_state", "",
		"This PaymentIntent can't be "+what+" because it has a status of "+cmp.Or(i.Status, "none")+".")
}
