// Package access identifies callers: by a token, a session of a browser, or the address that a request comes from. It says
// which roles a caller has, and counts what he uses. httpapi calls it, and decides which roles an operation needs.
//
// As long as no token was ever made, the service is open: callers on this machine may do everything, others may process
// orders. Making the first token closes it for good.
package access

import (
	"slices"
	"strings"
)

// Role is a right to do some operations.
type Role string

// The roles. A token has any set of them.
const (
	Submit   Role = "submit"   // process orders, and read those that it submitted
	Read     Role = "read"     // read all orders, their history and the stock
	Operate  Role = "operate"  // cancel, retry, pause, resume and refund orders
	Approve  Role = "approve"  // approve and reject orders
	Settle   Role = "settle"   // say what became of a step: that decides about money
	Stock    Role = "stock"    // change the stock
	Delegate Role = "delegate" // say on whose behalf something is done
	Metrics  Role = "metrics"  // read the metrics, and nothing else
	Admin    Role = "admin"    // tokens, policies, endpoints
)

// Roles is a set of roles.
type Roles []Role

// AllRoles are the roles there are, in the order in which people are shown them.
var AllRoles = Roles{Submit, Read, Operate, Approve, Settle, Stock, Delegate, Metrics, Admin}

// Has reports whether a role is among them.
func (r Roles) Has(role Role) bool { return slices.Contains(r, role) }

func (r Roles) String() string { return strings.Join(texts(r), ", ") }

// Limits are how much a principal may ask for. Zero is no limit.
type Limits struct {
	Rate     int32 // requests in a second
	InFlight int32 // requests at one time
	Bytes    int64 // of bodies in a second, in and out
}

// Principal is who sends a request. It is not changed once it was handed out.
type Principal struct {
	Name   string // in the history: token:shop-web, oidc:https://id.example.com#u-17, local or anonymous
	Email  string // of an OpenID Connect caller, verified by the issuer; people are shown it, nothing is compared with it
	Roles  Roles
	Limits Limits
}

// Has reports whether the principal has a role.
func (p *Principal) Has(role Role) bool { return p.Roles.Has(role) }

// Callers without a credential.
var (
	Local     = &Principal{Name: "local", Roles: AllRoles}          // of an open service, on this machine
	Anonymous = &Principal{Name: "anonymous", Roles: Roles{Submit}} // of an open service, on another machine
	Nobody    = &Principal{Name: "anonymous"}                       // of an operation that is open to everybody: nobody was identified
)
