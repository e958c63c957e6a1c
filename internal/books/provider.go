package books

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/govalues/decimal"

	"pawl/fsm"
)

// Provider is the books of others, to compare ours with.
type Provider struct {
	// URLs are where the books are: a GET of URL/books answers a line of JSON for each key,
	// as docs/simulator.md says. A key that is in the books of two has had its effect at both.
	URLs []string
	// Key is the idempotency key that a step is found by in these books. It is false for what
	// is not compared; without a key, it can't be in them.
	Key func(s Sent) (key string, asked bool)
}

// Sent is a step of an order that was sent to a provider.
type Sent struct {
	OrderID    string
	Step       fsm.Step
	Generation int32
	RefundID   string          // of a refund of the charge; empty: it is the step itself
	Amount     decimal.Decimal // of the order, or of the refund
	Policy     int32           // the version that the order goes by
}

// account is a line of the provider's books.
type account struct {
	Key        string `json:"key"`
	OrderID    string `json:"orderId"`
	Step       string `json:"step"`
	Generation int32  `json:"generation"`
	Amount     string `json:"amount"`
	Currency   string `json:"currency"`
	State      string `json:"state"`
	Reference  string `json:"reference"`
	Effects    int    `json:"effects"`
}

// headerLimit is how long the provider may think before it begins to answer.
const headerLimit = time.Minute

// ErrProvider is wrapped by errors about the provider's books: they could not be read, and
// nothing is known of them.
var ErrProvider = errors.New("provider's books unavailable")

// eachAccount reads the provider's books line by line. Books that end in the middle are
// an error: what is not in them would look as if it were not there.
func eachAccount(ctx context.Context, url string, each func(*account) error) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(url, "/")+"/books", nil)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrProvider, err)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.ResponseHeaderTimeout = headerLimit
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrProvider, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%w: GET %s answers %s", ErrProvider, request.URL.Redacted(), response.Status)
	}
	if why := incomplete(response); why != "" {
		return fmt.Errorf("%w: GET %s: %s", ErrProvider, request.URL.Redacted(), why)
	}
	lines := json.NewDecoder(response.Body)
	for n := 1; ; n++ {
		var a account
		err := lines.Decode(&a)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err == nil && a.Key == "":
			err = errNoKey
		case err == nil:
			err = each(&a)
		}
		if err != nil {
			return fmt.Errorf("%w: GET %s: line %d: %w", ErrProvider, request.URL.Redacted(), n, err)
		}
	}
}

// errNoKey is for a line that is none of the books: a report of an error, or a list that wraps the books, and
// maybe only the first page of them. Taken for somebody else's key, it would look as if nothing had been done.
var errNoKey = errors.New("no key: want a line of JSON for each key")

// incomplete says why an answer is not, or may not be, all of the books.
func incomplete(r *http.Response) string {
	switch {
	case strings.Contains(strings.Join(r.Header.Values("Link"), ","), `rel="next"`):
		return "the answer is one page of several, and the books must be one answer"
	case r.ProtoMajor == 1 && r.ContentLength < 0 && len(r.TransferEncoding) == 0 && !r.Uncompressed:
		return "the answer has neither a length nor chunks, and can't be told from one that was cut off"
	}
	return ""
}
