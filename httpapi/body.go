package httpapi

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
)

// maxBody is how long a body may be, in bytes.
const maxBody = 64 << 10

// buffer is a piece of memory for one body, in or out.
type buffer struct {
	bytes.Buffer
	limit io.LimitedReader
}

var buffers = sync.Pool{New: func() any { return &buffer{} }}

func newBuffer() *buffer {
	b, _ := buffers.Get().(*buffer)
	b.Reset()
	return b
}

func (b *buffer) free() {
	b.limit.R = nil // it belongs to a request
	buffers.Put(b)
}

// read reads the whole body of a request, and lifts the read deadline of the
// connection, which would end a request that waits.
func (b *buffer) read(w http.ResponseWriter, r *http.Request) error {
	err := b.fill(r)
	recordOf(w).length += int64(b.Len())
	_ = huma.SetReadDeadline(w, time.Time{}) // not every writer has a connection
	if err != nil {
		w.Header().Set("Connection", "close") // the rest of the body is not worth reading
		return err
	}
	if b.Len() > 0 {
		return checkMediaType(r.Header)
	}
	return nil
}

func (b *buffer) fill(r *http.Request) error {
	if r.ContentLength > maxBody {
		return newProblem("body_too_large", "")
	}
	if r.ContentLength > smallBody { // its share is for no more than that
		b.Grow(int(r.ContentLength) + bytes.MinRead)
	}
	b.limit = io.LimitedReader{R: r.Body, N: maxBody + 1}
	_, err := b.ReadFrom(&b.limit)
	switch {
	case b.Len() > maxBody:
		return newProblem("body_too_large", "")
	case errors.Is(err, os.ErrDeadlineExceeded):
		return newProblem("request_timeout", "")
	case err != nil:
		return malformedJSON(&malformed{code: "incomplete", detail: "the body ends", offset: b.Len()})
	}
	return nil
}

// checkMediaType takes JSON, and a body of which nothing is said.
func checkMediaType(h http.Header) error {
	if encoding := h.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return newProblem("unsupported_media_type", "", fieldError{Header: "Content-Encoding", Code: "unsupported", Detail: "is not supported; send the body uncompressed"})
	}
	given := h.Get("Content-Type")
	if given == "application/json" || given == "" {
		return nil
	}
	media, parameters, err := mime.ParseMediaType(given)
	json := media == "application/json" || strings.HasPrefix(media, "application/") && strings.HasSuffix(media, "+json")
	charset, named := parameters["charset"]
	if err != nil || !json || named && !strings.EqualFold(charset, "utf-8") {
		return newProblem("unsupported_media_type", "", fieldError{Header: "Content-Type", Code: "unsupported", Detail: "must be application/json in UTF-8"})
	}
	return nil
}
