package provider_test

import (
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pawl/fsm"
	"pawl/internal/policy"
	"pawl/internal/provider"
	"pawl/internal/provider/endpoint"
	"pawl/test/assert"
)

// says is a provider that gives one answer to everything.
func says(status int, body string, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(status)
		if status != http.StatusNoContent && status != http.StatusNotModified {
			_, _ = w.Write([]byte(body))
		}
	}
}

// answered is what an executor makes of an answer.
func answered(t *testing.T, op provider.Operation, handler http.Handler) provider.Result {
	t.Helper()
	_, url := lay(t, handler)
	e := atURL(url, fsm.Charge, secretOf(t, secretText))
	if op == provider.Undo {
		return e.Undo(t.Context(), aCall(fsm.Charge))
	}
	return e.Do(t.Context(), aCall(fsm.Charge))
}

var answers = []struct {
	status int
	body   string
	want   provider.Result // without Detail
}{
	// Done: 2xx and a body that can be read, or none.
	{200, ``, provider.Done{}},
	{204, ``, provider.Done{}},
	{200, " \r\n", provider.Done{}},
	{200, `{}`, provider.Done{}},
	{201, `{"reference":"ch_1","data":{"b":[1.50,{"c":null}],"a":"<é>"},"more":[1]}`,
		provider.Done{Reference: "ch_1", Data: []byte(`{"b":[1.50,{"c":null}],"a":"<é>"}`)}},
	{201, `{"data":{"b":[1.50,{"c":null}],"a":"<\u00e9>"}}`,
		provider.Done{Data: []byte(`{"a":"<é>","b":[1.50,{"c":null}]}`)}},
	{201, `{"data":{"a":true,"b":2e1000}}`, provider.Unknown{Code: "answer_unreadable"}},
	{200, `{"reference":null,"data":null,"code":7}`, provider.Done{}},
	{299, `{"outcome":"done","reference":"` + strings.Repeat("\U0001f600", 255) + `"}`, provider.Done{Reference: strings.Repeat("\U0001f600", 255)}},
	{200, `{"data":{"half":"\ud800","e":1e999}}`, provider.Done{Data: []byte(`{"e":1e999,"half":"` + "\ufffd" + `"}`)}},

	// 2xx that can't be read: the effect is there or not.
	{200, `OK`, provider.Unknown{Code: "answer_unreadable"}},
	{200, `<html>`, provider.Unknown{Code: "answer_unreadable"}},
	{200, `null`, provider.Unknown{Code: "answer_unreadable"}},
	{200, `[{"reference":"ch_1"}]`, provider.Unknown{Code: "answer_unreadable"}},
	{200, `{"reference":"ch_1"`, provider.Unknown{Code: "answer_unreadable"}},
	{200, `{"reference":"ch_1"} {}`, provider.Unknown{Code: "answer_unreadable"}},
	{200, `{"reference":17}`, provider.Unknown{Code: "answer_unreadable"}},
	{200, `{"reference":"a\u0000b"}`, provider.Unknown{Code: "answer_unreadable"}},
	{200, `{"reference":"` + strings.Repeat("x", 256) + `"}`, provider.Unknown{Code: "answer_unreadable"}},
	{200, `{"data":"text"}`, provider.Unknown{Code: "answer_unreadable"}},
	{200, `{"data":{"a\u0000":1}}`, provider.Unknown{Code: "answer_unreadable"}},
	{200, `{"data":{"a":[["\u0000"]]}}`, provider.Unknown{Code: "answer_unreadable"}},
	{200, `{"data":{"a":1e131073}}`, provider.Unknown{Code: "answer_unreadable"}},
	{200, `{"data":{"a":1E-99999999999999999999}}`, provider.Unknown{Code: "answer_unreadable"}},
	{200, `{"data":` + strings.Repeat(`{"a":`, 40) + `1` + strings.Repeat(`}`, 41), provider.Unknown{Code: "answer_unreadable"}},
	{200, `{"data":{"a":"` + strings.Repeat("x", 16<<10) + `"}}`, provider.Unknown{Code: "answer_unreadable"}},
	{200, `{"a":"` + strings.Repeat("x", 64<<10) + `"}`, provider.Unknown{Code: "answer_unreadable"}},
	{200, `{"outcome":"refused","code":"declined"}`, provider.Unknown{Code: "answer_contradictory"}},
	{200, `{"outcome":"pending"}`, provider.Unknown{Code: "answer_contradictory"}},

	{200, `{"outcome":7}`, provider.Unknown{Code: "answer_contradictory"}},
	{200, `{"outcome":"not_done","Outcome":"done"}`, provider.Unknown{Code: "answer_contradictory"}},

	// Waiting: 202.
	{202, ``, provider.Waiting{}},
	{202, `{"reference":"ch_1","action":{"type":"redirect"}}`, provider.Waiting{Reference: "ch_1", Action: []byte(`{"type":"redirect"}`)}},
	{202, `{"outcome":"waiting"}`, provider.Waiting{}},
	{202, `{"outcome":"done"}`, provider.Unknown{Code: "answer_contradictory"}},
	{202, `accepted`, provider.Unknown{Code: "answer_unreadable"}},
	{202, `{"action":"https://"}`, provider.Unknown{Code: "answer_unreadable"}},

	// Refused: 402, and any 4xx that says so.
	{402, ``, provider.Refused{Code: "payment_required"}},
	{402, `<html>`, provider.Refused{Code: "payment_required"}},
	{402, `{"code":"card_declined","detail":"no"}`, provider.Refused{Code: "card_declined"}},
	{402, `{"outcome":"refused","code":"card_declined"}`, provider.Refused{Code: "card_declined"}},
	{402, `{"outcome":{"type":"pending"}}`, provider.Unknown{Code: "http_402", Status: 402}},
	{402, `{"outcome":"pending"}`, provider.Unknown{Code: "http_402", Status: 402}},
	{409, `{"outcome":"refused","code":"out_of_stock"}`, provider.Refused{Code: "out_of_stock"}},
	{404, `{"outcome":"refused"}`, provider.Refused{Code: "refused"}},
	{422, `{"outcome":"refused","code":"x","reference":1}`, provider.Refused{Code: "x"}},
	{429, `{"outcome":"refused","code":"x"}`, provider.Refused{Code: "x"}},

	// Certainly not done.
	{425, ``, provider.Retry{Code: "too_early", Counts: true}},
	{429, `slow down`, provider.Retry{Code: "too_many_requests"}},
	{429, `{"outcome":"not_done","code":"busy"}`, provider.Retry{Code: "busy"}},
	{503, `{"outcome":"not_done","code":"maintenance"}`, provider.Retry{Code: "maintenance", Counts: true}},
	{200, `{"outcome":"not_done"}`, provider.Retry{Code: "not_done", Counts: true}},
	{402, `{"outcome":"not_done"}`, provider.Retry{Code: "not_done", Counts: true}},
	{307, `{"outcome":"not_done"}`, provider.Retry{Code: "not_done", Counts: true}},

	// In doubt: everything else.
	{400, ``, provider.Unknown{Code: "http_400", Status: 400}},
	{400, `{"code":"invalid_request"}`, provider.Unknown{Code: "invalid_request", Status: 400}},
	{401, ``, provider.Unknown{Code: "http_401", Status: 401}},
	{404, `{"outcome":"Refused"}`, provider.Unknown{Code: "http_404", Status: 404}},
	{408, ``, provider.Unknown{Code: "http_408", Status: 408}},
	{409, `{"code":"in_progress"}`, provider.Unknown{Code: "in_progress", Status: 409}},
	{422, `{"code":"key_reused"}`, provider.Unknown{Code: "key_reused", Status: 422}},
	{425, `{"outcome":"done"}`, provider.Unknown{Code: "http_425", Status: 425}},
	{429, `{"outcome":"waiting"}`, provider.Unknown{Code: "http_429", Status: 429}},
	{500, ``, provider.Unknown{Code: "http_500", Status: 500}},
	{500, `{"outcome":"refused","code":"x"}`, provider.Unknown{Code: "x", Status: 500}},
	{503, `{"outcome":"done"}`, provider.Unknown{Code: "http_503", Status: 503}},
	{599, ``, provider.Unknown{Code: "http_599", Status: 599}},
	{600, ``, provider.Unknown{Code: "http_600", Status: 600}},
	{301, ``, provider.Unknown{Code: "redirect", Status: 301}},
	{304, ``, provider.Unknown{Code: "redirect", Status: 304}},
	{308, `{"outcome":"refused","code":"x"}`, provider.Unknown{Code: "redirect", Status: 308}},
}

