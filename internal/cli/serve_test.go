package cli

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pawl/db"
	"pawl/internal/access"
	"pawl/internal/cell"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// dataFolder is the name of a folder that is not there, in one that PostgreSQL's user can pass.
func dataFolder(t *testing.T) string {
	t.Helper()
	parent, err := os.MkdirTemp("/tmp", "pawl-test-") // t.TempDir lets no other user pass
	assert.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(parent) })
	assert.NoError(t, os.Chmod(parent, 0o755))
	return filepath.Join(parent, "pawl")
}

// readers are the commands that look at a database and change nothing, or nothing that is not there.
var readers = []string{"verify", "migrate status", "migrate down", "policy list", "policy show 1", "policy diff 1 2", "policy activate 1"}

func TestOnlySomeCommandsMakeADatabase(t *testing.T) {
	t.Parallel()
	for _, line := range readers {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			dir := dataFolder(t)
			stdout, _, err := executeBoth(t, append(strings.Fields(line), "--data-dir", dir)...)
			assert.True(t, exitCode(err) == exitUnavailable && stdout == "" && strings.Contains(err.Error(), dir) && strings.Contains(err.Error(), "pawl migrate up"),
				"exit code", exitCode(err), "printed", stdout, err)
			_, err = os.Stat(dir)
			assert.True(t, os.IsNotExist(err), "made", dir, err)
		})
	}
	t.Run("migrate up, and then the others read it", func(t *testing.T) {
		t.Parallel()
		dir := dataFolder(t)
		for _, line := range []string{"migrate up", "migrate status", "verify", "doctor"} {
			_, stderr, err := executeBoth(t, append(strings.Fields(line), "--data-dir", dir)...)
			assert.True(t, err == nil && stderr == "database: "+dir+"\n", line, err, "said", stderr)
		}
	})
}

func TestCommandsSayWhichDatabaseTheyRead(t *testing.T) {
	t.Parallel()
	url := dbtest.New(t).URL
	for _, line := range append(readers, "migrate up") {
		if line == "migrate down" {
			continue // would change what the others read
		}
		_, stderr, _ := executeBoth(t, append(strings.Fields(line), "--database-url", url)...)
		assert.True(t, stderr == "database: "+masked(url)+"\n" && strings.HasPrefix(masked(url), "postgres://"), line, "says", stderr)
	}
	for _, flags := range [][]string{nil, {"-o", "json"}} {
		assert.Contains(t, printed(t, append([]string{"verify", "--database-url", url}, flags...)...), masked(url),
			"the report does not name")
	}
}

func TestServeLooksAtThePortBeforeItMakesADatabase(t *testing.T) {
	t.Parallel()
	taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	assert.NoError(t, err)
	t.Cleanup(func() { taken.Close() })
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	dir := dataFolder(t)
	_, err = execute(t, "serve", "--listen", "127.0.0.1", "--port", port, "--data-dir", dir)
	assert.Equal(t, exitCode(err), exitFailure, err)
	assert.Contains(t, fmt.Sprint(err), "another program uses 127.0.0.1:"+port+"; choose another port")
	assert.ErrorIs(t, assert.Err(os.Stat(dir)), os.ErrNotExist)
}

func TestAnnouncement(t *testing.T) {
	t.Parallel()
	a := announcement{url: "http://localhost:3000", data: "/var/lib/pawl", reach: (&config{everywhere: true}).reach()}
	var out, logged bytes.Buffer
	log := slog.New(slog.NewJSONHandler(&logged, nil))
	a.say(&out, log, false)
	want := byPort + "\ndata in /var/lib/pawl\npawl serves http://localhost:3000\n"
	assert.True(t, out.String() == want && logged.Len() == 0, "printed", &out, "logged", &logged)
	out.Reset()
	a.say(&out, log, true)
	const fields = `"msg":"pawl serves","url":"http://localhost:3000","docs":"http://localhost:3000/docs","data":"/var/lib/pawl","reach":"` + byPort + `"}`
	assert.True(t, strings.HasSuffix(logged.String(), fields+"\n") && out.Len() == 0, "printed", &out, "logged", &logged)
}

