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
)

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
