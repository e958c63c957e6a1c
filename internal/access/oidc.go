package access

import (
	"context"
	"errors"
	"fmt"
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
	"golang.org/x/time/rate"
)

// Issuer says whose OpenID Connect tokens count, and what their holders may do. The zero Issuer is none.
type Issuer struct {
	URL      string   // as its tokens name it (iss), byte by byte: https, or http on this machine
	Audience string   // what its tokens must be for (aud)
	Clients  []string // the other clients that its tokens may be issued to (azp); the audience always may

	// RoleClaim is the claim that says what a caller is: a text or a list of texts. A dot leads into an object, as in
	// realm_access.roles, unless a claim has the whole name.
	RoleClaim string
	// Roles are what each value of the claim allows. Whoever has none of these values may do nothing.
	Roles map[string]Roles
	// Limits are those of each caller with such a token.
	Limits Limits
}

// ErrIssuerAway is returned while the issuer could not be asked for its keys: nobody can tell whether the token is good.
var ErrIssuerAway = errors.New("the OpenID Connect issuer does not answer")

const (
	askIssuerEvery = 30 * time.Second // at most one question in this time, whatever callers send
	askIssuerLimit = 5 * time.Second

	issuedLeeway = time.Minute // how far the issuer's clock may be ahead of ours

	// A principal is part of the keys of indexes, beside ids of up to 1,020 bytes each: together they must fit into an
	// entry of 2,704 bytes.
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
		return errors.New("issuer: must be https: whoever can change its answers can make tokens")
	case i.Audience == "":
		return errors.New("audience: missing: tokens for other services would count")
	case i.RoleClaim == "" || len(i.Roles) == 0:
		return errors.New("roles: missing: nobody could do anything")
	case i.Limits.Rate < 0 || i.Limits.InFlight < 0 || i.Limits.Bytes < 0:
		return errors.New("rate, in-flight, bytes: must not be negative")
	}
	return nil
}

func isThisMachine(host string) bool {
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.IsLoopback()
}

// issuer is an Issuer at work. It is safe for concurrent use.
type issuer struct {
	Issuer
	client  *http.Client
	metrics *metrics

	good good // tokens that were verified a short time ago

	asking sync.Mutex                   // held by who asks where its keys are
	ask    *rate.Limiter                // guarded by asking
	found  atomic.Pointer[verification] // nil until the issuer has answered once
}

// verification is what tokens are verified with.
type verification struct {
	*oidc.IDTokenVerifier
	keys *keySet
}

func newIssuer(settings Issuer, m *metrics) *issuer {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxConnsPerHost, transport.MaxResponseHeaderBytes = 2, 64<<10
	return &issuer{
		Issuer: settings, metrics: m, ask: rate.NewLimiter(rate.Every(askIssuerEvery), 1),
		client: &http.Client{
			Transport: bounded{transport}, Timeout: askIssuerLimit,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// trust has the tokens of an issuer count, and ends openness. That the issuer is away is no fault of ours: it is asked
// again.
func (c *Control) trust(settings Issuer) {
	if err := settings.Check(); err != nil {
		panic("access: " + err.Error())
	}
	c.issuer = newIssuer(settings, c.metrics)
	c.closed.Store(true)
	c.begin(func() {
		if _, err := c.issuer.discovered(c.life); err != nil {
			c.log.Warn("the OpenID Connect issuer does not answer; its tokens are refused until it does", "issuer", settings.URL, "error", err)
		}
	})
}

// close ends the connections to the issuer.
func (i *issuer) close() { i.client.CloseIdleConnections() }

// identify returns whose token it is. Errors: *NotIdentified, ErrIssuerAway.
func (i *issuer) identify(ctx context.Context, token string) (*Principal, error) {
	found, err := i.discovered(context.WithoutCancel(ctx)) // the answer serves others, too
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
	i.good.add(token, p, verified.Expiry)
	return p, nil
}

// judge checks what the verifier does not: it is made for the tokens that a client asked for itself, and a caller may send
// any that the issuer has signed. Errors: *NotIdentified.
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

// judged are the claims that decide whether a token counts, and whose it is.
var judged = []string{"iss", "sub", "aud", "exp", "nbf", "iat", "azp", "events"}

// ambiguous reports whether the verifier, to which case does not matter in names, may have read another claim than it should.
func ambiguous(claims map[string]any) bool {
	for name := range claims {
		if slices.ContainsFunc(judged, func(j string) bool { return name != j && strings.EqualFold(name, j) }) {
			return true
		}
	}
	return false
}

// principalOf is issuer and subject, which together are one account for ever (OpenID Connect Core, section 5.7). An issuer
// has no #, so what follows the first one is the subject, whatever is in it.
func (i *issuer) principalOf(subject string) string { return "oidc:" + i.URL + "#" + subject }

// emailOf is the address that the issuer has verified, empty if there is none. People are shown it. It identifies nobody:
// accounts change their address, and addresses change hands.
func emailOf(claims map[string]any) string {
	email, _ := claims["email"].(string)
	if verified, _ := claims["email_verified"].(bool); !verified || len(email) > maxEmailLength || !isShown(email) {
		return ""
	}
	return email
}

// isShown reports whether people see all of a text.
func isShown(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r == unicode.ReplacementChar || r == ' ' || !unicode.IsPrint(r) })
}

var printableASCII = regexp.MustCompile(`^[!-~]+( [!-~]+)*$`)

// isPrintableASCII reports whether no other text looks like this one: it has no blanks at its ends, nor two together.
func isPrintableASCII(text string) bool { return printableASCII.MatchString(text) }

// errForeign says no more, because what a token claims was written by whoever made it.
var errForeign = invalid("The token is not one of the issuer for this service.")

func refusalOf(err error) error {
	if expired := new(oidc.TokenExpiredError); errors.As(err, &expired) {
		return errExpired
	}
	return errForeign
}

// discovered asks the issuer where its keys are, until it has answered once.
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

// rolesOf are the roles of everything that the claim says of the caller.
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

// claimTexts are the texts of a claim that is one, or a list. Nothing else is taken for one: a number is no group.
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