func TestAddressThatIsShown(t *testing.T) {
	t.Parallel()
	for listen, want := range map[string][2]string{
		"":        {"http://localhost:3000", ""},
		"0.0.0.0": {"http://localhost:3000", everywhere}, "::": {"http://localhost:3000", everywhere},
		"192.0.2.2": {"http://192.0.2.2:3000", ""},
	} {
		bound := &net.TCPAddr{IP: net.ParseIP(cmp.Or(listen, "127.0.0.1")), Port: 3000}
		assert.Equal(t, [2]string{shownURL("http", listen, bound), (&config{Listen: listen}).reach()}, want,
			"--listen", listen)
	}
}

func TestSuggestions(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"serv": "did you mean serve?", "varify": "did you mean verify?", "migrate stats": "did you mean status?", "policy shw 1": "did you mean show?",
		"frobnicate": "; see pawl --help", "serve twice": "", "demo --prot 3": "; see pawl demo --help", "--port abc": ": it is not a number", "orders list --statsu failed": "did you mean --status?", "orders list --frob x": "", "help nix": `unknown command "nix" for "pawl"; see pawl --help`,
		"overview --data-dir x": "this command asks a running service: --url",
	} {
		_, err := execute(t, strings.Fields(line)...)
		assert.True(t, exitCode(err) == exitUsage && (want == "" || strings.HasSuffix(err.Error(), want)) && (want != "" || !strings.Contains(err.Error(), "mean")),
			"pawl", line, err)
	}
}

// TestAnOpenServiceSaysSo: in the log, with the command that closes it, and as a metric. Where a token is required it
// does not start.
func TestAnOpenServiceSaysSo(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	start := func(auth string) (log string, open float64, err error) {
		t.Helper()
		control, err := access.New(t.Context(), db.New(database.Pool), access.Config{})
		assert.NoError(t, err)
		defer control.Stop()
		var said bytes.Buffer
		registry := prometheus.NewRegistry()
		err = checkOpen(t.Context(), &config{Auth: auth}, control, telemetry{registry, slog.New(slog.NewTextHandler(&said, nil))})
		families, gatherErr := registry.Gather()
		assert.Require(t, gatherErr == nil && len(families) == 1, families, gatherErr)
		return said.String(), families[0].GetMetric()[0].GetGauge().GetValue(), err
	}
	log, open, err := start(authOnceThereIsAToken)
	assert.True(t, err == nil && open == 1 && strings.Contains(log, "pawl token create") && strings.Contains(log, "WARN"), log, open, err)
	_, _, err = start(authRequired)
	assert.True(t, exitCode(err) == exitConfig && strings.Contains(err.Error(), "pawl token create"), "where a token is required", err)
	_, err = access.Create(t.Context(), db.New(database.Pool), access.Template{Name: "shop", Lifetime: time.Hour, Actor: "test"})
	assert.NoError(t, err)
	for _, auth := range []string{authOnceThereIsAToken, authRequired} {
		log, open, err := start(auth)
		assert.True(t, err == nil && open == 0 && log == "", "closed, with auth", auth, err, open, log)
	}
}

// TestServeRefusesAnotherCell: the first service stores the cell, and no other one starts.
func TestServeRefusesAnotherCell(t *testing.T) {
	t.Parallel()
	url := dbtest.New(t).URL
	second := cell.Cell{Number: 1, Of: 2}
	place, err := findPlace(t.Context(), &config{Cell: second}, url)
	assert.NoError(t, err)
	assert.NoError(t, place.settle(t.Context(), url))
	for _, same := range []cell.Cell{second, {}} {
		place, err := findPlace(t.Context(), &config{Cell: same}, url)
		assert.True(t, err == nil && place.place.Cell() == second, same, place, err)
	}
	for _, other := range []cell.Cell{cell.All, {Number: 0, Of: 2}, {Number: 2, Of: 4}} {
		_, err := findPlace(t.Context(), &config{Cell: other}, url)
		assert.Equal(t, exitCode(err), exitConfig, other, err)
	}
	_, err = execute(t, "serve", "--cell", "2/2")
	assert.Equal(t, exitCode(err), exitConfig, err)
}

