package simulator_test

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pawl/internal/simulator"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// outcomes are what a caller sees that is no answer.
const (
	cut     = "cut in the middle"
	dropped = "closed without an answer"
	never   = "never answered"
)

// TestFaults sends one charge again and again. What it says of callbacks is in TestCallbacks.
func TestFaults(t *testing.T) {
	t.Parallel()
	seen := slices.Clone(callbackFaults)
	for _, c := range []struct {
		rule  string
		wants []string
		books string // after the first request
	}{
		{"approve", []string{"200 ch_1", "200 ch_1 again"}, "live 1"},
		{"decline", []string{"402 refused card_declined", "402 refused card_declined again"}, "refused 0"},
		{"decline1:stolen_card", []string{"402 refused stolen_card", "402 refused stolen_card again"}, "refused 0"},
		{"forget-declines", []string{"402 refused card_declined", "200 ch_1", "200 ch_1 again"}, ""},
		{"slow:1ms", []string{"200 ch_1", "200 ch_1 again"}, "live 1"},
		{"slow:1ms,code=late", []string{"402 refused late", "402 refused late again"}, "refused 0"},
		{"hang1", []string{never, "200 ch_1"}, ""},
		{"refuse-connection2", []string{dropped, dropped, "200 ch_1"}, ""},
		{"timeout-before1", []string{never, "200 ch_1"}, ""},
		{"timeout-after1", []string{never, "200 ch_1 again"}, "live 1"},
		{"timeout-after", []string{never, never, never}, "live 1"},
		{"timeout-after1,code=no", []string{never, "402 refused no again"}, "refused 0"},
		{"cut-after1", []string{cut, "200 ch_1 again"}, "live 1"},
		{"error3:503", []string{"503 error", "503 error", "503 error", "200 ch_1"}, ""},
		{"error-after1", []string{"500 error", "200 ch_1 again"}, "live 1"},
		{"not-done1", []string{"503 not_done not_done", "200 ch_1"}, ""},
		{"rate-limit1:1500ms", []string{"429 not_done rate_limit", "200 ch_1"}, ""},
		{"late-after-void", []string{"200 ch_1", "200 ch_1 again"}, "live 1"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			t.Parallel()
			p := start(t, simulator.Config{})
			p.faults(c.rule)
			for i, want := range c.wants {
				p.sees(call{}, want)
				if i == 0 {
					p.stands("key", c.books)
				}
			}
			assert.True(t, p.Summary().OK(), p.Summary())
		})
		rule, err := simulator.ParseRule(c.rule)
		assert.NoError(t, err)
		seen = append(seen, rule.Fault)
	}
	for _, fault := range simulator.Every {
		assert.True(t, slices.Contains(seen, fault), fault, "is not tested")
	}
}

// sees sends a request and leaves when the simulator says that it will never answer.
func (p *provider) sees(c call, want string) {
	p.t.Helper()
	ctx, leave := context.WithCancel(p.t.Context())
	defer leave()
	number := p.Summary().Requests + 1
	if want == never {
		go func() {
			_, _ = p.Await(p.t.Context(), func(r simulator.Request) bool {
				hangs := r.Outcome == "running" && r.Fault == simulator.Hang
				return r.Number == number && (hangs || r.Outcome != "" && r.Outcome != "running" && !r.Answered)
			})
			leave()
		}()
	}
	got, err := p.sendUntil(ctx, c)
	switch {
	case errors.Is(err, context.Canceled):
		got = never
	case errors.Is(err, io.ErrUnexpectedEOF):
		got = cut
	case errors.Is(err, io.EOF):
		got = dropped
	case err != nil:
		got = err.Error()
	}
	assert.Equal(p.t, got, want, "request", number)
	// A request that hangs holds its key until the server has noticed that the caller left.
	_, err = p.Await(p.t.Context(), func(r simulator.Request) bool { return r.Number == number && r.Outcome != "" && r.Outcome != "running" })
	assert.True(p.t, err == nil, err)
}

