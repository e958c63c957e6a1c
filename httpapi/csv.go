package httpapi

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// csvTable is how an answer in JSON becomes a table: a row for each element of a list, with these fields.
type csvTable struct {
	list    string
	columns []string            // a field, or one in another, such as failure.code, or in the last of a list; after a space, the name of the column if it is another one
	others  map[string][]string // columns of other lists, which the parameter table names
}

// csvTables has the operations whose answer can be CSV.
var csvTables = map[string]csvTable{
	"GET " + listOrdersOperation.Path: {"orders", []string{
		"orderId", "status", "hold", "holdReason", "failure.code failureCode", "amount", "currency",
		"money.charged chargedOrAuthorized", "money.refunded refundedOrUndone", "money.authorized authorized", "money.voided voided",
		"money.kept kept", "money.disputed disputed", "money.lost lost",
		"refunds.state lastRefundState", "refunds.amount lastRefundAmount", "refunds.code lastRefundCode",
		"captures.state lastCaptureState", "captures.amount lastCaptureAmount", "captures.code lastCaptureCode",
		"voids.state lastVoidState", "voids.amount lastVoidAmount", "voids.code lastVoidCode",
		"customerId", "item", "quantity", "submittedBy", "createdAt", "finishedAt"}, nil},
	"GET " + listMoneyMovementsOperation.Path: {"movements", []string{"at", "orderId", "kind", "amount", "currency", "reference"}, nil},
	"GET " + getVerificationReportOperation.Path: {"days", []string{
		"day", "currency", "orders", "charges", "charged chargedOrAuthorized", "refunded refundedOrUndone", "authorized", "voided", "kept", "underWay", "disputed", "lost", "forgotten"},
		map[string][]string{"movements": movedColumns, "months": movedColumns}},
}

var movedColumns = []string{"period", "currency", "captured", "undone", "refunded", "lost", "kept"}

// csvFormat documents the format of an answer.
type csvFormat string

// Schema lists the formats.
func (csvFormat) Schema(huma.Registry) *huma.Schema {
	s := &huma.Schema{Type: huma.TypeString, Enum: []any{"json", "csv"}}
	s.PrecomputeMessages()
	return s
}

const csvMedia = "text/csv"

func wantsCSV(r *http.Request) bool {
	format := r.URL.Query().Get("format")
	return format == "csv" || format == "" && strings.HasPrefix(r.Header.Get("Accept"), csvMedia)
}

// orCSV serves CSV to those who ask for it. The next page is in the header Link.
func (t csvTable) orCSV(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !wantsCSV(r) {
			h(w, r)
			return
		}
		t := t
		if columns := t.others[r.URL.Query().Get("table")]; columns != nil {
			t = csvTable{r.URL.Query().Get("table"), columns, nil}
		}
		kept := &keptAnswer{ResponseWriter: w, status: http.StatusOK}
		h(kept, r)
		lists, text := map[string]any{}, kept.body.Bytes()
		decoder := json.NewDecoder(bytes.NewReader(text))
		decoder.UseNumber()
		header := w.Header()
		if kept.status == http.StatusOK && decoder.Decode(&lists) == nil {
			text = t.table(lists)
			header.Set("Content-Type", csvMedia)
			header.Set("Content-Disposition", `attachment; filename="`+t.list+`.csv"`)
			if next, _ := lists["nextCursor"].(string); next != "" {
				query := r.URL.Query()
				query.Set("cursor", next)
				header.Set("Link", "<"+r.URL.EscapedPath()+"?"+query.Encode()+`>; rel="next"`)
			}
		}
		w.WriteHeader(kept.status)
		w.Write(text) //nolint:errcheck // the caller has gone
	}
}

// keptAnswer keeps the body of an answer.
type keptAnswer struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

func (k *keptAnswer) WriteHeader(status int)         { k.status = status }
func (k *keptAnswer) Write(text []byte) (int, error) { return k.body.Write(text) }

// Unwrap is for http.ResponseController.
func (k *keptAnswer) Unwrap() http.ResponseWriter { return k.ResponseWriter }

func (t csvTable) table(answer map[string]any) []byte {
	var text bytes.Buffer
	out := csv.NewWriter(&text)
	out.UseCRLF = true
	record := make([]string, len(t.columns))
	for i, column := range t.columns {
		field, name, _ := strings.Cut(column, " ")
		record[i] = cmp.Or(name, field)
	}
	_ = out.Write(record) // a buffer has no error
	rows, _ := answer[t.list].([]any)
	for _, row := range rows {
		for i, column := range t.columns {
			field, _, _ := strings.Cut(column, " ")
			record[i] = csvCell(row, field)
		}
		_ = out.Write(record)
	}
	out.Flush()
	return text.Bytes()
}

// csvCell is a field as text. Spreadsheets would execute a text that begins like a formula, so it gets an apostrophe.
func csvCell(row any, field string) string {
	outer, inner, nested := strings.Cut(field, ".")
	fields, _ := row.(map[string]any)
	value := fields[outer]
	if list, _ := value.([]any); len(list) > 0 {
		value = list[len(list)-1]
	}
	switch {
	case value == nil && outer == "money": // nothing was charged: zero, with the digits of the amount
		_, digits, _ := strings.Cut(csvCell(row, "amount"), ".")
		return strings.TrimSuffix("0."+strings.Repeat("0", len(digits)), ".")
	case value == nil:
		return ""
	case nested:
		return csvCell(value, inner)
	}
	text := fmt.Sprint(value)
	if _, err := strconv.ParseFloat(text, 64); err != nil && text != "" && strings.ContainsRune("=+-@\t\r", rune(text[0])) {
		return "'" + text
	}
	return text
}