func TestServeRejectsARoleWithoutWarnings(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	check := func() error { return checkDurable(t.Context(), database.URL, true, slog.New(slog.DiscardHandler)) }
	assert.NoError(t, check())
	_, err := database.Pool.Exec(t.Context(), `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET client_min_messages = error', current_database()); END $$`)
	assert.NoError(t, err)
	assert.True(t, check() != nil, "accepted")
}

// TestWhereServeListens: by default, only this machine reaches the service; on a platform, others do.
func TestWhereServeListens(t *testing.T) {
	for _, c := range []struct {
		name  string
		env   map[string]string
		args  []string
		hosts []string
	}{
		{"by default", nil, nil, loopbackHosts},
		{"a port of our own", map[string]string{"PAWL_PORT": "3001"}, nil, loopbackHosts},
		{"PORT, as platforms set it", map[string]string{"PORT": "8080"}, nil, []string{""}},
		{"PORT and a flag for the port", map[string]string{"PORT": "8080"}, []string{"--port", "8081"}, []string{""}},
		{"what Kubernetes says of a service named port", map[string]string{"PORT": "tcp://10.0.0.1:80"}, nil, loopbackHosts},
		{"PORT and an address", map[string]string{"PORT": "8080"}, []string{"--listen", "127.0.0.1"}, []string{"127.0.0.1"}},
		{"an address", nil, []string{"--listen", "192.0.2.7"}, []string{"192.0.2.7"}},
		{"localhost", nil, []string{"--listen", "localhost"}, loopbackHosts},
	} {
		t.Run(c.name, func(t *testing.T) {
			bare(t)
			for name, value := range c.env {
				t.Setenv(name, value)
			}
			cfg, _, err := settings(t, c.args...)
			assert.True(t, err == nil && slices.Equal(cfg.hosts(), c.hosts),
				"listens on", cfg.hosts(), "error", err, "want", c.hosts)
		})
	}
}

func TestNamesThatServeIsAskedUnder(t *testing.T) { //nolint:paralleltest // bare changes the environment
	bare(t)
	cfg, _, err := settings(t, "--public-url=https://pawl.shop.example:8443/pawl", "--allowed-hosts=pawl, pawl.shop.svc")
	want := []string{"pawl", "pawl.shop.svc", "pawl.shop.example:8443"}
	assert.True(t, err == nil && slices.Equal(cfg.allowedHosts(), want), cfg.allowedHosts(), "error", err)
}

// TestBothNamesOfThisMachineAreServed asks by IPv4 and by IPv6: programs differ in what localhost is.
func TestBothNamesOfThisMachineAreServed(t *testing.T) {
	t.Parallel()
	listeners, err := listenAll(t.Context(), loopbackHosts, "0")
	assert.NoError(t, err)
	defer closeAll(listeners)
	assert.True(t, len(listeners) == 1 && onLoopback(listeners), len(listeners), "listeners on a port that is picked")
	assert.True(t, assert.Err(listenAll(t.Context(), []string{"192.0.2.77"}, "0")) != nil, "listens on the address of another machine")
}

func TestConnectionsLeaveFilesForTheWork(t *testing.T) {
	t.Parallel()
	var files syscall.Rlimit
	assert.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files))
	possible := int(min(files.Cur, 1<<30)) * 3 / 4
	for _, c := range []struct {
		cfg  config
		want int
		warn bool
	}{
		{config{MaxConnections: 20, MaxConns: 12}, 20, false},
		{config{MaxConnections: possible, MaxConns: 12}, possible - 12, true},
		{config{MaxConnections: possible - 12, MaxConns: 12, OpsListen: "127.0.0.1:0"}, possible - 12 - operationsConnections, true},
		{config{MaxConnections: possible, MaxConns: possible}, fewestConnections, true},
	} {
		var log bytes.Buffer
		got := connections(&c.cfg, slog.New(slog.NewTextHandler(&log, nil)))
		assert.True(t, got == c.want && (log.Len() > 0) == c.warn, c.cfg, got, "connections, want", c.want, "logged", &log)
	}
}

