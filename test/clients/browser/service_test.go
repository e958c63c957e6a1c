package browser

import (
	"bufio"
	"bytes"
	"context"
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

// began starts what all tests share, for the first one that needs it.
func began(t *testing.T) {
	t.Helper()
	shared.start.Do(func() {
		for _, step := range []func() error{makeFolder, fetchPackages, startShop, startService, makeAdmin, startBrowser, fill} {
			if shared.err = step(); shared.err != nil {
				return
			}
		}
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
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
	if _, err := say("../../..", "go", "build", "-o", shared.program, "."); err != nil {
		return err
	}
	policy := filepath.Join(shared.dir, "policy.yaml")
	if err := os.WriteFile(policy, []byte(shared.shop.policy()), 0o644); err != nil { //nolint:gosec // it has no secrets
		return err
	}
	service := exec.Command(shared.program, "serve", "--listen", "127.0.0.1", "--port", "0", "--data-dir", shared.data,
		"--policy", policy, "--log-format", "text", "--log-level", "error", "--response-timeout", "2s")
	service.Stderr = os.Stderr
	out, err := service.StdoutPipe()
	if err != nil {
		return err
	}
	if err := service.Start(); err != nil {
		return err
	}
	shared.stops = append(shared.stops, func() {
		_ = service.Process.Signal(syscall.SIGTERM)
		_, _ = io.Copy(io.Discard, out)
		if err := service.Wait(); err != nil {
			panic(fmt.Sprintf("the service ended with %v", err))
		}
	})
	announcement := regexp.MustCompile(`^pawl serves http://[^\s,]+:(\d+)`)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if match := announcement.FindStringSubmatch(lines.Text()); match != nil {
			shared.url = "http://localhost:" + match[1]
			return nil
		}
	}
	return io.ErrUnexpectedEOF
}

// allRoles are those of the person whose browser most tests look at.
const allRoles = "submit,read,operate,approve,settle,stock,delegate,admin"

// makeAdmin closes the service and makes a client that may do everything.
func makeAdmin() error {
	said, err := pawl("token", "create", "maria", "--roles", allRoles)
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

// linkFor makes a link that signs a browser in as the holder of a token. For roles that had none yet, it makes a token.
func linkFor(t *testing.T, name, roles string) string {
	t.Helper()
	began(t)
	if roles != "" {
		if _, err := pawl("token", "create", name, "--roles", roles); err != nil {
			t.Fatal(err)
		}
	}
	said, err := pawl("token", "link", name, "--url", shared.url)
	if err != nil {
		t.Fatal(err)
	}
	return regexp.MustCompile(`http\S+`).FindString(said)
}

// session opens a link as a browser does whose person presses the button, and returns the cookie.
func session(t *testing.T, link string) *http.Cookie {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, link, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Sec-Fetch-Site", "same-origin")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if len(response.Cookies()) != 1 {
		t.Fatalf("%s: %s", link, response.Status)
	}
	return response.Cookies()[0]
}
