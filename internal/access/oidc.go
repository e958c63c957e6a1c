package access

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"
	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"
)

// Issuer is an OpenID Connect issuer whose tokens are accepted, and what their holders may do. The zero Issuer is none.
type Issuer struct {
	URL      string   // as its tokens name it (iss), byte by byte: https, or http on this machine
	Audience string   // the audience of its tokens (aud)
	Clients  []string // other clients that its tokens may be issued to (azp), besides the audience

	// RoleClaim is the claim with the caller's roles: a string or a list of strings. A dot descends into an object, as
	// in realm_access.roles, unless a claim has the whole name.
	RoleClaim string
	// Roles maps values of the claim to roles. A caller with none of these values may do nothing.
	Roles map[string]Roles
	// Limits apply to each caller with such a token.
	Limits Limits
}

// ErrIssuerAway is returned while the issuer's keys are not known, so that no token can be verified.
var ErrIssuerAway = errors.New("the OpenID Connect issuer does not answer")

const (
	askIssuerEvery = 30 * time.Second // least pause between two requests to the issuer, whatever callers send
	askIssuerLimit = 5 * time.Second

	issuedLeeway = time.Minute // how far the issuer's clock may be ahead of ours

	// Principals are in index entries of at most 2,704 bytes, together with ids of up to 1,020 bytes each.
	maxIssuerLength  = 255
	maxSubjectLength = 255 // OpenID Connect Core, section 2
	maxEmailLength   = 254 // RFC 5321
)

// Check says what is wrong with the settings of an issuer.
func (i *Issuer) Check() error {
	u, err := url.Parse(i.URL)
	switch {
	case err != nil || u.Host == "" || u.User != nil || strings.ContainsAny(i.URL, "?#") || !isPrintableASCII(i.URL):
		return errors.New("issuer: not an absolute URL without query and fragment")
	case len(i.URL) > maxIssuerLength:
		return fmt.Errorf("issuer: longer than %d bytes", maxIssuerLength)
	case u.Scheme != "https" && (u.Scheme != "http" || !isThisMachine(u.Hostname())):
		return errors.New("issuer: must be https, or its answers could be changed on the way")
	case i.Audience == "":
		return errors.New("audience: missing: tokens for other services would count")
	case i.RoleClaim == "" || len(i.Roles) == 0:
		return errors.New("roles: missing: no caller could do anything")
	case i.Limits.Rate < 0 || i.Limits.InFlight < 0 || i.Limits.Bytes < 0:
		return errors.New("rate, in-flight, bytes: must not be negative")
	}
	return nil
}

func isThisMachine(host string) bool {
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.IsLoopback()
}

// issuer verifies the tokens of an Issuer. It is safe for concurrent use.
type issuer struct {
	Issuer
	client  *http.Client
	metrics *metrics

	good *lru.Cache[[sha256.Size]byte, goodToken]

	asking sync.Mutex                   // held during discovery
	ask    *rate.Limiter                // guarded by asking
	found  atomic.Pointer[verification] // nil until the issuer has answered once
}

// verification verifies tokens. It is made by discovery.
type verification struct {
	*oidc.IDTokenVerifier
	keys *keySet
}

