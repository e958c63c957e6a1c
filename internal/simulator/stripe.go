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
	"time"

	"github.com/govalues/decimal"
)

// The requests of Stripe's API that are answered, by what https://docs.stripe.com/api calls them.
const (
	stripeCreate  = "create"  // a payment intent
	stripeConfirm = "confirm" // it: this charges, or authorizes
	stripeCapture = "capture" // what was authorized
	stripeCancel  = "cancel"  // an intent
	stripeRefund  = "refund"  // a charge, or a part of it
	stripeRead    = "read"    // an intent, or refunds
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
		if fault != nil { // before a key is looked at: it can come again, and be right
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
			return s.attempt(r.Context(), &q.request, s.beginStripe(q), ending{func() { s.abandonStripe(q) }, func() reply { return s.decideStripe(q) }})
		})
	}
}

// broken reports whether the request is to go wrong inside Stripe, which then keeps the 500
// for its key, be it done or not.
func (q *request) broken() bool {
	return q.stripe && q.operation != stripeRead && (q.rule.Fault == Error || q.rule.Fault == ErrorAfter) && q.rule.Status == http.StatusInternalServerError
}

// worded puts a reply of our own API into the words of the API that was asked.
func (q *request) worded(a reply) reply {
	if _, ours := a.body.(said); ours && q.stripe {
		a.body = serverFault(a.status).reply().body
	}
	return a
}

// lookAt answers a request that changes nothing.
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

// decideStripe makes happen what was asked for, or not, in one moment.
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
	before := s.state.intents[q.intent]
	s.record(event{Event: eventStripe, Key: q.idempotency, Subject: q.body.Subject, Body: q.fingerprint,
		Stripe: &change{Intent: v.after, Status: a.status, Answer: text, Outcome: v.outcome}})
	if v.after == nil {
		return a
	}
	return s.telling(q, before, v.after, a)
}

// stripeRequest is a request of Stripe's API, checked.
type stripeRequest struct {
	request
	idempotency string // the key as it was sent; empty: there is none
	intent      string // id
	refund      string // id, of one that is looked at
	form        url.Values
	amount      int64
	currency    string
}

// stripeParameters are those that are known. Stripe refuses all others, and so does what
// simulates it: also those that it knows and this does not.
var stripeParameters = map[string][]string{
	stripeCreate: {"amount", "currency", "payment_method", "capture_method", "customer", "confirm", "description", "expand", "metadata",
		"payment_method_types", "automatic_payment_methods"},
	stripeConfirm: {"payment_method", "expand"},
	stripeCapture: {"expand"},
	stripeCancel:  {"cancellation_reason", "expand"},
	stripeRefund:  {"payment_intent", "amount", "reason", "metadata"},
	stripeRead:    {"expand", "payment_intent", "limit"},
}

