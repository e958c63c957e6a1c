package provider

import (
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"time"
)

// maxAnswer is how many bytes of an answer's header, and of its body, are read.
const maxAnswer = 64 << 10

// answer is what came of a request: an answer, or the error that stood in its place.
type answer struct {
	ctxErr   error     // the end of the call, if it came before the answer's
	err      error     // there is no answer, or not all of it
	sent     int32     // on how many connections the request may have been written
	received time.Time // by the clock of the call
	status   int
	header   http.Header
	body     []byte
	tooLong  bool
	unended  bool     // nothing but the end of the connection ends the body
	withheld []string // what must not get into a text
}

// exchange signs a request, sends it and reads the answer. An error means that nothing
// was sent.
func (e *endpoint) exchange(c *Call, request *http.Request, m message) (answer, error) {
	secret, key, err := e.signature.key()
	if err != nil {
		return answer{}, err
	}
	if key != nil {
		sign(request.Header, key, m, c.now())
	}
	request.Header["User-Agent"] = []string{userAgent}
	request.Header["Traceparent"] = []string{c.traceparent()}

	var sent atomic.Int32
	ctx := httptrace.WithClientTrace(request.Context(), &httptrace.ClientTrace{
		// Called before the first byte, for every connection the request is put on, also for
		// one that turns out to be closed: later there is no telling what it carried.
		GotConn: func(httptrace.GotConnInfo) { sent.Add(1) },
	})
	a := answer{withheld: []string{strings.TrimPrefix(secret, secretPrefix), c.PaymentMethod}}
	response, err := e.transport.RoundTrip(request.WithContext(ctx))
	if err == nil {
		err = a.read(response)
	}
	a.sent, a.err, a.received = sent.Load(), err, c.now()
	if err != nil {
		a.ctxErr = ctx.Err()
	}
	return a, nil
}

// read takes in a response, and frees its connection.
func (a *answer) read(response *http.Response) error {
	defer response.Body.Close()
	a.status, a.header = response.StatusCode, response.Header
	if a.status < http.StatusOK { // the rest of a connection that was switched to something else
		return nil
	}
	var err error
	a.body, err = io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if len(a.body) > maxAnswer {
		a.body, a.tooLong, err = nil, true, nil
	}
	a.unended = response.ContentLength < 0 && len(response.TransferEncoding) == 0
	return err
}