func TestFaultsOfUndo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rule  string
		wants []string
		books string // after the first request
	}{
		{"decline1:too_late@charge/undo", []string{"402 refused too_late", "200 refunded rf_2"}, "live 1"},
		{"slow:1ms@charge/undo", []string{"200 refunded rf_2", "200 refunded rf_2 again"}, "undone 1"},
		{"hang1@charge/undo", []string{never, "200 refunded rf_2"}, "live 1"},
		{"refuse-connection1@charge/undo", []string{dropped, "200 refunded rf_2"}, "live 1"},
		{"timeout-before1@charge/undo", []string{never, "200 refunded rf_2"}, "live 1"},
		{"timeout-after1@charge/undo", []string{never, "200 refunded rf_2 again"}, "undone 1"},
		{"cut-after1@charge/undo", []string{cut, "200 refunded rf_2 again"}, "undone 1"},
		{"error2@charge/undo", []string{"500 error", "500 error", "200 refunded rf_2"}, "live 1"},
		{"error-after1@charge/undo", []string{"500 error", "200 refunded rf_2 again"}, "undone 1"},
		{"not-done1@charge/undo", []string{"503 not_done not_done", "200 refunded rf_2"}, "live 1"},
		{"rate-limit1@charge/undo", []string{"429 not_done rate_limit", "200 refunded rf_2"}, "live 1"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			t.Parallel()
			p := start(t, simulator.Config{})
			p.faults(c.rule)
			p.answers(call{}, "200 ch_1") // the rule is not about it
			for i, want := range c.wants {
				p.sees(call{key: "undo", undo: "key"}, want)
				if i == 0 {
					p.stands("key", c.books)
				}
			}
			p.answers(call{}, "402 refused voided again")
			p.stands("key", "undone 1")
		})
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	p := start(t, simulator.Config{})
	response, err := p.client.Do(call{item: "rate-limit:1500ms"}.request(t.Context(), p.url))
	assert.NoError(t, err)
	defer response.Body.Close()
	assert.Equal(t, response.Header.Get("Retry-After"), "2", "Retry-After")
}

func TestTime(t *testing.T) {
	t.Parallel()
	t.Run("a slow do holds its key, and is done when its caller has left", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			sim := simulator.New()
			began := time.Now()
			ctx, leave := context.WithTimeout(t.Context(), time.Second)
			defer leave()
			var done time.Duration
			go func() {
				ask(sim, call{item: "slow:5s"}.request(ctx, "http://provider"))
				done = time.Since(began)
			}()
			synctest.Wait()
			assert.Equal(t, ask(sim, call{item: "slow:5s"}.request(t.Context(), "http://provider")), "409 in_progress",
				"answered")
			_, err := sim.Await(t.Context(), func(r simulator.Request) bool { return r.Outcome == "done" })
			assert.True(t, err == nil, err)
			synctest.Wait()
			assert.True(t, done == 5*time.Second && len(sim.Books("")) == 1, "after", done, sim.Books(""))
			assert.NoError(t, sim.Close())
		})
	})
	t.Run("latency is of each that is not a repetition", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			sim, err := simulator.Open(simulator.Config{Latency: 50 * time.Millisecond})
			assert.NoError(t, err)
			for _, c := range []struct {
				call
				took time.Duration
			}{{call{}, 50 * time.Millisecond}, {call{}, 0}, {call{key: "undo", undo: "key"}, 50 * time.Millisecond}} {
				began := time.Now()
				ask(sim, c.call.request(t.Context(), "http://provider"))
				assert.Equal(t, time.Since(began), c.took, c.call, "took")
			}
			assert.NoError(t, sim.Close())
		})
	})
}

func TestTimeOfCallbacks(t *testing.T) {
	t.Parallel()
	t.Run("a callback comes when it was promised, and tells of an undo", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			sim := simulator.New()
			began := time.Now()
			told := map[time.Duration]string{}
			sim.CallbackTo(func(r *http.Request) (*http.Response, error) {
				body, _ := io.ReadAll(r.Body)
				told[time.Since(began)] = string(body)
				return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
			})
			for key, item := range map[string]string{"1": "async:10s", "2": "callback-late:20s", "3": "async:30s"} {
				ask(sim, call{key: key, order: key, item: item, callback: "http://caller/"}.request(t.Context(), "http://provider"))
			}
			ask(sim, call{key: "undo", undo: "3", order: "3", item: "async:30s", callback: "http://caller/"}.request(t.Context(), "http://provider"))
			<-time.After(time.Minute)
			synctest.Wait()
			assert.True(t, len(told) == 3 && strings.Contains(told[10*time.Second], "done") &&
				strings.Contains(told[20*time.Second], "done") && told[30*time.Second] == chargeVoid, "told", told)
			assert.NoError(t, sim.Close())
		})
	})
	t.Run("a callback that is not accepted is given up", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			sim := simulator.New()
			calls := 0
			sim.CallbackTo(func(*http.Request) (*http.Response, error) {
				calls++
				return &http.Response{StatusCode: http.StatusServiceUnavailable, Body: http.NoBody}, nil
			})
			ask(sim, call{item: "answer-twice", callback: "http://caller/"}.request(t.Context(), "http://provider"))
			<-time.After(time.Minute)
			synctest.Wait()
			assert.Equal(t, calls, 5, "called times")
			assert.NoError(t, sim.Close())
		})
	})
}

