package console_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"pawl/client"
	"pawl/internal/console"
	"pawl/test/assert"
)

// local serves a handler to those who have the key.
func local(t *testing.T, handler http.Handler) *console.Local {
	t.Helper()
	l, err := console.ListenLocal(0)
	assert.NoError(t, err)
	mux := http.NewServeMux()
	mux.Handle("/", l.Private(handler))
	l.Start(mux)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// TestLocal: a console without a login is for the person who has its address, under names of this machine.
func TestLocal(t *testing.T) {
	t.Parallel()
	l := local(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "cookie %q, query %q", r.Header.Get("Cookie"), r.URL.RawQuery)
	}))
	_, port, _ := strings.Cut(strings.TrimPrefix(l.Address(), "http://"), ":")
	link := strings.TrimPrefix(l.Link("/console/lab"), l.Address())
	_, key, _ := strings.Cut(link, "=")
	cookie := "pawl-console-" + port + "=" + key
	for _, c := range []struct {
		what, path, host, cookie string
		status                   int
		says                     string
	}{
		{"the link", link, "", "", 303, ""},
		{"the link, under another name of this machine", link, "localhost:" + port, "", 303, ""},
		{"the link, under a name that leads here", link, "pawl.evil.example", "", 421, ""},
		{"with the key in a cookie", "/console/lab?a=b", "", "other=1; " + cookie, 200, `cookie "", query "a=b"`},
		{"with the key in a cookie, under a name that leads here", "/console/lab", "evil.example:" + port, cookie, 421, ""},
		{"under an address of another machine", "/console/lab", "192.0.2.1:" + port, cookie, 421, ""},
		{"without a key", "/console/lab", "", "", 403, "The command printed it"},
		{"with another key", "/console/lab?key=" + strings.Repeat("A", len(key)), "", "", 403, ""},
		{"with no key in a cookie", "/console/lab", "", "pawl-console-" + port + "=", 403, ""},
		{"with the key of another port", "/console/lab", "", "pawl-console-1=" + key, 403, ""},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, l.Address()+c.path, nil)
		assert.NoError(t, err)
		if r.Host = c.host; c.cookie != "" {
			r.Header.Set("Cookie", c.cookie)
		}
		answer, err := http.DefaultTransport.RoundTrip(r)
		assert.NoError(t, err)
		body, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		assert.True(t, answer.StatusCode == c.status && strings.Contains(string(body), c.says), c.what, answer.Status, body)
		if to := answer.Header.Get("Location"); c.status == 303 && to != "/console/lab" {
			t.Errorf("%s: leads to %q", c.what, to)
		}
		if set := answer.Header.Get("Set-Cookie"); (c.status == 303) != strings.Contains(set, "HttpOnly; SameSite=Lax") {
			t.Errorf("%s: sets %q", c.what, set)
		}
	}
}

// TestLocalCloses: a stream does not keep it from closing.
func TestLocalCloses(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	l, err := console.ListenLocal(0)
	assert.NoError(t, err)
	l.Start(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		close(ended)
	}))
	answer, err := http.Get(l.Address())
	assert.NoError(t, err)
	defer answer.Body.Close()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	<-ended
}

// visitor is a browser that has opened the link of a console.
func visitor(t *testing.T, l *console.Local) func(method, path, form string) (status int, body string) {
	t.Helper()
	jar, err := cookiejar.New(nil)
	assert.NoError(t, err)
	browser := &http.Client{Jar: jar}
	ask := func(method, address, form string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), method, address, strings.NewReader(form))
		assert.NoError(t, err)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Sec-Fetch-Site", "same-origin")
		answer, err := browser.Do(r)
		assert.NoError(t, err)
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		assert.NoError(t, err)
		return answer.StatusCode, string(body)
	}
	ask(http.MethodGet, l.Link("/console/lab"), "")
	return func(method, path, form string) (int, string) { return ask(method, l.Address()+path, form) }
}

