package console

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"

	"pawl/client"
)

// InMemory returns the Client of a console in the process of its API. A request of the console reaches the API as if
// the browser had sent it, with the same address, credentials and origin. So the API applies its own rules about roles,
// sessions, addresses and other sites.
func InMemory(api http.Handler) func(*http.Request) (*client.Client, error) {
	return func(person *http.Request) (*client.Client, error) {
		return client.New("http://api.invalid", client.Options{
			HTTPClient: &http.Client{Transport: inMemory{api, person}},
			RetryFor:   -1, // the person sees the error and can try again
		})
	}
}

type inMemory struct {
	api    http.Handler
	person *http.Request
}

// personal reports whether a header says who sends a request, or from where. All headers of proxies must be included:
// with any of them, the API does not grant the request the rights of this machine.
func personal(header string) bool {
	switch header {
	case "Authorization", "Cookie", "Origin", "Sec-Fetch-Site", "Forwarded", "Via", "X-Real-Ip":
		return true
	}
	return strings.HasPrefix(header, "X-Forwarded-")
}

var errCutOff = errors.New("the answer was cut off")

// RoundTrip answers a request with the handler.
func (t inMemory) RoundTrip(r *http.Request) (_ *http.Response, err error) {
	defer func() { // in a goroutine of a page, a panic would end the process
		if cause := recover(); cause != nil {
			err = errCutOff
		}
	}()
	asked := r.Clone(r.Context())
	for name, values := range t.person.Header {
		if personal(name) {
			asked.Header[name] = values
		}
	}
	asked.Host, asked.RemoteAddr, asked.TLS = t.person.Host, t.person.RemoteAddr, t.person.TLS
	asked.RequestURI = asked.URL.RequestURI()
	if asked.Body == nil {
		asked.Body = http.NoBody
	}
	w := &answer{header: http.Header{}}
	t.api.ServeHTTP(w, asked)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	w.WriteHeader(http.StatusOK)
	return &http.Response{
		StatusCode: w.status, Status: http.StatusText(w.status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.header, Body: io.NopCloser(&w.body), ContentLength: int64(w.body.Len()), Request: r,
	}, nil
}

// answer stores what the handler writes.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
}

func (a *answer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(b)
}
