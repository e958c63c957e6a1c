package browser

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pawl/client"
	"pawl/test/assert"
)

// limit is how long anything may take that is waited for, on a machine that has much else to do.
const limit = time.Minute

// shared is the service and the browser of all tests: both take seconds to start.
var shared struct {
	start sync.Once
	err   error
	stops []func() // in the order in which things were started

	dir     string // a copy of package.json with its packages
	program string
	data    string // folder of the database
	url     string
	api     *client.Client // with all rights
	shop    *shop
	broken  string // the id of the endpoint that takes nothing
	browser context.Context

	signIn  sync.Once
	session *http.Cookie // of maria
}

func TestMain(m *testing.M) {
	defer stopAll() // the exit code of m.Run is that of the process
	m.Run()
}

func stopAll() {
	for len(shared.stops) > 0 {
		last := len(shared.stops) - 1
		shared.stops[last]()
		shared.stops = shared.stops[:last]
	}
}

// began starts what all tests share.
func began(t *testing.T) {
	t.Helper()
	shared.start.Do(func() {
		for _, step := range []func() error{makeFolder, fetchPackages, startShop, startService, makeAdmin, startBrowser, fill} {
			if shared.err = step(); shared.err != nil {
				return
			}
		}
	})
	assert.NoError(t, shared.err)
}

// makeFolder makes a folder that the account can enter, too, under which root's PostgreSQL runs.
func makeFolder() (err error) {
	if shared.dir, err = os.MkdirTemp("/tmp", "pawl-browser-*"); err != nil { // os.TempDir's path can be too long for a socket
		return err
	}
	shared.stops = append(shared.stops, func() { os.RemoveAll(shared.dir) })
	shared.program, shared.data = filepath.Join(shared.dir, "pawl"), filepath.Join(shared.dir, "data")
	return os.Chmod(shared.dir, 0o755)
}

func fetchPackages() error {
	for _, name := range []string{"package.json", "package-lock.json"} {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(shared.dir, name), text, 0o600); err != nil {
			return err
		}
	}
	_, err := say(shared.dir, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	return err
}

func startService() error {
	if _, err := say("../../..", "go", "build", "-ldflags=-s -w", "-o", shared.program, "."); err != nil {
		return err
	}
	policy := filepath.Join(shared.dir, "policy.yaml")
	if err := os.WriteFile(policy, []byte(shared.shop.policy()), 0o644); err != nil { //nolint:gosec // it has no secrets
		return err
	}
	found, stop, err := announced(`^pawl serves http://[^\s,]+:(\d+)`, syscall.SIGTERM, "serve", "--listen", "127.0.0.1", "--port", "0",
		"--data-dir", shared.data, "--policy", policy, "--log-format", "text", "--log-level", "error", "--response-timeout", "2s")
	if err != nil {
		return err
	}
	shared.stops = append(shared.stops, func() {
		if err := stop(); err != nil {
			panic(fmt.Sprintf("the service ended with %v", err))
		}
	})
	shared.url = "http://localhost:" + found[1]
	return nil
}

// announced runs a command of the program, and returns the match in the line that says where it listens. stop ends it.
func announced(pattern string, end os.Signal, arguments ...string) (found []string, stop func() error, err error) {
	program := exec.Command(shared.program, arguments...)
	program.Stderr = os.Stderr
	out, err := program.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := program.Start(); err != nil {
		return nil, nil, err
	}
	stop = func() error {
		_ = program.Process.Signal(end)
		_, _ = io.Copy(io.Discard, out)
		return program.Wait()
	}
	announcement := regexp.MustCompile(pattern)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if found := announcement.FindStringSubmatch(lines.Text()); found != nil {
			return found, stop, nil
		}
	}
	return nil, nil, errors.Join(fmt.Errorf("pawl %q announced nothing", arguments), stop())
}

// makeAdmin closes the service and makes a client with all roles.
func makeAdmin() error {
	said, err := pawl("token", "create", "maria", "--roles", "submit,read,operate,approve,settle,stock,delegate,admin")
	if err != nil {
		return err
	}
	shared.api, err = client.New(shared.url, client.Options{Token: lastLine(said)})
	return err
}

