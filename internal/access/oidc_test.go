package access

import (
	"cmp"
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
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/coreos/go-oidc/v3/oidc/oidctest"
	"github.com/go-jose/go-jose/v4"

	"pawl/test/assert"
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
	return testKey{id, oidc.RS256, must(rsa.GenerateKey(rand.Reader, 2048))}
}

func newECDSA(id string) testKey {
	return testKey{id, oidc.ES256, must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))}
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
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
	return string(must(json.Marshal(all)))
}

func (i *testIssuer) token(k testKey, changes map[string]any) string {
	return oidctest.SignIDToken(k.private, k.id, k.algorithm, i.claims(changes))
}

// tokenWith is a token whose head says more.
func (i *testIssuer) tokenWith(k testKey, header, changes map[string]any) string {
	options := &jose.SignerOptions{ExtraHeaders: map[jose.HeaderKey]any{"kid": k.id}}
	for name, value := range header {
		options.ExtraHeaders[jose.HeaderKey(name)] = value
	}
	signer := must(jose.NewSigner(jose.SigningKey{Algorithm: jose.SignatureAlgorithm(k.algorithm), Key: k.private}, options))
	return must(must(signer.Sign([]byte(i.claims(changes)))).CompactSerialize())
}

// trusting is what a service has that trusts the issuer.
func (i *testIssuer) trusting(t *testing.T) *issuer {
	t.Helper()
	settings := Issuer{URL: i.URL, Audience: "pawl", Clients: []string{"shop-app"}, RoleClaim: "groups", Roles: map[string]Roles{"ops": {Read, Operate}, "shop": {Submit, Read}}}
	assert.NoError(t, settings.Check())
	trusting := newIssuer(settings, newMetrics(nil))
	t.Cleanup(trusting.client.CloseIdleConnections)
	return trusting
}

// wantRefused wants a credential to be told as not good, and as nothing else.
func wantRefused(t *testing.T, err error, of ...any) {
	t.Helper()
	refused, ok := errors.AsType[*NotIdentified](err)
	assert.True(t, ok && refused.Invalid, append(of, "want a refusal", err)...)
}

func TestOIDC(t *testing.T) {
	t.Parallel()
	i := startIssuer(t, firstKey, otherKey)
	trusting := i.trusting(t)
	for _, c := range []struct {
		name    string
		key     testKey
		changes map[string]any
		header  map[string]any
		want    string
	}{
		{name: "RS256", key: firstKey, want: "maria@example.com [read, operate]"},
		{name: "ES256", key: otherKey, want: "maria@example.com [read, operate]"},
		{name: "another address", changes: map[string]any{"email": "eve@example.com"}, want: "eve@example.com [read, operate]"},
		{name: "an address that was not verified", changes: map[string]any{"email_verified": false}, want: "[read, operate]"},
		{name: "an address of which nothing is said", changes: map[string]any{"email_verified": nil}, want: "[read, operate]"},
		{name: "an address that hides something", changes: map[string]any{"email": "ma\u200bria@example.com"}, want: "[read, operate]"},
		{name: "an endless address", changes: map[string]any{"email": strings.Repeat("m", 255)}, want: "[read, operate]"},
		{name: "one audience of several", changes: map[string]any{"aud": []string{"other", "pawl"}}, want: "maria@example.com [read, operate]"},
		{name: "issued to us", changes: map[string]any{"azp": "pawl"}, want: "maria@example.com [read, operate]"},
		{name: "issued to a client of ours", changes: map[string]any{"azp": "shop-app"}, want: "maria@example.com [read, operate]"},
		{name: "issued by a clock that is a bit ahead", changes: map[string]any{"iat": time.Now().Add(30 * time.Second).Unix()}, want: "maria@example.com [read, operate]"},
		{name: "JWT", header: map[string]any{"typ": "JWT"}, want: "maria@example.com [read, operate]"},
		{name: "an access token", header: map[string]any{"typ": "at+jwt"}, want: "maria@example.com [read, operate]"},
		{name: "an access token by its whole type", header: map[string]any{"typ": "application/at+JWT"}, want: "maria@example.com [read, operate]"},
		{name: "several groups", changes: map[string]any{"groups": []string{"shop", "ops"}, "email": nil}, want: "[submit, read, operate]"},
		{name: "a claim that is a text", changes: map[string]any{"groups": "shop", "email": nil}, want: "[submit, read]"},
		{name: "no group that counts", changes: map[string]any{"groups": []string{"admin", "OPS", "read"}, "email": nil}, want: "[]"},
		{name: "no claim", changes: map[string]any{"groups": nil, "email": nil}, want: "[]"},
		{name: "a claim that is something else", changes: map[string]any{"groups": map[string]any{"ops": true}, "email": nil}, want: "[]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p, err := trusting.identify(t.Context(), i.tokenWith(cmp.Or(c.key, firstKey), c.header, c.changes))
			assert.NoError(t, err)
			got := strings.TrimSpace(fmt.Sprintf("%s [%s]", p.Email, p.Roles))
			assert.True(t, p.Name == "oidc:"+i.URL+"#u-17" && got == c.want, p.Name, got, "want u-17", c.want)
		})
	}
}