func (s *Simulator) readStripe(w http.ResponseWriter, r *http.Request, call string) (*stripeRequest, *stripeFault) {
	if user, _, basic := r.BasicAuth(); !basic && strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ") == "" || basic && user == "" {
		return nil, invalid("", "", "You did not provide an API key.").status(http.StatusUnauthorized)
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	if err := r.ParseForm(); err != nil {
		return nil, invalid("", "", "The request can't be read: "+err.Error())
	}
	q := &stripeRequest{form: r.Form, intent: r.PathValue("intent"), refund: r.PathValue("refund")}
	s.findIntent(r, q)
	if r.Method == http.MethodPost {
		q.idempotency = r.Header.Get("Idempotency-Key")
	}
	if len(q.idempotency) > maxKey {
		return nil, invalid("", "", "Idempotency keys have up to 255 characters.")
	}
	sum := sha256.Sum256([]byte(r.URL.Path + "\x00" + r.Form.Encode()))
	q.fingerprint, q.stripe, q.operation, q.step = hex.EncodeToString(sum[:16]), true, call, "charge"
	q.means = map[string]string{stripeConfirm: operationDo, stripeCapture: operationDo, stripeCancel: operationUndo, stripeRefund: operationUndo}[call]
	switch {
	case call == stripeCapture:
		q.step = "confirm"
	case r.Form.Get("metadata[pawl_refund]") != "": // one that is asked for undoes nothing
		q.means = ""
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
	switch q.operation {
	case stripeCreate:
		return q.checkCreate()
	case stripeRefund:
		if q.intent = q.form.Get("payment_intent"); q.intent == "" {
			return invalid("parameter_missing", "payment_intent", "Missing required param: payment_intent.")
		}
		return q.checkRefund()
	}
	return nil
}

// checkRefund reads how much is to be given back: 0, if nothing is said, for all that is left.
func (q *stripeRequest) checkRefund() *stripeFault {
	text := q.form.Get("amount")
	if text == "" {
		return nil
	}
	units, err := strconv.ParseInt(text, 10, 64)
	if err != nil || units < 1 {
		return invalid("parameter_invalid_integer", "amount", "Invalid integer: "+text)
	}
	q.amount = units
	return nil
}

// findIntent finds the intent that a look at refunds is about.
func (s *Simulator) findIntent(r *http.Request, q *stripeRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case q.refund != "":
		q.intent = s.state.ofRefund(q.refund)
	case r.Method == http.MethodGet && q.intent == "":
		q.intent = r.Form.Get("payment_intent")
	}
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
	if q.form.Get("confirm") == "true" {
		q.means = operationDo
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

// about finds what a request is about, for the fault plan and the log.
func (s *Simulator) about(q *stripeRequest) *stripeFault {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := &intent{Amount: q.amount, Currency: q.currency, Metadata: q.metadata()}
	switch {
	case q.intent != "" || q.operation != stripeRead:
	case q.refund != "":
		return missing("refund", "refund", q.refund).status(http.StatusNotFound)
	default: // Stripe would list those of all intents
		return invalid("parameter_missing", "payment_intent", "Missing required param: payment_intent.")
	}
	if q.intent != "" {
		i = s.state.intents[q.intent]
		if i == nil && (q.operation == stripeRefund || q.operation == stripeRead && q.form.Has("payment_intent")) {
			return missing("payment_intent", "payment_intent", q.intent)
		}
		if i == nil {
			return missing("payment_intent", "intent", q.intent).status(http.StatusNotFound)
		}
	}
	q.body.Step = q.step
	q.body.OrderID, q.body.Generation, q.body.Item = i.Metadata["pawl_order"], i.generation(), i.Metadata["pawl_item"]
	q.request.amount, q.body.Currency = stripeDecimal(i.Amount, i.Currency), strings.ToUpper(i.Currency)
	q.body.Amount = q.request.amount.String()
	about := q.operation + " " + q.intent
	q.key = cmp.Or(q.idempotency, about)
	if q.intent != "" { // who is told of an old error may come with another key
		q.counted = about
	}
	return nil
}

// beginStripe finds the answer to a key, or takes it on and locks the intent. Stripe stores
// no answer of a request that conflicts with another one, and compares what a key was used
// for: https://docs.stripe.com/api/idempotent_requests.
func (s *Simulator) beginStripe(q *stripeRequest) *reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.state.stripeKey(q.idempotency)
	var a reply
	switch {
	case known != nil && known.body != q.fingerprint:
		a = (&stripeFault{Type: "idempotency_error", httpStatus: http.StatusBadRequest,
			Message: "Keys for idempotent requests can only be used with the same parameters they were first used with."}).reply()
	case known != nil && known.running:
		s.counts.suppressed++
		a = (&stripeFault{Type: "idempotency_error", Code: "idempotency_key_in_use", httpStatus: http.StatusConflict,
			Message: "There is currently another in-progress request using this Idempotent Key."}).reply()
	case known != nil:
		s.counts.suppressed++
		return &known.answer
	case q.locks() && s.state.intents[q.intent].busy:
		a = invalid("lock_timeout", "", "This object cannot be accessed right now because another API request or Stripe process is currently accessing it.").
			status(http.StatusTooManyRequests).reply()
	default:
		s.take(q)
		return nil
	}
	return &a
}

// stripeKey is what is known of a key that is still kept.
func (s *state) stripeKey(name string) *stripeKey {
	known := s.stripeKeys[name]
	if known == nil || !known.running && time.Since(known.at) > keyRetention {
		return nil
	}
	return known
}

// locks reports whether a request keeps others away from its intent. What breaks the
// contract does not.
func (q *stripeRequest) locks() bool { return q.intent != "" && q.rule.Fault != LateAfterVoid }

// take takes a key on, and locks the intent; mu is held.
func (s *Simulator) take(q *stripeRequest) {
	q.logged.Outcome = "running"
	s.history.change()
	if q.idempotency != "" {
		s.state.stripeKeys[q.idempotency] = &stripeKey{body: q.fingerprint, running: true}
	}
	if q.locks() {
		s.state.intents[q.intent].busy = true
	}
}

// release gives back what take took; mu is held.
func (s *Simulator) release(q *stripeRequest) {
	delete(s.state.stripeKeys, q.idempotency)
	if q.locks() {
		s.state.intents[q.intent].busy = false
	}
}

func (s *Simulator) abandonStripe(q *stripeRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.release(q)
}

// Currencies that Stripe does not count in hundredths, or not all of them:
// https://docs.stripe.com/currencies. The table is not the service's, which it judges.
var (
	withoutDecimals = strings.Fields("bif clp djf gnf jpy kmf krw mga pyg rwf vnd vuv xaf xof xpf")
	threeDecimals   = strings.Fields("bhd jod kwd omr tnd") // the last is to be 0
	zeroDecimals    = strings.Fields("isk ugx")             // two, and both are to be 0
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

// checkAmount refuses what Stripe can't charge. The least and the most are known here for
// US dollars alone.
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

// named is an object of which only the name is told.
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

// serverFault is an error that says nothing but its status.
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

// ownCodes are refusals of a card that Stripe gives a code of their own; all others are
// card_declined with a decline code. See https://docs.stripe.com/declines/codes.
var ownCodes = []string{"card_declined", "expired_card", "incorrect_cvc", "incorrect_number", "processing_error", "authentication_required"}

// declined is what a refusal of the bank is answered with.
func declined(code string, i *intent) *stripeFault {
	fault := &stripeFault{Type: "card_error", Code: "card_declined", DeclineCode: code, Message: "Your card was declined.", httpStatus: http.StatusPaymentRequired}
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

// unexpected refuses what an intent can't be asked for in its state.
func unexpected(i *intent, what string) *stripeFault {
	return invalid("payment_intent_unexpected_state", "", "This PaymentIntent can't be "+what+" because it has a status of "+cmp.Or(i.Status, "none")+".")
}