// An undo that was only accepted is not done, and has no callback.
func TestAnswerToADoAndToAnUndo(t *testing.T) {
	t.Parallel()
	for _, a := range answers {
		wants := map[provider.Operation]provider.Result{provider.Do: a.want, provider.Undo: a.want}
		if a.status == 202 && a.body != "accepted" {
			wants[provider.Undo] = provider.Unknown{Code: "undo_pending"}
		}
		for op, want := range wants {
			assert.Equal(t, withoutDetail(answered(t, op, says(a.status, a.body))), want, op, a.status, a.body)
		}
	}
}

func withoutDetail(r provider.Result) provider.Result {
	switch r := r.(type) {
	case provider.Refused:
		r.Detail = ""
		return r
	case provider.Retry:
		r.Detail = ""
		return r
	case provider.Unknown:
		r.Detail = ""
		return r
	}
	return r
}

func TestAnswerToALookup(t *testing.T) {
	t.Parallel()
	for _, a := range []struct {
		status int
		body   string
		want   provider.Result
	}{
		{200, `{"state":"done","reference":"ch_1","data":{"a":1}}`, provider.Done{Reference: "ch_1", Data: []byte(`{"a":1}`)}},
		{200, `{"state":"refused","code":"card_declined"}`, provider.Refused{Code: "card_declined"}},
		{200, `{"state":"refused"}`, provider.Refused{Code: "refused"}},
		{200, `{"state":"undone","code":"whatever"}`, provider.Refused{Code: "undone"}},
		{200, `{"state":"pending","reference":"ch_1"}`, provider.Waiting{Reference: "ch_1"}},
		{200, `{"state":"in_progress"}`, provider.Unknown{Code: "in_progress"}},
		{200, `{"state":"in_progress","reference":"ch_1"}`, provider.Unknown{Code: "in_progress", Reference: "ch_1"}},
		{200, `{"state":"unseen"}`, provider.Retry{Code: "unseen", Counts: true}},
		{404, ``, provider.Retry{Code: "unseen", Counts: true}},
		{200, ``, provider.Unknown{Code: "answer_contradictory"}},
		{200, `{"state":"DONE"}`, provider.Unknown{Code: "answer_contradictory"}},
		{200, `{"state":"done"`, provider.Unknown{Code: "answer_unreadable"}},
		{202, `{"state":"pending"}`, provider.Unknown{Code: "http_202", Status: 202}},
		{402, `{"outcome":"refused"}`, provider.Unknown{Code: "http_402", Status: 402}},
		{429, ``, provider.Unknown{Code: "http_429", Status: 429}},
		{503, `{"outcome":"not_done"}`, provider.Unknown{Code: "http_503", Status: 503}},
		{302, ``, provider.Unknown{Code: "http_302", Status: 302}},
	} {
		w, url := lay(t, says(a.status, a.body))
		c := aCall(fsm.Charge)
		got := withoutDetail(lookerAt(t, url+"/look?shop=a%20b").Lookup(t.Context(), c))
		assert.True(t, reflect.DeepEqual(got, a.want), a.status, a.body, got, a.want)
		r := w.seen()[0]
		assert.True(t, r.method == http.MethodGet && r.uri == "/look?shop=a%20b&key="+c.Key(provider.Do) &&
			r.header.Get("webhook-id") == c.Key(provider.Do), r.method, r.uri, r.header)
		checkSignature(t, &r)
	}
}