// callbackFaults are those of TestCallbacks.
var callbackFaults = []simulator.Fault{
	simulator.Async, simulator.CallbackTwice, simulator.CallbackLate, simulator.CallbackNever, simulator.CallbackBefore, simulator.AnswerTwice,
}

// receiver takes callbacks, and breaks the first connections.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex
	bodies []string
	breaks int
	came   chan struct{}
}

func receive(t *testing.T, breaks int) *receiver {
	t.Helper()
	r := &receiver{breaks: breaks, came: make(chan struct{}, 10)}
	r.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) {
		body, _ := io.ReadAll(request.Body)
		r.mu.Lock()
		r.breaks--
		broken := r.breaks >= 0
		if !broken {
			r.bodies = append(r.bodies, string(body))
		}
		r.mu.Unlock()
		if broken {
			panic(http.ErrAbortHandler)
		}
		r.came <- struct{}{}
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) told() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bodies
}

const (
	chargeDone = `{"outcome":"done","reference":"ch_1","data":{"amount":"99.99","currency":"USD"}}`
	found      = `{"state":"done","reference":"ch_1","data":{"amount":"99.99","currency":"USD"}}`
	chargeNo   = `{"outcome":"refused","code":"no","detail":"declined by the fault plan"}`
	chargeVoid = `{"outcome":"refused","code":"voided","detail":"the key was undone"}`
)

func TestCallbacks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rule, answer, lookup string // the look-up right after the answer; empty: it depends
		told                 []string
	}{
		{"async", "202 ch_1", "", []string{chargeDone}},
		{"async:1ms", "202 ch_1", "", []string{chargeDone}},
		{"async:1h", "202 ch_1", `{"state":"pending","reference":"ch_1"}`, nil},
		{"async:1ms,code=no", "202 ch_1", "", []string{chargeNo}},
		{"callback-twice:1ms", "202 ch_1", "", []string{chargeDone, chargeDone}},
		{"callback-twice,code=no", "202 ch_1", "", []string{chargeNo, chargeNo}},
		{"callback-late:1ms", "202 ch_1", found, []string{chargeDone}},
		{"callback-late:1h", "202 ch_1", found, nil},
		{"callback-never", "202 ch_1", found, nil},
		{"callback-before", "202 ch_1", found, []string{chargeDone}},
		{"callback-before,code=no", "202", `{"state":"refused","code":"no","detail":"declined by the fault plan"}`, []string{chargeNo}},
		{"answer-twice", "200 ch_1", found, []string{chargeDone}},
		{"answer-twice,code=no", "402 refused no", `{"state":"refused","code":"no","detail":"declined by the fault plan"}`, []string{chargeNo}},
	} {
		t.Run(c.rule, func(t *testing.T) {
			t.Parallel()
			to := receive(t, 0)
			p := start(t, simulator.Config{})
			p.faults(c.rule)
			p.answers(call{callback: to.URL}, c.answer)
			assert.True(t, !strings.HasPrefix(c.rule, "callback-before") || len(to.told()) == 1,
				"answered before the callback was")
			lookup := p.get("/lookup?key=key")
			assert.True(t, c.lookup == "" || lookup == c.lookup, "looked up", lookup)
			for range c.told {
				<-to.came
			}
			if err := p.Close(); err != nil { // waits for jobs
				t.Error(err)
			}
			assert.Equal(t, strings.Join(to.told(), "\n"), strings.Join(c.told, "\n"), "told")
		})
	}
	t.Run("are not promised to whom can't be called", func(t *testing.T) {
		t.Parallel()
		p := start(t, simulator.Config{})
		for _, fault := range callbackFaults {
			key := string(fault)
			got, err := p.send(call{key: key, order: key, item: key})
			assert.True(t, strings.HasPrefix(got, "200 ch_"), fault, got, err)
		}
	})
	t.Run("are tried again when the connection breaks", func(t *testing.T) {
		t.Parallel()
		to := receive(t, 2)
		p := start(t, simulator.Config{})
		p.answers(call{callback: to.URL, item: "async:0s"}, "202 ch_1")
		<-to.came
	})
}

