package cli

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pawl/test/assert"
)

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
			if err != nil || !slices.Equal(cfg.hosts(), c.hosts) {
				t.Errorf("listens on %q, error %v; want %q", cfg.hosts(), err, c.hosts)
			}
		})
	}
}

func TestNamesThatServeIsAskedUnder(t *testing.T) { //nolint:paralleltest // bare changes the environment
	bare(t)
	cfg, _, err := settings(t, "--public-url=https://pawl.shop.example:8443/pawl", "--allowed-hosts=pawl, pawl.shop.svc")
	if want := []string{"pawl", "pawl.shop.svc", "pawl.shop.example:8443"}; err != nil || !slices.Equal(cfg.allowedHosts(), want) {
		t.Errorf("%q, error %v", cfg.allowedHosts(), err)
	}
}

// TestBothNamesOfThisMachineAreServed asks by IPv4 and by IPv6: programs differ in what localhost is.
func TestBothNamesOfThisMachineAreServed(t *testing.T) {
	t.Parallel()
	listeners, err := listenAll(t.Context(), loopbackHosts, "0")
	assert.NoError(t, err)
	defer closeAll(listeners)
	if len(listeners) != 1 || !onLoopback(listeners) {
		t.Errorf("%d listeners on a port that is picked", len(listeners))
	}
	if _, err := listenAll(t.Context(), []string{"192.0.2.77"}, "0"); err == nil { // no address of this machine
		t.Error("listens on the address of another machine")
	}
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
		if got := connections(&c.cfg, slog.New(slog.NewTextHandler(&log, nil))); got != c.want || (log.Len() > 0) != c.warn {
			t.Errorf("%+v: %d connections, want %d; logged %q", c.cfg, got, c.want, &log)
		}
	}
}

// TestCertificatesAreReplaced renews a certificate under a service that runs.
func TestCertificatesAreReplaced(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cfg := config{TLSCert: filepath.Join(dir, "tls.crt"), TLSKey: filepath.Join(dir, "tls.key"), MaxConnections: 16}
	if _, err := listening(t.Context(), &cfg, slog.New(slog.DiscardHandler)); exitCode(err) != exitConfig {
		t.Errorf("without the files: %v", err)
	}
	if _, err := listening(t.Context(), &config{TLSCert: cfg.TLSCert}, slog.New(slog.DiscardHandler)); exitCode(err) != exitConfig {
		t.Errorf("without a key: %v", err)
	}
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
	if n := serial(); n != 1 || !strings.Contains(log.String(), "is not valid") {
		t.Errorf("serves certificate %d, with the key of another; logged\n%s", n, &log)
	}
	second.write(t, &cfg, 2*time.Minute)
	assert.Equal(t, serial(), 2, "serves certificate after it was replaced; logged", &log)
	if _, err := tls.Dial("tcp", e.address().String(), &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS11}); err == nil {
		t.Error("TLS 1.1 is spoken")
	}
	if request, err := http.Get("http://" + e.address().String() + "/livez"); err == nil {
		request.Body.Close()
		if request.StatusCode == http.StatusOK {
			t.Error("plain HTTP is answered on the same port")
		}
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
	if response.ProtoMajor != 1 || response.TLS.Version < tls.VersionTLS12 {
		t.Errorf("%s by TLS %x", response.Proto, response.TLS.Version)
	}
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
		if at := time.Now().Add(later); os.Chtimes(path, at, at) != nil {
			t.Fatal("the time of the file can't be set")
		}
	}
}