func lookerAt(t *testing.T, url string) provider.Looker {
	t.Helper()
	e := endpoint.New(&policy.Step{Executor: policy.HTTP, URL: url, UndoURL: url, LookupURL: url, Secret: secretOf(t, secretText)}, fsm.Charge, local, provider.NewTransport(0, true))
	looker, ok := e.(provider.Looker)
	assert.Require(t, ok, e, "can't be asked")
	return looker
}

// A look-up without an answer says nothing about the Do, not even that it was not seen.
func TestALookupThatFailsIsUnknown(t *testing.T) {
	t.Parallel()
	r := lookerAt(t, nobody(t)).Lookup(t.Context(), aCall(fsm.Charge))
	assert.Equal(t, kind(r), "unknown", r)
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	const date, later = "Sat, 21 Nov 2026 15:00:00 GMT", "Sat, 21 Nov 2026 15:01:30 GMT"
	for text, want := range map[string]time.Duration{
		"": 0, "0": 0, "7": 7 * time.Second, "1.5": 0, "-3": 0, "soon": 0, "4294967295": 365 * 24 * time.Hour, "99999999999999999999": 0,
		later: 90 * time.Second, "Sat, 21 Nov 2026 14:00:00 GMT": 0, "Sat, 21 Nov 9999 14:00:00 GMT": 365 * 24 * time.Hour,
	} {
		for status, got := range map[int]func(provider.Result) time.Duration{
			429: func(r provider.Result) time.Duration { return r.(provider.Retry).After },
			503: func(r provider.Result) time.Duration { return r.(provider.Unknown).After },
		} {
			assert.Equal(t, got(answered(t, provider.Do, says(status, "", "Retry-After", text, "Date", date))), want,
				status, "with Retry-After", text)
		}
	}
}