func TestPending(t *testing.T) {
	t.Parallel()
	t.Run("is answered as before until it is decided", func(t *testing.T) {
		t.Parallel()
		to := receive(t, 0)
		p := start(t, simulator.Config{})
		c := call{callback: to.URL, item: "async:1h"}
		p.answers(c, "202 ch_1")
		p.answers(c, "202 ch_1 again")
		p.stands("key", "pending 0")
	})
	t.Run("is prevented by an undo", func(t *testing.T) {
		t.Parallel()
		to := receive(t, 0)
		p := start(t, simulator.Config{File: write(t, nil)})
		c := call{callback: to.URL, item: "async:1h"}
		p.answers(c, "202 ch_1")
		p.answers(call{key: "undo", undo: "key", item: c.item}, "200 voided")
		p.answers(c, "402 refused voided again")
		p.stands("key", "voided 0")
	})
	t.Run("is decided after an unclean stop", func(t *testing.T) {
		t.Parallel()
		to := receive(t, 0)
		p := start(t, simulator.Config{File: write(t, nil)})
		c := call{callback: to.URL, item: "async:1h"}
		p.answers(c, "202 ch_1")
		p.answers(call{key: "other", callback: to.URL, item: c.item}, "202 ch_2")
		p.answers(call{key: "undo", undo: "other", item: c.item}, "200 voided")

		file := crash(t, p.file)
		text, err := os.ReadFile(file)
		assert.NoError(t, err)
		hurried := strings.ReplaceAll(string(text), `"delay":3600000000000`, `"delay":0`)
		q := start(t, simulator.Config{File: write(t, []byte(hurried))})
		<-to.came
		q.answers(c, "200 ch_1 again")
		q.stands("key", "live 1")
		q.stands("other", "voided 0")
		err = q.Close()
		assert.True(t, err == nil && len(to.told()) == 1 && to.told()[0] == chargeDone, "told", to.told(), err)
	})
}

// TestCallbacksToPublicAddressesOnly: who may ask for a step names where its callback goes.
func TestCallbacksToPublicAddressesOnly(t *testing.T) {
	t.Parallel()
	var called atomic.Int32
	desk := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { called.Add(1) }))
	t.Cleanup(desk.Close)
	var said dbtest.Log
	p := start(t, simulator.Config{PublicOnly: true, Log: slog.New(slog.NewTextHandler(&said, nil))})
	assert.NoError(t, p.SetFaults(simulator.Rule{Fault: simulator.Async}))
	c := call{callback: desk.URL}
	response, err := p.client.Do(c.request(t.Context(), p.url))
	assert.NoError(t, err)
	_ = response.Body.Close()
	for deadline := time.Now().Add(time.Minute); !strings.Contains(said.String(), "calls to this address are not allowed"); runtime.Gosched() {
		assert.Require(t, !time.Now().After(deadline), "it is not said that the callback was refused", said.String())
	}
	assert.Equal(t, called.Load(), 0, "called back times")
}

