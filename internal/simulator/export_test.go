package simulator

import (
	"net/http"
	"os"
	"strconv"
	"time"

	"pawl/internal/signing"
)

// Every is all faults there are.
var Every = faults

// CallbackTo has callbacks answered by a handler in the same bubble, without a network.
func (s *Simulator) CallbackTo(handler func(*http.Request) (*http.Response, error)) {
	s.client.Transport = roundTripper(handler)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Sign signs as the simulator does.
func Sign(text, id, timestamp string, body []byte) (string, error) {
	key, err := signing.Key(text)
	seconds, _ := strconv.ParseInt(timestamp, 10, 64)
	header := http.Header{}
	signing.Sign(header, signing.Message{ID: id, Body: body}, time.Unix(seconds, 0), key)
	return header.Get("webhook-signature"), err
}

// BreakFile has the file written to another place from now on.
func (s *Simulator) BreakFile(path string) {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		panic(err)
	}
	_ = s.journal.file.Close()
	s.journal.file = file
}

// Unwritten is how many bytes wait for the file.
func (s *Simulator) Unwritten() int { return len(s.journal.lines) }