func TestTextOfAnAnswer(t *testing.T) {
	t.Parallel()
	t.Run("are cut and cleaned", func(t *testing.T) {
		t.Parallel()
		body := fmt.Sprintf(`{"code":"a\nb\u001b[31m\u202e%s","detail":"%s"}`, strings.Repeat("é", 300), strings.Repeat("\\ud83d\\ude00", 300))
		r := answered(t, provider.Do, says(402, body)).(provider.Refused)
		assert.True(t, utf8.RuneCountInString(r.Code) == 200 && utf8.RuneCountInString(r.Detail) == 200 && strings.HasPrefix(r.Code, "a b [31m é"),
			r.Code, r.Detail)
	})
	t.Run("tell no secret and no payment method", func(t *testing.T) {
		t.Parallel()
		for _, status := range []int{402, 429, 503} {
			body := `{"code":"no_pm_card_visa","detail":"` + strings.Repeat("x", 195) + ` pm_card_visa ` + secretText + ` MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}`
			for _, body := range []string{body, strings.Replace(body, strings.Repeat("x", 195), "", 1)} {
				text := fmt.Sprintf("%#v", answered(t, provider.Do, says(status, body)))
				assert.True(t, !strings.Contains(text, "pm_c") && !strings.Contains(text, "MfKQ"), text)
			}
		}
	})
	t.Run("keep a code that has a short name in it", func(t *testing.T) {
		t.Parallel()
		_, url := lay(t, says(402, `{"code":"card_declined","detail":"card"}`))
		c := aCall(fsm.Charge)
		c.PaymentMethod = "card"
		r := atURL(url, fsm.Charge, "").Do(t.Context(), c)
		assert.True(t, r == (provider.Refused{Code: "card_declined", Detail: "***"}), r)
	})
}