// TestCertificatesAreReplaced renews a certificate under a service that runs.
func TestCertificatesAreReplaced(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cfg := config{TLSCert: filepath.Join(dir, "tls.crt"), TLSKey: filepath.Join(dir, "tls.key"), MaxConnections: 16}
	assert.Equal(t, exitCode(assert.Err(listening(t.Context(), &cfg, slog.New(slog.DiscardHandler)))), exitConfig, "without the files")
	assert.Equal(t, exitCode(assert.Err(listening(t.Context(), &config{TLSCert: cfg.TLSCert}, slog.New(slog.DiscardHandler)))), exitConfig, "without a key")
	first, second := newKeyPair(t, 1), newKeyPair(t, 2)
	first.write(t, &cfg, 0)
	var log bytes.Buffer
	how, err := listening(t.Context(), &cfg, slog.New(slog.NewTextHandler(&log, nil)))
	assert.NoError(t, err)
	listeners, err := listenAll(t.Context(), []string{"127.0.0.1"}, "0")
	assert.NoError(t, err)
	e := &edge{callers: listeners}
	failed := e.serve(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), nil, how)
	t.Cleanup(func() {
		_ = e.Close()
		assert.ErrorIs(t, <-failed, http.ErrServerClosed)
	})
	serial := func() int64 { return serialOf(t, e.address().String()) }
	assert.Equal(t, serial(), 1, "serves certificate")
	keyPairText{second.cert, first.key}.write(t, &cfg, time.Minute) // half of the new one
	assert.Equal(t, serial(), 1, "serves certificate, with the key of another")
	assert.Contains(t, log.String(), "is not valid")
	second.write(t, &cfg, 2*time.Minute)
	assert.Equal(t, serial(), 2, "the certificate after it was replaced; logged", log.String())
	_, err = tls.Dial("tcp", e.address().String(), &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS11})
	assert.True(t, err != nil, "TLS 1.1 is spoken")
	if request, err := http.Get("http://" + e.address().String() + "/livez"); err == nil {
		request.Body.Close()
		assert.True(t, request.StatusCode != http.StatusOK, "plain HTTP is answered on the same port")
	}
}

// serialOf asks for something by https, and returns the number of the certificate.
func serialOf(t *testing.T, address string) int64 {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Get("https://" + address + "/livez")
	assert.NoError(t, err)
	response.Body.Close()
	assert.True(t, response.ProtoMajor == 1 && response.TLS.Version >= tls.VersionTLS12,
		response.Proto, "by TLS", response.TLS.Version)
	return response.TLS.PeerCertificates[0].SerialNumber.Int64()
}

type keyPairText struct{ cert, key []byte }

func newKeyPair(t *testing.T, serial int64) keyPairText {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	assert.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), DNSNames: []string{"localhost"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	assert.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	assert.NoError(t, err)
	return keyPairText{pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})}
}

// write puts the files there, as if so much later.
func (k keyPairText) write(t *testing.T, cfg *config, later time.Duration) {
	t.Helper()
	for path, text := range map[string][]byte{cfg.TLSCert: k.cert, cfg.TLSKey: k.key} {
		assert.NoError(t, os.WriteFile(path, text, 0o600))
		at := time.Now().Add(later)
		assert.NoError(t, os.Chtimes(path, at, at), "the time of the file can't be set")
	}
}