// TestLab: the lab shows its state, offers what can be done to it, and works while no replica does.
func TestLab(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var asked []console.LabAction
	state := console.LabState{
		Replicas: []console.LabReplica{{1, "http://127.0.0.1:1", console.LabServes}, {2, "http://127.0.0.1:2", console.LabDead}},
		Faults:   []console.LabFault{{Name: "Works"}, {Name: "Slow", Effect: "it is <b>slow</b>", Rules: []string{"slow:1s"}}},
		Rules:    []string{"slow:1s"},
		Books:    console.LabBooks{Completed: 41, Failed: 7, UnderWay: 2, Orders: 50, Charges: 42, ChargesThere: 43, Currency: "USD", Kept: "1234.50", KeptThere: "1250"},
	}
	l := local(t, console.New(console.Config{
		Client: func(*http.Request) (*client.Client, error) { return nil, errors.New("no replica serves") },
		Lab: &console.Lab{
			State: func(context.Context) console.LabState {
				mu.Lock()
				defer mu.Unlock()
				return state
			},
			Do: func(_ context.Context, action console.LabAction) error {
				mu.Lock()
				defer mu.Unlock()
				asked = append(asked, action)
				if len(action.Rules) == 1 && action.Rules[0] == "nonsense" {
					return errors.New("unknown <nonsense>")
				}
				return nil
			},
		},
	}))
	ask := visitor(t, l)
	_, page := ask(http.MethodGet, "/console/lab", "")
	for text, want := range map[string]bool{
		`value="kill"`: true, `value="stop"`: true, `value="start"`: true, `value="go-on"`: false, `<button aria-pressed="true">Slow`: true,
		"it is &lt;b&gt;slow&lt;/b&gt;": true, "<b>slow": false, ">42<": true, ">43<": true, "Pawl: 1 of them of orders under way": true, "do not add up": false, "The difference is of orders that are under way": true, "found by asking": false, ">1,234.50<": true, `<strong class="good">0</strong> charged twice`: true, `href="/console/lab"`: true,
		"is comparing the books": true, `data-live="/console/lab/live"`: true, "<style": false, " style=": false,
	} {
		assert.Equal(t, strings.Contains(page, text), want, text, "on the page", !want, page)
	}
	for _, form := range []url.Values{{"do": {"kill"}, "replica": {"1"}}, {"do": {"provider"}, "rules": {" hang \r\n\r\nslow:1s\n"}}} {
		status, body := ask(http.MethodPost, "/console/lab", form.Encode())
		assert.True(t, status == http.StatusOK && strings.Contains(body, "<h1>Lab</h1>"), status, body)
	}
	status, body := ask(http.MethodPost, "/console/lab", "do=provider&rules=nonsense")
	assert.True(t, status == http.StatusConflict && strings.Contains(body, `id="wrong-rules">unknown &lt;nonsense&gt;`) &&
		strings.Contains(body, ">nonsense</textarea>") && !strings.Contains(body, "data-live"), status, body)
	mu.Lock()
	assert.Equal(t, asked, []console.LabAction{
		{Verb: "kill", Replica: 1}, {Verb: "provider", Rules: []string{"hang", "slow:1s"}}, {Verb: "provider", Rules: []string{"nonsense"}},
	})
	state.Proof = console.LabProof{At: time.Now(), Checks: 21, Broken: []string{"Nothing happened twice."}}
	mu.Unlock()
	_, page = ask(http.MethodGet, "/console/lab", "")
	assert.Contains(t, page, "The books are wrong")
	mu.Lock()
	state.Verdict = "No order was lost."
	mu.Unlock()
	_, page = ask(http.MethodGet, "/console/lab", "")
	assert.Contains(t, page, "<title>0 charged twice · Pawl</title>")
	status, body = ask(http.MethodGet, "/console", "")
	assert.True(t, status == http.StatusBadGateway && strings.Contains(body, "no replica serves") && strings.Contains(body, `href="/console/lab"`), status, body)
}

// TestNoLab: only the demonstration has a lab.
func TestNoLab(t *testing.T) {
	t.Parallel()
	l := local(t, console.New(console.Config{Client: func(*http.Request) (*client.Client, error) { return nil, errors.New("away") }}))
	ask := visitor(t, l)
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		status, body := ask(method, "/console/lab", "do=kill&replica=1")
		assert.True(t, status != http.StatusOK && !strings.Contains(body, "Kill") && !strings.Contains(body, ">Lab</a>"), status, body)
	}
}
