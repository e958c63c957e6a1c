package console_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"strings"
	"testing"

	"pawl/internal/console"
)

// local serves a handler to whoever has the key.
func local(t *testing.T, handler http.Handler) *console.Local {
	t.Helper()
	l, err := console.ListenLocal(0)
	if err != nil {
		t.Fatal(err)
	}
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

// TestLocal: a console without a log-in is for the person who has its address, under names of this machine.
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
		{"without a key", "/console/lab", "", "", 403, "the address that the command has printed"},
		{"with another key", "/console/lab?key=" + strings.Repeat("A", len(key)), "", "", 403, ""},
		{"with no key in a cookie", "/console/lab", "", "pawl-console-" + port + "=", 403, ""},
		{"with the key of another port", "/console/lab", "", "pawl-console-1=" + key, 403, ""},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, l.Address()+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if r.Host = c.host; c.cookie != "" {
			r.Header.Set("Cookie", c.cookie)
		}
		answer, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		if answer.StatusCode != c.status || !strings.Contains(string(body), c.says) {
			t.Errorf("%s: %s %s", c.what, answer.Status, body)
		}
		if to := answer.Header.Get("Location"); c.status == 303 && to != "/console/lab" {
			t.Errorf("%s: leads to %q", c.what, to)
		}
		if set := answer.Header.Get("Set-Cookie"); (c.status == 303) != strings.Contains(set, "HttpOnly; SameSite=Lax") {
			t.Errorf("%s: sets %q", c.what, set)
		}
	}
}

// TestLocalCloses: who listens to a stream does not keep it from closing.
func TestLocalCloses(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	l, err := console.ListenLocal(0)
	if err != nil {
		t.Fatal(err)
	}
	l.Start(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		close(ended)
	}))
	answer, err := http.Get(l.Address())
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	browser := &http.Client{Jar: jar}
	ask := func(method, address, form string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), method, address, strings.NewReader(form))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Sec-Fetch-Site", "same-origin")
		answer, err := browser.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, string(body)
	}
	ask(http.MethodGet, l.Link("/console/lab"), "")
	return func(method, path, form string) (int, string) { return ask(method, l.Address()+path, form) }
}