func newIssuer(settings Issuer, m *metrics) *issuer {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxConnsPerHost, transport.MaxResponseHeaderBytes = 2, 64<<10
	return &issuer{
		Issuer: settings, metrics: m, ask: rate.NewLimiter(rate.Every(askIssuerEvery), 1),
		good: newLRU[[sha256.Size]byte, goodToken](),
		client: &http.Client{
			Transport: bounded{transport}, Timeout: askIssuerLimit,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// trust accepts the tokens of an issuer, which closes the service. If the issuer does not answer, it is asked again
// later.
func (c *Control) trust(settings Issuer) {
	if err := settings.Check(); err != nil {
		panic("access: " + err.Error())
	}
	c.issuer = newIssuer(settings, c.metrics)
	c.closed.Store(true)
	c.begin(func() {
		if _, err := c.issuer.discovered(c.life); err != nil {
			c.log.Warn("the OpenID Connect issuer does not answer; its tokens are rejected until it does", "issuer", settings.URL, "error", err)
		}
	})
}

// identify returns the holder of a token. Errors: *NotIdentified, ErrIssuerAway.
func (i *issuer) identify(ctx context.Context, token string) (*Principal, error) {
	found, err := i.discovered(context.WithoutCancel(ctx)) // other callers wait for it, too
	if err != nil {
		return nil, err
	}
	if err := found.keys.ready(ctx); err != nil {
		return nil, err
	}
	verified, err := found.Verify(ctx, token)
	if err != nil {
		return nil, refusalOf(err)
	}
	var claims map[string]any
	if err := verified.Claims(&claims); err != nil {
		return nil, errForeign
	}
	if err := i.judge(claims, verified.IssuedAt); err != nil {
		return nil, err
	}
	p := &Principal{Name: i.principalOf(verified.Subject), Email: emailOf(claims), Roles: i.rolesOf(claims), Limits: i.Limits}
	i.remember(token, p, verified.Expiry)
	return p, nil
}

// judge checks what the verifier does not. The verifier expects a token that a client requested itself, but a caller
// may send any token that the issuer has signed. Errors: *NotIdentified.
func (i *issuer) judge(claims map[string]any, issued time.Time) error {
	subject, _ := claims["sub"].(string)
	client, _ := claims["azp"].(string)
	_, hasClient := claims["azp"]
	_, isEvent := claims["events"] // a logout token (Back-Channel Logout, section 2.4), or another security event
	switch {
	case ambiguous(claims), isEvent, hasClient && client != i.Audience && !slices.Contains(i.Clients, client):
		return errForeign
	case issued.After(time.Now().Add(issuedLeeway)):
		return invalid("The token is issued in the future.")
	case len(subject) > maxSubjectLength || !isPrintableASCII(subject):
		return invalid("The subject of the token is missing, longer than 255 characters, or not printable ASCII.")
	}
	return nil
}

// judged are the claims that decide whether a token is accepted, and whose it is.
var judged = []string{"iss", "sub", "aud", "exp", "nbf", "iat", "azp", "events"}

// ambiguous reports whether the verifier, which ignores the case of names, may have read the wrong claim.
func ambiguous(claims map[string]any) bool {
	for name := range claims {
		if slices.ContainsFunc(judged, func(j string) bool { return name != j && strings.EqualFold(name, j) }) {
			return true
		}
	}
	return false
}

// principalOf is issuer and subject, which together identify an account forever (OpenID Connect Core, section 5.7). An
// issuer has no #, so everything after the first one is the subject.
func (i *issuer) principalOf(subject string) string { return "oidc:" + i.URL + "#" + subject }

// emailOf is the address that the issuer has verified, empty if there is none. It is only for display: accounts change
// their addresses, and addresses change owners.
func emailOf(claims map[string]any) string {
	email, _ := claims["email"].(string)
	if verified, _ := claims["email_verified"].(bool); !verified || len(email) > maxEmailLength || !isShown(email) {
		return ""
	}
	return email
}

// isShown reports whether all characters of a text are visible.
func isShown(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r == unicode.ReplacementChar || r == ' ' || !unicode.IsPrint(r) })
}

var printableASCII = regexp.MustCompile(`^[!-~]+( [!-~]+)*$`)

// isPrintableASCII reports whether a text is printable ASCII without blanks at its ends or two in a row, so that no
// other text looks the same.
func isPrintableASCII(text string) bool { return printableASCII.MatchString(text) }

// errForeign has no details, because the claims may be forged.
var errForeign = invalid("The token is not from the issuer of this service, or not for this service.")

func refusalOf(err error) error {
	if expired := new(oidc.TokenExpiredError); errors.As(err, &expired) {
		return errExpired
	}
	return errForeign
}

// discovered returns the result of discovery, and asks the issuer until it has answered once.
func (i *issuer) discovered(ctx context.Context) (*verification, error) {
	if known := i.found.Load(); known != nil {
		return known, nil
	}
	i.asking.Lock()
	defer i.asking.Unlock()
	if known := i.found.Load(); known != nil {
		return known, nil
	}
	if !i.ask.Allow() {
		return nil, ErrIssuerAway
	}
	found, err := i.discover(ctx)
	i.metrics.issuerAsked(err)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrIssuerAway, err)
	}
	i.found.Store(found)
	return found, nil
}

