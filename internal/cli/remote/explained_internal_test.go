package remote

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"pawl/client"
	"pawl/test/assert"
)

func TestExplained(t *testing.T) {
	t.Parallel()
	answer := func(status int64) error {
		return fmt.Errorf("orders: %w", &client.Problem{ProblemBody: client.ProblemBody{Status: status}})
	}
	lost := &url.Error{Op: "Get", URL: "http://127.0.0.1:1", Err: errors.New("connection refused")}
	for _, c := range []struct {
		err         error
		unavailable bool
		says        string
	}{
		{lost, true, "refused: is it running?"},
		{answer(503), true, "503"},
		{answer(500), false, "500"},
		{answer(401), false, "PAWL_TOKEN"},
		{errors.Join(answer(409), lost), false, "409"}, // one of several orders was answered
		{&url.Error{Op: "Get", URL: "http://127.0.0.1:1", Err: context.Canceled}, false, "canceled"},
	} {
		got := explained(c.err)
		assert.True(t, errors.Is(got, ErrUnavailable) == c.unavailable && strings.Contains(got.Error(), c.says), c.err, got)
	}
	assert.NoError(t, explained(nil), "an error of nothing")
}
