package remote_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"pawl/internal/cli/remote"
	"pawl/test/assert"
)

// TestImport imports a file, again after it was changed.
func TestImport(t *testing.T) {
	t.Parallel()
	url := service(t)
	file := filepath.Join(t.TempDir(), "orders.ndjson")
	store := func(lines ...string) {
		t.Helper()
		assert.NoError(t, os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600))
	}
	var all []string
	for n := range 300 {
		all = append(all, fmt.Sprintf(`{"orderId":"order-%d","amount":"1.50","item":"widget"}`, n))
	}
	store(all...)
	(step{"orders import " + file, "", `^300 orders: 300 completed\n$`}).try(t, url)
	store(append(all, "", `{"orderId":"order-7","amount":"2","item":"widget"}`, `{"orderId":`, `{"orderId":"big","amount":600,"item":"lamp"}`)...)
	var out bytes.Buffer
	err := execute(t.Context(), &out, url, "orders import "+file)
	if err == nil || err.Error() != "2 orders failed, were canceled or were rejected" {
		t.Error(err)
	}
	for _, line := range []string{`line 302: 409 order_conflict: `, `line 303: 400 malformed_json: `, `line 304: order "big" is in progress: approval$`,
		`303 orders: 300 completed, 2 rejected, 1 in progress$`} {
		if !regexp.MustCompile("(?m)^" + line).MatchString(out.String()) {
			t.Errorf("no %s in\n%s", line, &out)
		}
	}
	store(all[0], `[]`)
	(step{"orders import -o json " + file, "1 orders failed",
		`(?s)^({"line":1,"order":{.*}}\n{"line":2,"problem":{.*}}|{"line":2,"problem":{.*}}\n{"line":1,"order":{.*}})\n$`}).try(t, url)
	store(all[0], strings.Repeat("x", 2<<20))
	(step{"orders import " + file, "read line 2: ", `^1 orders: 1 completed\n$`}).try(t, url)
	store()
	(step{"orders import " + file, "", `^0 orders: -\n$`}).try(t, url)
	assert.ErrorIs(t, execute(t.Context(), io.Discard, url, "orders import /nonexistent"), remote.ErrUsage)
	interrupted, stop := context.WithCancel(t.Context())
	stop()
	if err := execute(interrupted, io.Discard, url, "orders import "+file); !errors.Is(err, context.Canceled) ||
		!strings.Contains(err.Error(), "repeat the command") {
		t.Error(err)
	}
}
