package access

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"golang.org/x/time/rate"
)

const (
	keysFreshFor  = 10 * time.Minute // then the issuer is asked whether it has withdrawn any
	keysCountFor  = 24 * time.Hour   // while the issuer is away
	maxKeysLength = 1 << 20
)

// The two algorithms whose key is not a secret that somebody could have, and which every issuer has.
var algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.ES256}

// keySet are the keys of an issuer. go-oidc's own asks the issuer again for each token that it can't verify, so anybody
// could have it send as many requests as he likes; and it never notices that a key was withdrawn.
type keySet struct {
	url     string
	client  *http.Client
	now     func() time.Time
	metrics *metrics

	asking sync.Mutex    // held by who asks the issuer
	ask    *rate.Limiter // guarded by asking

	mu   sync.Mutex
	keys []jose.JSONWebKey
	at   time.Time // when the issuer last said so
}

func newKeySet(url string, client *http.Client, m *metrics) *keySet {
	return &keySet{url: url, client: client, now: time.Now, metrics: m, ask: rate.NewLimiter(rate.Every(askIssuerEvery), 1)}
}

var (
	errSignature = errors.New("not signed with a key of the issuer")
	errType      = errors.New("neither an ID token nor an access token")
)

// ready returns ErrIssuerAway if the issuer has not told its keys, and does not now.
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

// VerifySignature returns what a token says if it is signed with a key of the issuer. The verifier that calls it has
// checked the algorithm, and checks what the token says.
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

// isIdentity reports whether a token of that type (typ) says who somebody is: an ID token or an access token (RFC 9068). An issuer
// signs others with the same keys, such as logout+jwt. Keycloak and others give none, or just JWT, to both.
func isIdentity(typ any) bool {
	if typ == nil {
		return true
	}
	text, _ := typ.(string)
	text = strings.ToLower(text) // a media type, of which "application/" may be left out (RFC 7515, section 4.1.9)
	return text == "jwt" || strings.TrimPrefix(text, "application/") == "at+jwt"
}

// candidates are the keys that may have signed a token. The issuer is asked for one that is not known, and now and then
// whether it has withdrawn one: only one caller waits for that.
func (k *keySet) candidates(ctx context.Context, id string) []jose.JSONWebKey {
	keys, age := k.known()
	found := named(keys, id)
	switch {
	case len(found) == 0:
		k.asking.Lock()
	case age < keysFreshFor || !k.asking.TryLock():
		return found
	}
	defer k.asking.Unlock()
	_ = k.askAgain(ctx) // counted; what was known still counts
	keys, _ = k.known()
	return named(keys, id)
}

// known returns the keys that count.
func (k *keySet) known() (keys []jose.JSONWebKey, age time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	age = k.now().Sub(k.at)
	if age > keysCountFor {
		return nil, age
	}
	return k.keys, age
}

var errAsked = errors.New("it was asked a short time ago")

// askAgain asks the issuer, unless it was asked a short time ago. The lock asking is held.
func (k *keySet) askAgain(ctx context.Context) error {
	if !k.ask.AllowN(k.now(), 1) {
		return errAsked
	}
	err := k.fetch(ctx)
	k.metrics.issuerAsked(err)
	return err
}

// fetch reads the keys of the issuer. The caller who asks may leave; the answer is for everybody.
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

// readKeys reads a key set. Keys that nothing can be verified with are left out: an issuer may have any.
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
		return nil, errors.New("it has none for RS256 or ES256")
	}
	return keys, nil
}

// named are the keys that may have signed a token: those of its key id, or all if it names none.
func named(keys []jose.JSONWebKey, id string) []jose.JSONWebKey {
	if id == "" {
		return keys
	}
	return slices.DeleteFunc(slices.Clone(keys), func(k jose.JSONWebKey) bool { return k.KeyID != id })
}

// bounded keeps the answers of an issuer short.
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