// TestOIDCSubjects: whatever an account is called at the issuer, it is nobody else here.
func TestOIDCSubjects(t *testing.T) {
	t.Parallel()
	i := startIssuer(t, firstKey)
	trusting := i.trusting(t)
	others := []string{"local", "anonymous", "system", "token:shop-web", "maria@example.com", "oidc:maria@example.com", "u-17", "#", "a#b", "#a#b",
		i.URL + "#u-17", "oidc:" + i.URL + "#u-17", "U-17", "u 17", strings.Repeat("u", maxSubjectLength)}
	seen := map[string]string{Local.Name: "", Anonymous.Name: "", "system": "", "token:shop-web": ""}
	for _, subject := range others {
		p, err := trusting.identify(t.Context(), i.token(firstKey, map[string]any{"sub": subject}))
		assert.NoError(t, err, subject)
		other, taken := seen[p.Name]
		assert.True(t, !taken, subject, "is", p.Name, "which is", other)
		seen[p.Name] = subject
		issuer, rest, _ := strings.Cut(strings.TrimPrefix(p.Name, "oidc:"), "#")
		assert.True(t, issuer == i.URL && rest == subject, p.Name, "is read as", rest, "of", issuer)
	}
	for name, subject := range map[string]any{
		"none": nil, "empty": "", "a number": 17, "a list": []string{"u-17"}, "too long": strings.Repeat("u", maxSubjectLength+1),
		"a line": "u-17\n", "a NUL": "u-17\x00", "DEL": "u-17\x7f", "a blank before": " u-17", "a blank behind": "u-17 ", "two blanks": "u  17", "a tab": "u\t17",
		"right to left": "u\u202e71", "a zero-width blank": "u\u200b-17", "a line separator": "u\u2028", "a blank that does not break": "u\u00a0",
		"a letter of another script": "\u0443-17", "a full-width letter": "\uff55-17", "U+FFFD": "\ufffd", "private": "\ue000",
	} {
		_, err := trusting.identify(t.Context(), i.token(firstKey, map[string]any{"sub": subject}))
		wantRefused(t, err, "a subject that is", name)
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
		"issued in the future":       i.token(firstKey, map[string]any{"iat": time.Now().Add(issuedLeeway + time.Minute).Unix()}),
		"issued at no time":          i.token(firstKey, map[string]any{"iat": "now"}),
		"of another client":          i.token(firstKey, map[string]any{"azp": "game"}),
		"of a client and another":    i.token(firstKey, map[string]any{"azp": []string{"pawl", "game"}}),
		"of no client":               i.token(firstKey, map[string]any{"azp": ""}),
		"an audience in an audience": i.token(firstKey, map[string]any{"aud": []any{[]string{"pawl"}}}),
		"an audience that begins so": i.token(firstKey, map[string]any{"aud": []string{"pawl-test"}}),
		"a subject in other letters": i.token(firstKey, map[string]any{"\u017fub": "u-18"}),
		"a logout token":             i.tokenWith(firstKey, map[string]any{"typ": "logout+jwt"}, nil),
		"a security event":           i.tokenWith(firstKey, map[string]any{"typ": "secevent+jwt"}, nil),
		"a client's assertion":       i.tokenWith(firstKey, map[string]any{"typ": "client-authentication+jwt"}, nil),
		"a type that is no text":     i.tokenWith(firstKey, map[string]any{"typ": []string{"JWT"}}, nil),
		"an empty type":              i.tokenWith(firstKey, map[string]any{"typ": ""}, nil),
		"a logout token without type": i.token(firstKey, map[string]any{"events": map[string]any{
			"http://schemas.openid.net/event/backchannel-logout": map[string]any{}}}),
		"what nobody understands":       i.tokenWith(firstKey, map[string]any{"crit": []string{"exp"}, "exp": 1}, nil),
		"another key's name":            i.token(testKey{otherKey.id, firstKey.algorithm, firstKey.private}, nil),
		"another key's name, and ES256": i.token(testKey{firstKey.id, otherKey.algorithm, otherKey.private}, nil),
		"a key that it brings":          i.tokenWith(forged, map[string]any{"jwk": jose.JSONWebKey{Key: forged.private.Public(), KeyID: forged.id, Algorithm: forged.algorithm}}, nil),
		"a key that it links to":        i.tokenWith(forged, map[string]any{"jku": stranger.URL + "/keys"}, nil),
		"a key of somebody else":        i.token(forged, nil),
		"no key of the issuer":          i.token(newECDSA("third"), nil),
		"other claims":                  cut[0] + "." + changed + "." + cut[2],
		"no signature":                  cut[0] + "." + cut[1] + ".",
		"none":                          unsigned(i, "none"),
		"None":                          unsigned(i, "None"),
		"HS256 with the public key":     hmacWithPublicKey(i),
		"RS512":                         oidctest.SignIDToken(firstKey.private, firstKey.id, oidc.RS512, i.claims(nil)),
		"nothing":                       "..",
		"no JWT":                        "hello",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := trusting.identify(t.Context(), token)
			wantRefused(t, err)
			assert.True(t, !strings.Contains(err.Error(), stranger.URL), "the answer repeats what the token claims", err)
		})
	}
}