// lastLine is where pawl token create says the token.
func lastLine(said string) string {
	said = strings.TrimSpace(said)
	return said[strings.LastIndex(said, "\n")+1:]
}

// pawl runs a command of the program on the database of the service, and returns what it printed.
func pawl(arguments ...string) (said string, err error) {
	return say(shared.dir, shared.program, append(arguments, "--data-dir", shared.data)...)
}

func say(dir, name string, arguments ...string) (said string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, name, arguments...)
	command.Dir = dir
	var out, log bytes.Buffer
	command.Stdout, command.Stderr = &out, &log
	if err := command.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s%s", name, strings.Join(arguments, " "), err, out.String(), log.String())
	}
	return out.String(), nil
}

// linkFor makes a link that signs a browser in as the holder of a token.
func linkFor(t *testing.T, name string) string {
	t.Helper()
	began(t)
	said, err := pawl("token", "link", name, "--url", shared.url)
	assert.NoError(t, err)
	return regexp.MustCompile(`http\S+`).FindString(said)
}

// session opens a link as the button does, and returns the cookie.
func session(t *testing.T, link string) *http.Cookie {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, link, nil)
	assert.NoError(t, err)
	request.Header.Set("Sec-Fetch-Site", "same-origin")
	response, err := http.DefaultClient.Do(request)
	assert.NoError(t, err)
	defer response.Body.Close()
	assert.Require(t, len(response.Cookies()) == 1, link, response.Status)
	return response.Cookies()[0]
}

// fill stores something of every kind, so that no screen is empty. Tests that change orders make their own.
func fill() error {
	ctx := context.Background()
	return errors.Join(fillStock(ctx), fillWebhooks(ctx), fillOrders(ctx))
}

func fillStock(ctx context.Context) error {
	counted := client.SetInventoryBody{OnHand: 40, Reason: "counted"}
	_, err := shared.api.SetInventory(ctx, "lamp", counted, client.SetInventoryParams{IfNoneMatch: "*"})
	if err == nil {
		_, err = shared.api.AdjustInventory(ctx, "lamp", client.AdjustInventoryBody{Change: -2, Reason: "two are broken"})
	}
	return err
}

func fillWebhooks(ctx context.Context) error {
	for _, of := range [][2]string{{"/hook", "the shop"}, {"/broken", "the warehouse, which is away"}} {
		body := client.WebhookEndpointBody{URL: "http://" + shared.shop.address() + of[0], Description: of[1]}
		made, err := shared.api.CreateWebhookEndpoint(ctx, body)
		if err != nil {
			return err
		}
		if of[0] == "/broken" {
			shared.broken = made.ID
		}
	}
	return nil
}

func fillOrders(ctx context.Context) error {
	for _, body := range []client.ProcessBody{
		{OrderID: "done-1", Amount: "49.90", Item: "lamp", Quantity: new(2), CustomerID: "c-17", Metadata: map[string]string{"cart": "c-1"}},
		{OrderID: "done-2", Amount: "9.99", Item: "widget"},
		{OrderID: "declined-1", Amount: "250", Item: "declined"},
		{OrderID: "declined-2", Amount: "99", Item: "declined"},
		{OrderID: "declined-3", Amount: "1.50", Item: "declined"},
		{OrderID: "stuck-1", Amount: "120", Item: "stuck", CustomerID: "c-18"},
		{OrderID: "stuck-2", Amount: "33", Item: "stuck"},
		{OrderID: "waits-1", Amount: "990000", Item: "yacht", CustomerID: "c-19"},
		{OrderID: "later-1", Amount: "15", Item: "later"},
		{OrderID: "scheduled-1", Amount: "15", Item: "widget", StartAt: time.Now().Add(100 * time.Hour)},
	} {
		if _, err := shared.api.ProcessOrder(ctx, body, client.ProcessOrderParams{Prefer: "wait=1"}); err != nil {
			return err
		}
	}
	_, err := shared.api.RefundOrder(ctx, "done-1", client.RefundBody{Amount: new("12.50"), Reason: "one is broken", RequestID: "ticket-1"})
	return err
}