// TestRequestsOfOtherSites: a browser sends them in the name of whoever looks at a page, also where the page's own name
// leads to this machine.
func TestRequestsOfOtherSites(t *testing.T) {
	t.Parallel()
	p := start(t, simulator.Config{})
	for _, c := range []struct {
		method, host string
		header       map[string]string
		want         int
	}{
		{"POST", "", nil, 200},
		{"POST", "", map[string]string{"Sec-Fetch-Site": "same-origin", "Origin": p.url}, 200},
		{"POST", "", map[string]string{"Sec-Fetch-Site": "cross-site"}, 403},
		{"POST", "", map[string]string{"Origin": "http://evil.example"}, 403},
		{"POST", "evil.example:4000", map[string]string{"Origin": "http://evil.example:4000", "Sec-Fetch-Site": "same-origin"}, 403},
		{"GET", "evil.example:4000", map[string]string{"Sec-Fetch-Site": "same-origin"}, 403},
		{"POST", "localhost:4000", map[string]string{"Origin": "http://localhost:4000"}, 200},
		{"POST", "pawl-simulate:4000", nil, 200}, // no browser
	} {
		r, err := http.NewRequestWithContext(t.Context(), c.method, p.url+"/faults", strings.NewReader(`[]`))
		assert.NoError(t, err)
		for name, value := range c.header {
			r.Header.Set(name, value)
		}
		r.Host = cmp.Or(c.host, r.Host)
		response, err := p.client.Do(r)
		assert.NoError(t, err)
		_ = response.Body.Close()
		assert.Equal(t, response.StatusCode, c.want, c.method, r.Host, "with", c.header)
	}
}

func TestSignature(t *testing.T) {
	t.Parallel()
	t.Run("is that of Standard Webhooks", func(t *testing.T) {
		t.Parallel()
		got, err := simulator.Sign("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", []byte(`{"test": 2432232314}`))
		assert.True(t, got == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" && err == nil, got, err)
	})
	t.Run("is asked for when there is a secret", func(t *testing.T) {
		t.Parallel()
		const secret = "a secret that is not in base64"
		p := start(t, simulator.Config{Secret: secret})
		sign := func(at time.Time, with, id string) string {
			r := call{}.request(t.Context(), p.url)
			body, _ := io.ReadAll(r.Body)
			stamp := strconv.FormatInt(at.Unix(), 10)
			signature, _ := simulator.Sign(with, id, stamp, body)
			got, err := p.send(call{header: http.Header{
				"Webhook-Id": {id}, "Webhook-Timestamp": {stamp}, "Webhook-Signature": {"v1,b2xk " + signature},
			}})
			assert.True(t, err == nil, err)
			return got
		}
		const no = "401 not_done bad_request"
		p.answers(call{}, no)
		for _, got := range []string{
			sign(time.Now(), "another secret, just as long", "key"), sign(time.Now().Add(-time.Hour), secret, "key"),
			sign(time.Now(), secret, "of another request"),
		} {
			assert.Equal(t, got, no)
		}
		p.stands("key", "")
		assert.Equal(t, sign(time.Now(), secret, "key"), "200 ch_1")
	})
	t.Run("is on callbacks", func(t *testing.T) {
		t.Parallel()
		const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
		sim, err := simulator.Open(simulator.Config{Secret: secret})
		assert.NoError(t, err)
		good := make(chan bool, 1)
		sim.CallbackTo(func(r *http.Request) (*http.Response, error) {
			body, _ := io.ReadAll(r.Body)
			want, _ := simulator.Sign(secret, "key", r.Header.Get("webhook-timestamp"), body)
			good <- r.Header.Get("webhook-id") == "key" && r.Header.Get("webhook-signature") == want
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
		})
		r := call{item: "answer-twice", callback: "http://caller/"}.request(t.Context(), "http://provider")
		body, _ := io.ReadAll(call{item: "answer-twice", callback: "http://caller/"}.request(t.Context(), "http://provider").Body)
		stamp := strconv.FormatInt(time.Now().Unix(), 10)
		signature, _ := simulator.Sign(secret, "key", stamp, body)
		r.Header.Set("webhook-id", "key")
		r.Header.Set("webhook-timestamp", stamp)
		r.Header.Set("webhook-signature", signature)
		w := httptest.NewRecorder()
		sim.ServeHTTP(w, r)
		assert.True(t, w.Code == http.StatusOK && <-good, w.Code, w.Body)
		assert.NoError(t, sim.Close())
	})
	t.Run("with a secret that can't be read", func(t *testing.T) {
		t.Parallel()
		for _, cfg := range []simulator.Config{{Secret: "whsec_%"}, {Secret: "whsec_"}, {Secret: "15 bytes, or so"}, {StripeWebhookSecret: "whsec_"}} {
			assert.True(t, assert.Err(simulator.Open(cfg)) != nil, "opened with", cfg.Secret+cfg.StripeWebhookSecret)
		}
	})
}
