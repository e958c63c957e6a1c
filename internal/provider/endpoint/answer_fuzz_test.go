package endpoint

import (
	"bytes"
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"pawl/internal/provider"
	"pawl/test/assert"
)

// FuzzAnswer holds what is made of an answer to what an answer may mean: a charge that is
// wrongly called done or undone costs money.
func FuzzAnswer(f *testing.F) {
	for _, body := range []string{
		``, `{}`, `{"reference":"ch_1","data":{"a":[1.5e3,"\ud800",null]}}`, `{"outcome":"refused","code":"card_declined","detail":"no"}`,
		`{"outcome":"not_done"}`, `{"state":"done","reference":"x"}`, `{"state":"undone"}`, `{"OUTCOME":"refused","outcome":1}`,
		`{"action":{"a":"\u0000"}}`, `{"data":{"a":1e-99999}}`, "{\"code\":\"\xff\u202e\"}", `[[[`, `{"outcome":"done"}{"outcome":"refused"}`,
	} {
		for _, status := range []int{101, 200, 202, 204, 302, 402, 409, 425, 429, 503} {
			f.Add(status, []byte(body), "7", 1)
		}
	}
	f.Fuzz(func(t *testing.T, status int, body []byte, after string, sent int) {
		if len(body) > maxAnswer || sent < 1 {
			return
		}
		for _, op := range []provider.Operation{provider.Do, provider.Undo} {
			a := answer{body: body, Exchange: provider.Exchange{Status: status, Sent: sent,
				Header: http.Header{"Retry-After": {after}}, Private: []string{"", "hidden"}}}
			r := a.result(op)
			wellFormed(t, r)
			assert.True(t, justified(r, op, &a), op, status, body, "sent", sent, "times", r)
			wellFormed(t, a.lookup())
		}
	})
}

// justified reports whether an answer allows a result.
func justified(r provider.Result, op provider.Operation, a *answer) bool {
	said := map[string]bool{}
	var members map[string]any
	isObject := json.Unmarshal(a.body, &members) == nil && members != nil
	for name, value := range members {
		if outcome, ok := value.(string); ok && strings.EqualFold(name, "outcome") {
			said[outcome] = true
		}
	}
	readable := isObject || len(bytes.TrimSpace(a.body)) == 0
	switch r.(type) {
	case provider.Done:
		return a.Status/100 == 2 && a.Status != 202 && readable && !said["refused"] && !said["not_done"]
	case provider.Waiting:
		return a.Status == 202 && op == provider.Do && readable && !said["refused"]
	case provider.Refused:
		return a.Status == 402 || a.Status/100 == 4 && said["refused"]
	case provider.Retry:
		return a.Sent == 1 && (a.Status == 425 || a.Status == 429 || said["not_done"])
	}
	return true
}

// wellFormed checks that a result can be stored, logged and shown.
func wellFormed(t *testing.T, r provider.Result) {
	t.Helper()
	v := reflect.ValueOf(r)
	for i := range v.NumField() {
		name, limit := v.Type().Field(i).Name, map[string]int{"Code": 200, "Detail": 200, "Reference": 255}
		switch value := v.Field(i).Interface().(type) {
		case string:
			assert.True(t, utf8.RuneCountInString(value) <= limit[name] && utf8.ValidString(value) &&
				!strings.ContainsFunc(value, unicode.IsControl) && (!strings.Contains(value, "hidden") || name == "Reference") &&
				(value != "" || name != "Code"), r, "has", name, value)
		case json.RawMessage:
			again, err := provider.StorableData(value)
			assert.True(t, err == nil && bytes.Equal(again, value) && (value == nil || utf8.Valid(value) &&
				!bytes.Contains(value, []byte(`\u0000`))), r, "has", name, value, "then", again, err)
		case time.Duration:
			assert.True(t, value >= 0 && value <= 365*24*time.Hour, r, "has", name, value)
		}
	}
}
