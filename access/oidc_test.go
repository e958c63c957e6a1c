package access

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/coreos/go-oidc/v3/oidc/oidctest"
)

// testIssuer is an OpenID Connect provider: discovery and keys over HTTP.
type testIssuer struct {
	*httptest.Server
	asked atomic.Int64 // for keys
	away  atomic.Bool

	mu       sync.Mutex
	provider oidctest.Server
}

func startIssuer(t *testing.T, keys ...testKey) *testIssuer {
	t.Helper()
	i := &testIssuer{}
	i.Server = httptest.NewServer(i)
	t.Cleanup(i.Close)
	i.provider.SetIssuer(i.URL)
	i.has(keys...)
	return i
}

// has changes the keys that it tells.
func (i *testIssuer) has(keys ...testKey) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.provider.PublicKeys = nil
	for _, k := range keys {
		i.provider.PublicKeys = append(i.provider.PublicKeys, oidctest.PublicKey{PublicKey: k.private.Public(), KeyID: k.id, Algorithm: k.algorithm})
	}
}

func (i *testIssuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/keys" {
		i.asked.Add(1)
	}
	if i.away.Load() {
		http.Error(w, "away", http.StatusBadGateway)
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.provider.ServeHTTP(w, r)
}

type testKey struct {
	id, algorithm string
	private       crypto.Signer
}

func newRSA(id string) testKey {
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return testKey{id, oidc.RS256, private}
}

func newECDSA(id string) testKey {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	return testKey{id, oidc.ES256, private}
}

// Making RSA keys takes long under the race detector.
var firstKey, otherKey = newRSA("first"), newECDSA("other")

// claims are those of a good token, with changes; nil leaves one out.
func (i *testIssuer) claims(changes map[string]any) string {
	all := map[string]any{
		"iss": i.URL, "aud": "pawl", "sub": "u-17", "exp": time.Now().Add(time.Hour).Unix(),
		"email": "maria@example.com", "email_verified": true, "groups": []string{"ops", "choir"},
	}
	maps.Copy(all, changes)
	maps.DeleteFunc(all, func(_ string, v any) bool { return v == nil })
	text, err := json.Marshal(all)
	if err != nil {
		panic(err)
	}
	return string(text)
}

func (i *testIssuer) token(k testKey, changes map[string]any) string {
	return oidctest.SignIDToken(k.private, k.id, k.algorithm, i.claims(changes))
}

// trusting is what a service has that trusts the issuer.
func (i *testIssuer) trusting(t *testing.T) *issuer {
	t.Helper()
	settings := Issuer{URL: i.URL, Audience: "pawl", RoleClaim: "groups", Roles: map[string]Roles{"ops": {Read, Operate}, "shop": {Submit, Read}}}
	if err := settings.Check(); err != nil {
		t.Fatal(err)
	}
	trusting := newIssuer(settings, newMetrics(nil))
	t.Cleanup(trusting.close)
	return trusting
}

// wantRefused wants a credential to be told as not good, and as nothing else.
func wantRefused(t *testing.T, err error) {
	t.Helper()
	refused, ok := errors.AsType[*NotIdentified](err)
	if !ok || !refused.Invalid {
		t.Fatalf("%v, want a refusal", err)
	}
}

