package cli

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

	"pawl/test/assert"
	"pawl/test/dbtest"
)

// TestTokenCommands makes a token, asks what it may do, replaces it and ends it.
func TestTokenCommands(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	run := func(args ...string) string {
		t.Helper()
		return printed(t, append(append([]string{"token"}, args...), "--database-url", database.AdminURL)...)
	}
	refused := func(want string, args ...string) {
		t.Helper()
		out, err := execute(t, append(append([]string{"token"}, args...), "--database-url", database.AdminURL)...)
		assert.True(t, err != nil && strings.Contains(err.Error(), want), "pawl token", strings.Join(args, " "), err, out)
	}
	refused(`must be one of submit, read`, "create", "shop-web", "--roles", "root")
	refused(`must be some of`, "create", "shop-web")
	refused(`lowercase letters`, "create", "Shop", "--roles", "read")
	refused(`87600h`, "create", "shop-web", "--roles", "read", "--expires", "90000h")
	first := strings.TrimSpace(run("create", "shop-web", "--roles", "read,submit", "--rate", "50", "--actor", "maria"))
	matches(t, first, `pawl_[0-9A-Za-z]{59}`)
	refused("a token with this name exists", "create", "shop-web", "--roles", "read")

	said, err := testToken(t, database, first+"\n")
	assert.NoError(t, err)
	for _, text := range []string{"token:shop-web", "submit, read\n", "at most 50 requests per second",
		"GET /api/orders/{orderId}\n", "POST /api/orders/process"} {
		assert.Contains(t, said, text, "it does not say")
	}
	assert.True(t, !strings.Contains(said, "cancel") && !strings.Contains(said, first[20:]), "it says too much", said)

	second := strings.TrimSpace(run("rotate", "shop-web", "--grace", "1h"))
	row := `shop-web +[0-9A-Za-z]{10} +%s +submit,read +\S+Z +"[^"]+" +\S+Z +never\n`
	matches(t, run("list"), `name .*\n`+strings.ReplaceAll(row, "%s", "replaced")+strings.ReplaceAll(row, "%s", "good"))
	matches(t, run("list", "-o", "json"), strings.Repeat(`\{"name":"shop-web","id":"[0-9A-Za-z]{10}","state":"(replaced|good)","roles":\["submit","read"\],"createdAt":"\S+Z","createdBy":".+","expiresAt":"\S+Z"\}\n`, 2))
	assert.True(t, second != first, "it is the same token")
	matches(t, run("link", "shop-web", "--url", "https://pawl.shop.example/"), `https://pawl\.shop\.example/login/[0-9A-Za-z]{43}\n`)
	refused("no such token", "link", "nobody")
	refused("must be https", "link", "shop-web", "--url", "http://pawl.shop.example")
	matches(t, run("link", "shop-web", "--url", "http://127.0.0.1:3000"), `http://127\.0\.0\.1:3000/login/[0-9A-Za-z]{43}\n`)
	refused("must be an absolute http", "link", "shop-web", "--url", "pawl")
	matches(t, run("revoke", "shop-web"), `revoked \S+, \S+; running services see it within seconds\n`)
	refused("no such token", "revoke", "shop-web")
	refused("no such token", "rotate", "shop-web")
	_, err = testToken(t, database, second)
	assert.Contains(t, fmt.Sprint(err), "revoked")
	refused("no such token", "revoke", "nobody")
	rows := 0
	err = database.Pool.QueryRow(t.Context(), `SELECT count(*) FROM books.access_log WHERE event LIKE 'token\_%' AND subject = 'shop-web'`).Scan(&rows)
	assert.True(t, err == nil && rows == 4, rows, "changes are in the log", err)
}

// testToken asks what a token may do, which comes on standard input.
func testToken(t *testing.T, database *dbtest.Database, token string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := Command(nil)
	cmd.SetArgs([]string{"token", "test", "--database-url", database.AdminURL})
	cmd.SetIn(strings.NewReader(token))
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}