func (i *issuer) discover(ctx context.Context) (*verification, error) {
	ctx = oidc.ClientContext(ctx, i.client)
	provider, err := oidc.NewProvider(ctx, i.URL)
	if err != nil {
		return nil, fmt.Errorf("discover: %w", err)
	}
	var document struct {
		Keys string `json:"jwks_uri"`
	}
	if err := provider.Claims(&document); err != nil {
		return nil, fmt.Errorf("discover: %w", err)
	}
	if strings.HasPrefix(i.URL, "https:") && !strings.HasPrefix(document.Keys, "https:") {
		return nil, errors.New("discover: jwks_uri is not https")
	}
	keys := newKeySet(document.Keys, i.client, i.metrics)
	verifier := oidc.NewVerifier(i.URL, keys, &oidc.Config{ClientID: i.Audience, SupportedSigningAlgs: []string{oidc.RS256, oidc.ES256}})
	return &verification{verifier, keys}, nil
}

// rolesOf are the roles of all values of the claim.
func (i *issuer) rolesOf(claims map[string]any) (roles Roles) {
	for _, value := range claimTexts(claimAt(claims, i.RoleClaim)) {
		for _, role := range i.Roles[value] {
			if !slices.Contains(roles, role) {
				roles = append(roles, role)
			}
		}
	}
	return roles
}

func claimAt(claims map[string]any, name string) any {
	if whole, ok := claims[name]; ok {
		return whole
	}
	first, rest, nested := strings.Cut(name, ".")
	if object, ok := claims[first].(map[string]any); ok && nested {
		return claimAt(object, rest)
	}
	return nil
}

// claimTexts are the strings of a claim that is a string or a list of strings. Other types, such as numbers, are
// ignored.
func claimTexts(claim any) (out []string) {
	list, ok := claim.([]any)
	if !ok {
		list = []any{claim}
	}
	for _, entry := range list {
		if text, ok := entry.(string); ok {
			out = append(out, text)
		}
	}
	return out
}

// goodFor is how long a verified token is accepted without another verification.
const goodFor = 30 * time.Second

type goodToken struct {
	principal *Principal
	until     time.Time
}

// remembered returns the principal of a token that was verified a short time ago, or nil.
func (i *issuer) remembered(token string) *Principal {
	if known, ok := i.good.Get(hashOf(token)); ok && time.Now().Before(known.until) {
		return known.principal
	}
	return nil
}

func (i *issuer) remember(token string, p *Principal, expires time.Time) {
	until := time.Now().Add(goodFor)
	if expires.Before(until) {
		until = expires
	}
	i.good.Add(hashOf(token), goodToken{p, until})
}

const (
	keysFreshFor  = 10 * time.Minute // after this, the keys are read again, because some may be withdrawn
	keysCountFor  = 24 * time.Hour   // while the issuer is away
	maxKeysLength = 1 << 20
)

// The algorithms with public keys that issuers commonly use.
var algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.ES256}

// keySet are the keys of an issuer. The key set of go-oidc asks the issuer for each token that it can't verify, so any
// caller could make it send any number of requests. It also never notices that a key was withdrawn.
type keySet struct {
	url     string
	client  *http.Client
	now     func() time.Time
	metrics *metrics

	asking sync.Mutex    // held while the issuer is asked
	ask    *rate.Limiter // guarded by asking

	mu   sync.Mutex
	keys []jose.JSONWebKey
	at   time.Time // when the issuer last confirmed them
}

func newKeySet(url string, client *http.Client, m *metrics) *keySet {
	return &keySet{url: url, client: client, now: time.Now, metrics: m, ask: rate.NewLimiter(rate.Every(askIssuerEvery), 1)}
}

var (
	errSignature = errors.New("not signed with a key of the issuer")
	errType      = errors.New("neither an ID token nor an access token")
)

// ready returns ErrIssuerAway if the keys are unknown and the issuer does not answer.
func (k *keySet) ready(ctx context.Context) error {
	if keys, _ := k.known(); len(keys) > 0 {
		return nil
	}
	k.asking.Lock()
	defer k.asking.Unlock()
	err := k.askAgain(ctx)
	if keys, _ := k.known(); len(keys) > 0 {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrIssuerAway, err)
}

