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
)

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
	At         string `json:"at"` // when it happened; other programs may write it in any form

	Voided decimal.Decimal `json:"voided"` // of an authorization: what was given up, or has ended
}

// headerLimit is how long a provider may take to begin its answer.
const headerLimit = time.Minute

// ErrProvider is wrapped by errors about books that could not be read.
var ErrProvider = errors.New("the provider's books could not be read")

// eachAccount reads the books at a URL line by line. An answer that ends too early is an error: missing lines would
// look like effects that never happened.
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
		return fmt.Errorf("%w: %s could not be reached: %w", ErrProvider, request.URL.Host, innermost(err))
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%w: %s answered %s", ErrProvider, request.URL.Host, response.Status)
	}
	if why := incomplete(response); why != "" {
		return fmt.Errorf("%w: %s: %s", ErrProvider, request.URL.Host, why)
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
			return fmt.Errorf("%w: %s: line %d: %w", ErrProvider, request.URL.Host, n, innermost(err))
		}
	}
}

// innermost is the cause of an error, such as connection refused, without the calls that it has passed.
func innermost(err error) error {
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
		err = inner
	}
	return err
}

// errNoKey is the error for a line that is no account, such as an error report, or a list that wraps only the first
// page. If it were skipped like the key of another service, nothing would seem to have been done.
var errNoKey = errors.New("there is no key: each line must be the JSON of one key")

// incomplete says why an answer is not, or may not be, complete; empty: it is.
func incomplete(r *http.Response) string {
	switch {
	case strings.Contains(strings.Join(r.Header.Values("Link"), ","), `rel="next"`):
		return "the answer is one of several pages, and must have all of the books"
	case r.ProtoMajor == 1 && r.ContentLength < 0 && len(r.TransferEncoding) == 0 && !r.Uncompressed:
		return "the answer has neither a length nor chunks, so it may have been cut off"
	}
	return ""
}
