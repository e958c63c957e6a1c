package step_test

import (
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pawl/fsm"
	"pawl/policy"
	"pawl/step"
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
func answered(t *testing.T, op step.Operation, provider http.Handler) step.Result {
	t.Helper()
	_, url := lay(t, provider)
	e := atURL(t, url, fsm.Charge, secretOf(t, secretText))
	if op == step.Undo {
		return e.Undo(t.Context(), aCall(fsm.Charge))
	}
	return e.Do(t.Context(), aCall(fsm.Charge))
}

var answers = []struct {
	status int
	body   string
	want   step.Result // without Detail
}{
	// Done: 2xx and a body that can be read, or none.
	{200, ``, step.Done{}},
	{204, ``, step.Done{}},
	{200, " \r\n", step.Done{}},
	{200, `{}`, step.Done{}},
	{201, `{"reference":"ch_1","data":{"b":[1.50,{"c":null}],"a":"<é>"},"more":[1]}`, step.Done{Reference: "ch_1", Data: []byte(`{"a":"<é>","b":[1.50,{"c":null}]}`)}},
	{200, `{"reference":null,"data":null,"code":7}`, step.Done{}},
	{299, `{"outcome":"done","reference":"` + strings.Repeat("\U0001f600", 255) + `"}`, step.Done{Reference: strings.Repeat("\U0001f600", 255)}},
	{200, `{"data":{"half":"\ud800","e":1e999}}`, step.Done{Data: []byte(`{"e":1e999,"half":"` + "\ufffd" + `"}`)}},

	// 2xx that can't be read: the effect is there or not.
	{200, `OK`, step.Unknown{Code: "answer_unreadable"}},
	{200, `<html>`, step.Unknown{Code: "answer_unreadable"}},
	{200, `null`, step.Unknown{Code: "answer_unreadable"}},
	{200, `[{"reference":"ch_1"}]`, step.Unknown{Code: "answer_unreadable"}},
	{200, `{"reference":"ch_1"`, step.Unknown{Code: "answer_unreadable"}},
	{200, `{"reference":"ch_1"} {}`, step.Unknown{Code: "answer_unreadable"}},
	{200, `{"reference":17}`, step.Unknown{Code: "answer_unreadable"}},
	{200, `{"reference":"a\u0000b"}`, step.Unknown{Code: "answer_unreadable"}},
	{200, `{"reference":"` + strings.Repeat("x", 256) + `"}`, step.Unknown{Code: "answer_unreadable"}},
	{200, `{"data":"text"}`, step.Unknown{Code: "answer_unreadable"}},
	{200, `{"data":{"a\u0000":1}}`, step.Unknown{Code: "answer_unreadable"}},
	{200, `{"data":{"a":[["\u0000"]]}}`, step.Unknown{Code: "answer_unreadable"}},
	{200, `{"data":{"a":1e131073}}`, step.Unknown{Code: "answer_unreadable"}},
	{200, `{"data":{"a":1E-99999999999999999999}}`, step.Unknown{Code: "answer_unreadable"}},
	{200, `{"data":` + strings.Repeat(`{"a":`, 40) + `1` + strings.Repeat(`}`, 41), step.Unknown{Code: "answer_unreadable"}},
	{200, `{"data":{"a":"` + strings.Repeat("x", 16<<10) + `"}}`, step.Unknown{Code: "answer_unreadable"}},
	{200, `{"a":"` + strings.Repeat("x", 64<<10) + `"}`, step.Unknown{Code: "answer_unreadable"}},
	{200, `{"outcome":"refused","code":"declined"}`, step.Unknown{Code: "answer_contradictory"}},
	{200, `{"outcome":"pending"}`, step.Unknown{Code: "answer_contradictory"}},

	{200, `{"outcome":7}`, step.Unknown{Code: "answer_contradictory"}},
	{200, `{"outcome":"not_done","Outcome":"done"}`, step.Unknown{Code: "answer_contradictory"}},

	// Waiting: 202.
	{202, ``, step.Waiting{}},
	{202, `{"reference":"ch_1","action":{"type":"redirect"}}`, step.Waiting{Reference: "ch_1", Action: []byte(`{"type":"redirect"}`)}},
	{202, `{"outcome":"waiting"}`, step.Waiting{}},
	{202, `{"outcome":"done"}`, step.Unknown{Code: "answer_contradictory"}},
	{202, `accepted`, step.Unknown{Code: "answer_unreadable"}},
	{202, `{"action":"https://"}`, step.Unknown{Code: "answer_unreadable"}},

	// Refused: 402, and any 4xx that says so.
	{402, ``, step.Refused{Code: "payment_required"}},
	{402, `<html>`, step.Refused{Code: "payment_required"}},
	{402, `{"code":"card_declined","detail":"no"}`, step.Refused{Code: "card_declined"}},
	{402, `{"outcome":"refused","code":"card_declined"}`, step.Refused{Code: "card_declined"}},
	{402, `{"outcome":{"type":"pending"}}`, step.Unknown{Code: "http_402"}},
	{402, `{"outcome":"pending"}`, step.Unknown{Code: "http_402"}},
	{409, `{"outcome":"refused","code":"out_of_stock"}`, step.Refused{Code: "out_of_stock"}},
	{404, `{"outcome":"refused"}`, step.Refused{Code: "refused"}},
	{422, `{"outcome":"refused","code":"x","reference":1}`, step.Refused{Code: "x"}},
	{429, `{"outcome":"refused","code":"x"}`, step.Refused{Code: "x"}},

	// Certainly not done.
	{425, ``, step.Retry{Code: "too_early", Counts: true}},
	{429, `slow down`, step.Retry{Code: "too_many_requests"}},
	{429, `{"outcome":"not_done","code":"busy"}`, step.Retry{Code: "busy"}},
	{503, `{"outcome":"not_done","code":"maintenance"}`, step.Retry{Code: "maintenance", Counts: true}},
	{200, `{"outcome":"not_done"}`, step.Retry{Code: "not_done", Counts: true}},
	{402, `{"outcome":"not_done"}`, step.Retry{Code: "not_done", Counts: true}},
	{307, `{"outcome":"not_done"}`, step.Retry{Code: "not_done", Counts: true}},

	// In doubt: everything else.
	{400, ``, step.Unknown{Code: "http_400"}},
	{400, `{"code":"invalid_request"}`, step.Unknown{Code: "invalid_request"}},
	{401, ``, step.Unknown{Code: "http_401"}},
	{404, `{"outcome":"Refused"}`, step.Unknown{Code: "http_404"}},
	{408, ``, step.Unknown{Code: "http_408"}},
	{409, `{"code":"in_progress"}`, step.Unknown{Code: "in_progress"}},
	{422, `{"code":"key_reused"}`, step.Unknown{Code: "key_reused"}},
	{425, `{"outcome":"done"}`, step.Unknown{Code: "http_425"}},
	{429, `{"outcome":"waiting"}`, step.Unknown{Code: "http_429"}},
	{500, ``, step.Unknown{Code: "http_500"}},
	{500, `{"outcome":"refused","code":"x"}`, step.Unknown{Code: "x"}},
	{503, `{"outcome":"done"}`, step.Unknown{Code: "http_503"}},
	{599, ``, step.Unknown{Code: "http_599"}},
	{600, ``, step.Unknown{Code: "http_600"}},
	{301, ``, step.Unknown{Code: "redirect"}},
	{304, ``, step.Unknown{Code: "redirect"}},
	{308, `{"outcome":"refused","code":"x"}`, step.Unknown{Code: "redirect"}},
}

func TestAnswerToADo(t *testing.T) {
	t.Parallel()
	for _, a := range answers {
		if got := withoutDetail(answered(t, step.Do, says(a.status, a.body))); !reflect.DeepEqual(got, a.want) {
			t.Errorf("%d %.80s: %#v, want %#v", a.status, a.body, got, a.want)
		}
	}
}

// An undo that was only taken on is not done, and nobody calls back for it.
func TestAnswerToAnUndo(t *testing.T) {
	t.Parallel()
	for _, a := range answers {
		want := a.want
		if a.status == 202 && a.body != "accepted" {
			want = step.Unknown{Code: "undo_pending"}
		}
		if got := withoutDetail(answered(t, step.Undo, says(a.status, a.body))); !reflect.DeepEqual(got, want) {
			t.Errorf("%d %.80s: %#v, want %#v", a.status, a.body, got, want)
		}
	}
}

func withoutDetail(r step.Result) step.Result {
	switch r := r.(type) {
	case step.Refused:
		r.Detail = ""
		return r
	case step.Retry:
		r.Detail = ""
		return r
	case step.Unknown:
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
		want   step.Result
	}{
		{200, `{"state":"done","reference":"ch_1","data":{"a":1}}`, step.Done{Reference: "ch_1", Data: []byte(`{"a":1}`)}},
		{200, `{"state":"refused","code":"card_declined"}`, step.Refused{Code: "card_declined"}},
		{200, `{"state":"refused"}`, step.Refused{Code: "refused"}},
		{200, `{"state":"undone","code":"whatever"}`, step.Refused{Code: "undone"}},
		{200, `{"state":"pending","reference":"ch_1"}`, step.Waiting{Reference: "ch_1"}},
		{200, `{"state":"unseen"}`, step.Retry{Code: "unseen", Counts: true}},
		{404, ``, step.Retry{Code: "unseen", Counts: true}},
		{200, ``, step.Unknown{Code: "answer_contradictory"}},
		{200, `{"state":"DONE"}`, step.Unknown{Code: "answer_contradictory"}},
		{200, `{"state":"done"`, step.Unknown{Code: "answer_unreadable"}},
		{202, `{"state":"pending"}`, step.Unknown{Code: "http_202"}},
		{402, `{"outcome":"refused"}`, step.Unknown{Code: "http_402"}},
		{429, ``, step.Unknown{Code: "http_429"}},
		{503, `{"outcome":"not_done"}`, step.Unknown{Code: "http_503"}},
		{302, ``, step.Unknown{Code: "http_302"}},
	} {
		w, url := lay(t, says(a.status, a.body))
		c := aCall(fsm.Charge)
		if got := withoutDetail(lookerAt(t, url+"/look?shop=a%20b").Lookup(t.Context(), c)); !reflect.DeepEqual(got, a.want) {
			t.Errorf("%d %s: %#v, want %#v", a.status, a.body, got, a.want)
		}
		r := w.seen()[0]
		if r.method != http.MethodGet || r.uri != "/look?shop=a%20b&key="+c.Key(step.Do) || r.header.Get("webhook-id") != c.Key(step.Do) {
			t.Errorf("%s %s %v", r.method, r.uri, r.header)
		}
		checkSignature(t, &r)
	}
}

func lookerAt(t *testing.T, url string) step.Looker {
	t.Helper()
	e := executorOf(t, policy.Step{Executor: policy.HTTP, URL: url, UndoURL: url, LookupURL: url, Secret: secretOf(t, secretText)}, fsm.Charge)
	looker, ok := e.(step.Looker)
	if !ok {
		t.Fatalf("%T can't be asked", e)
	}
	return looker
}

// A look-up that nobody answers says nothing of the Do, not even that it was not seen.
func TestALookupThatFailsIsUnknown(t *testing.T) {
	t.Parallel()
	if r := lookerAt(t, nobody(t)).Lookup(t.Context(), aCall(fsm.Charge)); kind(r) != "unknown" {
		t.Errorf("%#v", r)
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	const date, later = "Sat, 21 Nov 2026 15:00:00 GMT", "Sat, 21 Nov 2026 15:01:30 GMT"
	for text, want := range map[string]time.Duration{
		"": 0, "0": 0, "7": 7 * time.Second, "1.5": 0, "-3": 0, "soon": 0, "4294967295": 365 * 24 * time.Hour, "99999999999999999999": 0,
		later: 90 * time.Second, "Sat, 21 Nov 2026 14:00:00 GMT": 0, "Sat, 21 Nov 9999 14:00:00 GMT": 365 * 24 * time.Hour,
	} {
		for status, got := range map[int]func(step.Result) time.Duration{
			429: func(r step.Result) time.Duration { return r.(step.Retry).After },
			503: func(r step.Result) time.Duration { return r.(step.Unknown).After },
		} {
			if after := got(answered(t, step.Do, says(status, "", "Retry-After", text, "Date", date))); after != want {
				t.Errorf("%d with Retry-After %q: %s, want %s", status, text, after, want)
			}
		}
	}
}

func TestWordsOfAnAnswer(t *testing.T) {
	t.Parallel()
	t.Run("are cut and cleaned", func(t *testing.T) {
		t.Parallel()
		body := fmt.Sprintf(`{"code":"a\nb\u001b[31m\u202e%s","detail":"%s"}`, strings.Repeat("é", 300), strings.Repeat("\\ud83d\\ude00", 300))
		r := answered(t, step.Do, says(402, body)).(step.Refused)
		if utf8.RuneCountInString(r.Code) != 200 || utf8.RuneCountInString(r.Detail) != 200 || !strings.HasPrefix(r.Code, "a b [31m é") {
			t.Errorf("%q %q", r.Code, r.Detail)
		}
	})
	t.Run("tell no secret and no payment method", func(t *testing.T) {
		t.Parallel()
		for _, status := range []int{402, 429, 503} {
			body := `{"code":"no_pm_card_visa","detail":"` + strings.Repeat("x", 195) + ` pm_card_visa ` + secretText + ` MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}`
			for _, body := range []string{body, strings.Replace(body, strings.Repeat("x", 195), "", 1)} {
				if text := fmt.Sprintf("%#v", answered(t, step.Do, says(status, body))); strings.Contains(text, "pm_c") || strings.Contains(text, "MfKQ") {
					t.Error(text)
				}
			}
		}
	})
	t.Run("keep a code that has a short name in it", func(t *testing.T) {
		t.Parallel()
		_, url := lay(t, says(402, `{"code":"card_declined","detail":"card"}`))
		c := aCall(fsm.Charge)
		c.PaymentMethod = "card"
		if r := atURL(t, url, fsm.Charge, "").Do(t.Context(), c); r != (step.Refused{Code: "card_declined", Detail: "***"}) {
			t.Errorf("%#v", r)
		}
	})
}