func TestOIDC(t *testing.T) {
	t.Parallel()
	i := startIssuer(t, firstKey, otherKey)
	trusting := i.trusting(t)
	shop := []string{"shop", "ops"}
	for _, c := range []struct {
		name    string
		key     testKey
		changes map[string]any
		want    string
	}{
		{"an address that was verified", firstKey, nil, "oidc:maria@example.com [read, operate]"},
		{"ES256", otherKey, nil, "oidc:maria@example.com [read, operate]"},
		{"an address that was not verified", firstKey, map[string]any{"email_verified": false}, "oidc:u-17 [read, operate]"},
		{"an address of which nothing is said", firstKey, map[string]any{"email_verified": nil}, "oidc:u-17 [read, operate]"},
		{"one audience of several", firstKey, map[string]any{"aud": []string{"other", "pawl"}}, "oidc:maria@example.com [read, operate]"},
		{"several groups", firstKey, map[string]any{"groups": shop}, "oidc:maria@example.com [submit, read, operate]"},
		{"a claim that is a text", firstKey, map[string]any{"groups": "shop"}, "oidc:maria@example.com [submit, read]"},
		{"no group that counts", firstKey, map[string]any{"groups": []string{"admin", "OPS", "read"}}, "oidc:maria@example.com []"},
		{"no claim", firstKey, map[string]any{"groups": nil}, "oidc:maria@example.com []"},
		{"a claim that is something else", firstKey, map[string]any{"groups": map[string]any{"ops": true}}, "oidc:maria@example.com []"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p, err := trusting.identify(t.Context(), i.token(c.key, c.changes))
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprintf("%s [%s]", p.Name, p.Roles); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

func TestOIDCRefuses(t *testing.T) {
	t.Parallel()
	i, stranger := startIssuer(t, firstKey, otherKey), startIssuer(t)
	trusting := i.trusting(t)
	forged := newECDSA(otherKey.id) // says that it is the other key
	cut := strings.Split(i.token(firstKey, nil), ".")
	changed := base64.RawURLEncoding.EncodeToString([]byte(i.claims(map[string]any{"groups": "shop"})))
	for name, token := range map[string]string{
		"another audience":           i.token(firstKey, map[string]any{"aud": "shop"}),
		"no audience":                i.token(firstKey, map[string]any{"aud": nil}),
		"another issuer":             i.token(firstKey, map[string]any{"iss": stranger.URL}),
		"an issuer with a slash":     i.token(firstKey, map[string]any{"iss": i.URL + "/"}),
		"no issuer":                  i.token(firstKey, map[string]any{"iss": nil}),
		"expired":                    i.token(firstKey, map[string]any{"exp": time.Now().Add(-time.Second).Unix()}),
		"no expiry":                  i.token(firstKey, map[string]any{"exp": nil}),
		"not yet":                    i.token(firstKey, map[string]any{"nbf": time.Now().Add(time.Hour).Unix()}),
		"no subject":                 i.token(firstKey, map[string]any{"sub": nil, "email": nil}),
		"a subject that is a screen": i.token(firstKey, map[string]any{"sub": "u\u202e17\n", "email": nil}),
		"a subject that is long":     i.token(firstKey, map[string]any{"sub": strings.Repeat("u", 201), "email": nil}),
		"a key of somebody else":     i.token(forged, nil),
		"no key of the issuer":       i.token(newECDSA("third"), nil),
		"other claims":               cut[0] + "." + changed + "." + cut[2],
		"no signature":               cut[0] + "." + cut[1] + ".",
		"none":                       unsigned(i, "none"),
		"None":                       unsigned(i, "None"),
		"HS256 with the public key":  hmacWithPublicKey(i),
		"RS512":                      oidctest.SignIDToken(firstKey.private, firstKey.id, oidc.RS512, i.claims(nil)),
		"nothing":                    "..",
		"no JWT":                     "hello",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := trusting.identify(t.Context(), token)
			wantRefused(t, err)
			if strings.Contains(err.Error(), stranger.URL) {
				t.Error("the answer repeats what the token claims:", err)
			}
		})
	}
}

func unsigned(i *testIssuer, algorithm string) string {
	encode := base64.RawURLEncoding.EncodeToString
	return encode(fmt.Appendf(nil, `{"alg":%q,"kid":"first"}`, algorithm)) + "." + encode([]byte(i.claims(nil))) + "."
}

// hmacWithPublicKey is a token whose secret is what everybody knows.
func hmacWithPublicKey(i *testIssuer) string {
	der, err := x509.MarshalPKIXPublicKey(firstKey.private.Public())
	if err != nil {
		panic(err)
	}
	var text bytes.Buffer
	if err := pem.Encode(&text, &pem.Block{Type: "PUBLIC KEY", Bytes: der}); err != nil {
		panic(err)
	}
	return oidctest.SignIDToken(text.Bytes(), firstKey.id, "HS256", i.claims(nil))
}

// clock is a time that tests set.
type clock struct{ atomic.Int64 }

func (c *clock) now() time.Time         { return time.Unix(0, c.Load()) }
func (c *clock) passes(d time.Duration) { c.Add(int64(d)) }
func (c *clock) of(v *verification) *clock {
	c.Store(time.Now().UnixNano())
	v.keys.now = c.now
	return c
}

func TestOIDCKeys(t *testing.T) {
	t.Parallel()
	// begin returns an issuer whose keys are known, and the clock of who knows them.
	begin := func(t *testing.T) (*testIssuer, *issuer, *clock) {
		t.Helper()
		i := startIssuer(t, firstKey)
		trusting := i.trusting(t)
		mustIdentify(t, trusting, i.token(firstKey, nil))
		return i, trusting, new(clock).of(trusting.found.Load())
	}
	t.Run("are asked for once, whoever asks", func(t *testing.T) {
		t.Parallel()
		i, trusting, _ := begin(t)
		for range 20 {
			mustIdentify(t, trusting, i.token(firstKey, nil))
		}
		if n := i.asked.Load(); n != 1 {
			t.Errorf("%d requests for keys", n)
		}
	})
	t.Run("a flood of keys that nobody has costs the issuer one request in 30 s", func(t *testing.T) {
		t.Parallel()
		i, trusting, clock := begin(t)
		flood := func() {
			var callers sync.WaitGroup
			for n := range 40 {
				callers.Go(func() {
					bad := testKey{fmt.Sprint("unknown-", n), otherKey.algorithm, otherKey.private}
					if _, err := trusting.identify(t.Context(), i.token(bad, nil)); err == nil {
						t.Error("taken")
					}
					bad.id = firstKey.id // a signature that is wrong is no reason to ask either
					if _, err := trusting.identify(t.Context(), i.token(bad, nil)); err == nil {
						t.Error("taken")
					}
				})
			}
			callers.Wait()
		}
		for want := int64(1); want < 4; want++ {
			flood()
			if n := i.asked.Load(); n != want {
				t.Fatalf("%d requests for keys, want %d", n, want)
			}
			mustIdentify(t, trusting, i.token(firstKey, nil))
			clock.passes(askIssuerEvery)
		}
	})
	t.Run("that are new are found", func(t *testing.T) {
		t.Parallel()
		i, trusting, clock := begin(t)
		i.has(firstKey, otherKey)
		clock.passes(askIssuerEvery)
		mustIdentify(t, trusting, i.token(otherKey, nil))
		mustIdentify(t, trusting, i.token(firstKey, nil))
	})
	t.Run("that are withdrawn count for ten minutes at most", func(t *testing.T) {
		t.Parallel()
		i, trusting, clock := begin(t)
		i.has(otherKey)
		clock.passes(keysFreshFor + time.Second)
		_, err := trusting.identify(t.Context(), i.token(firstKey, nil))
		wantRefused(t, err)
	})
	t.Run("count for a day while the issuer is away", func(t *testing.T) {
		t.Parallel()
		i, trusting, clock := begin(t)
		i.away.Store(true)
		clock.passes(keysCountFor - time.Minute)
		mustIdentify(t, trusting, i.token(firstKey, nil))
		clock.passes(2 * time.Minute)
		if _, err := trusting.identify(t.Context(), i.token(firstKey, nil)); !errors.Is(err, ErrIssuerAway) {
			t.Fatal(err)
		}
		i.away.Store(false)
		clock.passes(askIssuerEvery)
		mustIdentify(t, trusting, i.token(firstKey, nil))
	})
}

func TestOIDCRemembers(t *testing.T) {
	t.Parallel()
	var g good
	now := time.Now()
	maria := &Principal{Name: "oidc:maria@example.com"}
	g.add("long", maria, now.Add(time.Hour))
	g.add("short", maria, now.Add(time.Second))
	for _, c := range []struct {
		token string
		after time.Duration
		want  *Principal
	}{
		{"long", 0, maria}, {"long", goodFor + time.Second, nil}, {"short", 0, maria}, {"short", 2 * time.Second, nil}, {"other", 0, nil},
	} {
		if got := g.find(c.token, now.Add(c.after)); got != c.want {
			t.Errorf("%s after %s is of %v", c.token, c.after, got)
		}
	}
	for n := range 2 * tokensMost {
		g.add(fmt.Sprint(n), maria, now.Add(time.Hour))
	}
	if len(g.byHash) > tokensMost {
		t.Error(len(g.byHash), "are remembered")
	}
}

func TestOIDCIssuerAwayAtFirst(t *testing.T) {
	t.Parallel()
	i := startIssuer(t, firstKey)
	i.away.Store(true)
	trusting := i.trusting(t)
	for range 3 {
		if _, err := trusting.identify(t.Context(), i.token(firstKey, nil)); !errors.Is(err, ErrIssuerAway) {
			t.Fatal(err)
		}
	}
	i.away.Store(false)
	trusting.ask.SetLimit(1e9) // half a minute later
	mustIdentify(t, trusting, i.token(firstKey, nil))
}

func mustIdentify(t *testing.T, trusting *issuer, token string) {
	t.Helper()
	if _, err := trusting.identify(t.Context(), token); err != nil {
		t.Fatal(err)
	}
}

func TestIssuerSettings(t *testing.T) {
	t.Parallel()
	good := Issuer{URL: "https://id.example.com/realms/shop", Audience: "pawl", RoleClaim: "groups", Roles: map[string]Roles{"ops": {Read}}}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Issuer){
		"no URL":      func(i *Issuer) { i.URL = "" },
		"not https":   func(i *Issuer) { i.URL = "http://id.example.com" },
		"no host":     func(i *Issuer) { i.URL = "https:///x" },
		"a password":  func(i *Issuer) { i.URL = "https://me:secret@id.example.com" },
		"a query":     func(i *Issuer) { i.URL += "?a=b" },
		"no audience": func(i *Issuer) { i.Audience = "" },
		"no claim":    func(i *Issuer) { i.RoleClaim = "" },
		"no roles":    func(i *Issuer) { i.Roles = nil },
	} {
		bad := good
		change(&bad)
		if bad.Check() == nil {
			t.Error(name, "is taken")
		}
	}
}