func unsigned(i *testIssuer, algorithm string) string {
	encode := base64.RawURLEncoding.EncodeToString
	return encode(fmt.Appendf(nil, `{"alg":%q,"kid":"first"}`, algorithm)) + "." + encode([]byte(i.claims(nil))) + "."
}

// hmacWithPublicKey is a token whose secret is what everybody knows.
func hmacWithPublicKey(i *testIssuer) string {
	text := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: must(x509.MarshalPKIXPublicKey(firstKey.private.Public()))})
	return oidctest.SignIDToken(text, firstKey.id, "HS256", i.claims(nil))
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
		assert.Equal(t, i.asked.Load(), 1, "requests for keys")
	})
	t.Run("a flood of keys that nobody has costs the issuer one request in 30 s", func(t *testing.T) {
		t.Parallel()
		i, trusting, clock := begin(t)
		flood := func() {
			var callers sync.WaitGroup
			for n := range 40 {
				callers.Go(func() {
					bad := testKey{fmt.Sprint("unknown-", n), otherKey.algorithm, otherKey.private}
					assert.True(t, assert.Err(trusting.identify(t.Context(), i.token(bad, nil))) != nil, "taken")
					bad.id = firstKey.id // a signature that is wrong is no reason to ask either
					assert.True(t, assert.Err(trusting.identify(t.Context(), i.token(bad, nil))) != nil, "taken")
				})
			}
			callers.Wait()
		}
		for want := int64(1); want < 4; want++ {
			flood()
			n := i.asked.Load()
			assert.Require(t, n == want, n, "requests for keys, want", want)
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
		_, err := trusting.identify(t.Context(), i.token(firstKey, nil))
		assert.Require(t, errors.Is(err, ErrIssuerAway), err)
		i.away.Store(false)
		clock.passes(askIssuerEvery)
		mustIdentify(t, trusting, i.token(firstKey, nil))
	})
}

// TestOIDCRemembers: a verified token is believed for half a minute, or until it expires.
func TestOIDCRemembers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(Issuer{}, nil)
		maria := &Principal{Name: "oidc:https://id.example.com#u-17"}
		want := func(token string, want *Principal) {
			t.Helper()
			got := i.remembered(token)
			assert.True(t, got == want, token, "is of", got)
		}
		i.remember("long", maria, time.Now().Add(time.Hour))
		i.remember("short", maria, time.Now().Add(time.Second))
		want("long", maria)
		want("short", maria)
		want("other", nil)
		<-time.After(2 * time.Second)
		want("long", maria)
		want("short", nil)
		<-time.After(goodFor)
		want("long", nil)
		for n := range 2 * rememberedMost {
			i.remember(strconv.Itoa(n), maria, time.Now().Add(time.Hour))
		}
		n := i.good.Len()
		assert.True(t, n <= rememberedMost, n, "are remembered")
	})
}

func TestOIDCIssuerAwayAtFirst(t *testing.T) {
	t.Parallel()
	i := startIssuer(t, firstKey)
	i.away.Store(true)
	trusting := i.trusting(t)
	for range 3 {
		_, err := trusting.identify(t.Context(), i.token(firstKey, nil))
		assert.Require(t, errors.Is(err, ErrIssuerAway), err)
	}
	i.away.Store(false)
	trusting.ask.SetLimit(1e9) // half a minute later
	mustIdentify(t, trusting, i.token(firstKey, nil))
}

func mustIdentify(t *testing.T, trusting *issuer, token string) {
	t.Helper()
	assert.NoError(t, assert.Err(trusting.identify(t.Context(), token)))
}

func TestIssuerSettings(t *testing.T) {
	t.Parallel()
	good := Issuer{URL: "https://id.example.com/realms/shop", Audience: "pawl", RoleClaim: "groups", Roles: map[string]Roles{"ops": {Read}}}
	assert.NoError(t, good.Check())
	for name, change := range map[string]func(*Issuer){
		"no URL":       func(i *Issuer) { i.URL = "" },
		"not https":    func(i *Issuer) { i.URL = "http://id.example.com" },
		"no host":      func(i *Issuer) { i.URL = "https:///x" },
		"a password":   func(i *Issuer) { i.URL = "https://me:secret@id.example.com" },
		"a query":      func(i *Issuer) { i.URL += "?a=b" },
		"a bare ?":     func(i *Issuer) { i.URL += "?" },
		"a fragment":   func(i *Issuer) { i.URL += "#a" },
		"a bare #":     func(i *Issuer) { i.URL += "#" },
		"a look-alike": func(i *Issuer) { i.URL += "\u2028" },
		"too long":     func(i *Issuer) { i.URL += strings.Repeat("a", maxIssuerLength) },
		"no audience":  func(i *Issuer) { i.Audience = "" },
		"no claim":     func(i *Issuer) { i.RoleClaim = "" },
		"no roles":     func(i *Issuer) { i.Roles = nil },
	} {
		bad := good
		change(&bad)
		assert.True(t, bad.Check() != nil, name, "is taken")
	}
}