func TestSimulate(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "simulator.jsonl")
	run := func(keys string, args ...string) (string, error) {
		t.Helper()
		return simulated(t, append(args, "--file", file), func(url string) {
			for key := range strings.FieldsSeq(keys) {
				charge(t, url, key)
			}
		})
	}
	text, err := run("a a b", "--fault", "decline1:no,order=b")
	for _, want := range []string{
		`, books in ` + file, `charge +1 +1 +0 +1 +0 +0\n`, `reserve +0 +0`, `refund +0 +0`, `"USD": charged 1.50, undone or refunded 0.00, kept 1.50\n`, `3 requests; 1 sent again, and done once; 1 asked for what was done already, .*; 0 rejected`,
	} {
		assert.True(t, regexp.MustCompile(want).MatchString(text), "does not say", want, text)
	}
	assert.NoError(t, err)
	text, err = run("a")
	assert.True(t, err == nil && strings.Contains(text, "1 requests; 0 sent again, and done once; 1 asked for what was done already"), "after a restart", err, text)
	for _, args := range [][]string{{"--port", "70000"}, {"--latency", "-1s"}, {"--fault", "explode"}, {"--secret-env", "PAWL_NOT_SET"},
		{"--stripe-webhook", "http://127.0.0.1:1"}, {"--stripe-webhook", "http://127.0.0.1:1", "--stripe-webhook-secret-env", "PAWL_NOT_SET"}, {"word"}} {
		_, err := execute(t, append([]string{"simulate", "--file", ""}, args...)...)
		assert.True(t, exitCode(err) == exitUsage && err != nil, args, "exit code", exitCode(err), "want", exitUsage, err)
	}
	_, err = execute(t, "simulate", "--file", filepath.Join(file, "none"))
	assert.True(t, exitCode(err) == exitFailure && err != nil, "a file that can't be made", err)
}

func TestSimulateEndsWhileARequestHangs(t *testing.T) {
	t.Parallel()
	text, err := simulated(t, []string{"--file", "", "--fault", "hang"}, func(url string) {
		ctx, leave := context.WithCancel(t.Context())
		t.Cleanup(leave)
		hung := make(chan struct{})
		t.Cleanup(func() { <-hung })
		go func() {
			defer close(hung)
			response, err := http.DefaultClient.Do(chargeRequest(ctx, url, "a"))
			if err == nil {
				response.Body.Close()
				t.Error("answered")
			}
		}()
		for !strings.Contains(lookUpKey(t, url, "a"), "in_progress") {
			continue
		}
	})
	assert.True(t, err == nil && strings.Contains(text, "1 requests"), err, text)
}

// simulated runs the command while do runs, and returns what it printed.
func simulated(t *testing.T, args []string, do func(url string)) (string, error) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	reader, out := io.Pipe()
	cmd := Command(nil)
	cmd.SetArgs(append([]string{"simulate", "--port", "0"}, args...))
	cmd.SetOut(out)
	cmd.SetErr(&bytes.Buffer{})
	var failed error
	go func() {
		failed = cmd.ExecuteContext(ctx)
		_ = out.Close()
	}()
	lines := bufio.NewReader(reader)
	first, err := lines.ReadString('\n')
	url := regexp.MustCompile(`http://\S+:\d+`).FindString(first)
	if url != "" {
		do(url)
	}
	stop()
	rest, readErr := io.ReadAll(lines)
	return first + string(rest), errors.Join(err, readErr, failed)
}

func chargeRequest(ctx context.Context, url, key string) *http.Request {
	body := `{"orderId":"` + key + `","step":"charge","operation":"do","generation":0,"amount":"1.50","currency":"USD","item":"w","quantity":1}`
	r, _ := http.NewRequestWithContext(ctx, http.MethodPost, url+"/charge", strings.NewReader(body))
	r.Header.Set("Idempotency-Key", key)
	return r
}

func charge(t *testing.T, url, key string) {
	t.Helper()
	response, err := http.DefaultClient.Do(chargeRequest(t.Context(), url, key))
	assert.NoError(t, err)
	response.Body.Close()
}

func lookUpKey(t *testing.T, url, key string) string {
	t.Helper()
	response, err := http.Get(url + "/lookup?key=" + key)
	assert.NoError(t, err)
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	return string(text)
}
