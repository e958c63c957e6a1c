package httpapi

import (
	"net/http"
	"regexp"
	"strings"

	"pawl/internal/access"
)

// submitterOf is the principal of an order, empty where nobody was identified.
func submitterOf(p *access.Principal) string {
	switch p {
	case access.Local, access.Anonymous, access.Nobody:
		return ""
	}
	return p.Name
}

// actorOf is who asks, which no request can say of itself. It may say for whom it asks, with the role delegate.
func actorOf(w http.ResponseWriter, onBehalfOf string) (string, error) {
	p := principalOf(w)
	if onBehalfOf != "" && !p.Has(access.Delegate) {
		return "", &forbidden{principal: p, roles: access.Roles{access.Delegate}}
	}
	return p.Name, nil
}

// requestIDOf is the name that a request has from its caller, in the body or in the header. Empty: none.
func requestIDOf(r *http.Request, inBody string) (string, error) {
	key, err := idempotencyKey(r.Header)
	switch {
	case err != nil:
		return "", err
	case key == "":
		return inBody, nil
	case inBody != "" && inBody != key:
		return "", badIdempotencyKey("must equal the requestId of the body if both are given")
	}
	return key, nil
}

// The header is a string of structured fields (RFC 9651). Many callers send it without the quotes.
var (
	quotedKey  = regexp.MustCompile(`^"((?:[^"\\]|\\["\\])*)"$`)
	escapedKey = strings.NewReplacer(`\"`, `"`, `\\`, `\`)
)

// idempotencyKey reads the header of that name. Empty: there is none.
func idempotencyKey(h http.Header) (string, error) {
	given := h["Idempotency-Key"]
	if len(given) == 0 {
		return "", nil
	}
	key, bare := given[0], true
	if strings.Contains(key, `"`) {
		parts := quotedKey.FindStringSubmatch(key)
		if bare = parts == nil; !bare {
			key = escapedKey.Replace(parts[1])
		}
	}
	if len(given) > 1 || bare && strings.Contains(key, `"`) || !possible(key) {
		return "", badIdempotencyKey("must be a single value of 1 to 255 visible UTF-8 characters, quoted or not")
	}
	return key, nil
}

func badIdempotencyKey(detail string) error {
	return newProblem("invalid_idempotency_key", "", fieldError{Header: "Idempotency-Key", Code: "invalid", Detail: detail})
}