// VerifySignature returns the payload of a token that is signed with a key of the issuer. The verifier that calls it
// has checked the algorithm, and checks the payload.
func (k *keySet) VerifySignature(ctx context.Context, token string) ([]byte, error) {
	signed, err := jose.ParseSignedCompact(token, algorithms)
	if err != nil {
		return nil, fmt.Errorf("parse token: %w", err)
	}
	if !isIdentity(signed.Signatures[0].Protected.ExtraHeaders[jose.HeaderType]) {
		return nil, errType
	}
	for _, key := range k.candidates(ctx, signed.Signatures[0].Header.KeyID) {
		if payload, err := signed.Verify(&key); err == nil {
			return payload, nil
		}
	}
	return nil, errSignature
}

// isIdentity reports whether a token of that type (typ) identifies its holder: an ID token or an access token (RFC 9068). An issuer
// signs others with the same keys, such as logout+jwt. Keycloak and others give none, or just JWT, to both.
func isIdentity(typ any) bool {
	if typ == nil {
		return true
	}
	text, _ := typ.(string)
	text = strings.ToLower(text) // a media type, of which "application/" may be left out (RFC 7515, section 4.1.9)
	return text == "jwt" || strings.TrimPrefix(text, "application/") == "at+jwt"
}

// candidates returns the keys that may have signed a token. If none is known, it asks the issuer. If the keys are old,
// one caller reads them again, and the others use the known ones.
func (k *keySet) candidates(ctx context.Context, id string) []jose.JSONWebKey {
	keys, age := k.known()
	found := withID(keys, id)
	if len(found) == 0 {
		k.asking.Lock()
	} else if age < keysFreshFor || !k.asking.TryLock() { // fresh, or another caller reads them
		return found
	}
	defer k.asking.Unlock()
	_ = k.askAgain(ctx) // the error is counted there; the known keys stay valid
	keys, _ = k.known()
	return withID(keys, id)
}

// known returns the valid keys.
func (k *keySet) known() (keys []jose.JSONWebKey, age time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	age = k.now().Sub(k.at)
	if age > keysCountFor {
		return nil, age
	}
	return k.keys, age
}

var errAsked = errors.New("it was asked recently")

// askAgain asks the issuer, unless it was asked recently. The caller holds asking.
func (k *keySet) askAgain(ctx context.Context) error {
	if !k.ask.AllowN(k.now(), 1) {
		return errAsked
	}
	err := k.fetch(ctx)
	k.metrics.issuerAsked(err)
	return err
}

// fetch reads the keys of the issuer. It continues if the caller leaves, because all callers use the answer.
func (k *keySet) fetch(ctx context.Context) error {
	request, err := http.NewRequestWithContext(context.WithoutCancel(ctx), http.MethodGet, k.url, nil)
	if err != nil {
		return fmt.Errorf("ask for keys: %w", err)
	}
	response, err := k.client.Do(request)
	if err != nil {
		return fmt.Errorf("ask for keys: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("ask for keys: %s", response.Status)
	}
	keys, err := readKeys(response.Body)
	if err != nil {
		return fmt.Errorf("read keys: %w", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.keys, k.at = keys, k.now()
	return nil
}

// readKeys reads a key set. It leaves out keys of other kinds, which an issuer may have, too.
func readKeys(from io.Reader) (keys []jose.JSONWebKey, err error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.NewDecoder(from).Decode(&set); err != nil {
		return nil, err
	}
	for _, text := range set.Keys {
		var key jose.JSONWebKey
		if err := key.UnmarshalJSON(text); err != nil || !key.IsPublic() || key.Use == "enc" {
			continue
		}
		if key.Algorithm == "" || slices.Contains(algorithms, jose.SignatureAlgorithm(key.Algorithm)) {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("it has no key for RS256 or ES256")
	}
	return keys, nil
}

// withID returns the keys with a key id, or all if the token has none.
func withID(keys []jose.JSONWebKey, id string) []jose.JSONWebKey {
	if id == "" {
		return keys
	}
	return slices.DeleteFunc(slices.Clone(keys), func(k jose.JSONWebKey) bool { return k.KeyID != id })
}

// bounded limits the length of an issuer's answers.
type bounded struct{ *http.Transport }

func (b bounded) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := b.Transport.RoundTrip(request)
	if err == nil {
		response.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(response.Body, maxKeysLength), response.Body}
	}
	return response, err
}
