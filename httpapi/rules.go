package httpapi

import (
	"slices"

	"pawl/internal/access"
)

// class says what an operation is open to while no token was ever made, and to whom afterwards.
type class int

const (
	closedToOthers class = iota // to this machine; afterwards to those with a role
	inContract                  // to everybody; afterwards to those with a role
	alwaysOpen                  // to everybody, for ever: it has a key of its own, or nothing to hide from others
)

// rule is who may do an operation: those with any of the roles, or where there is none everybody who is known. What is
// always open tells more to those with the roles.
type rule struct {
	class class
	roles access.Roles
}

func needs(roles ...access.Role) rule { return rule{closedToOthers, roles} }

// rules are by the id of the operation, or for what is no operation of the API by its pattern. A route without a rule
// is not served: the service does not start.
var rules = map[string]rule{
	"processOrder":    {inContract, access.Roles{access.Submit}},
	"getOrder":        {inContract, readers}, // with submit alone: what it submitted
	"listOrders":      needs(access.Read),
	"listTransitions": {closedToOthers, readers},
	"listCalls":       {closedToOthers, readers},

	"cancelOrder":       needs(access.Operate),
	"retryOrder":        needs(access.Operate),
	"pauseOrder":        needs(access.Operate),
	"resumeOrder":       needs(access.Operate),
	"approveOrder":      needs(access.Approve),
	"rejectOrder":       needs(access.Approve),
	"settleStepOfOrder": needs(access.Settle),
	"refundOrder":       needs(access.Operate),

	"applyBulkVerb": needs(access.Operate, access.Approve, access.Settle), // and each verb what it needs for one order

	"listInventory":      needs(access.Read, access.Stock),
	"getInventory":       needs(access.Read, access.Stock),
	"setInventory":       needs(access.Stock),
	"adjustInventory":    needs(access.Stock),
	"listStockMovements": needs(access.Read, access.Stock),

	"startVerification": needs(access.Operate),
	"getVerification":   needs(access.Read),

	"listEvents": needs(access.Read),

	"getOverview":     needs(access.Read),
	"getActivity":     needs(access.Read),
	"listErrorGroups": needs(access.Read),

	"listWebhookEndpoints":   needs(access.Read),
	"getWebhookEndpoint":     needs(access.Read),
	"createWebhookEndpoint":  needs(access.Admin),
	"changeWebhookEndpoint":  needs(access.Admin),
	"deleteWebhookEndpoint":  needs(access.Admin),
	"rotateWebhookSecret":    needs(access.Admin),
	"enableWebhookEndpoint":  needs(access.Admin),
	"disableWebhookEndpoint": needs(access.Admin),
	"testWebhookEndpoint":    needs(access.Admin),
	"listDeliveries":         needs(access.Read),
	"listDeliveriesOfOrder":  needs(access.Read),
	"getDelivery":            needs(access.Read),
	"resendDelivery":         needs(access.Operate),
	"skipDelivery":           needs(access.Operate),
	"recoverDeliveries":      needs(access.Operate),

	"listPolicies":   needs(access.Read),
	"getPolicy":      needs(access.Read),
	"storePolicy":    needs(access.Admin),
	"activatePolicy": needs(access.Admin),

	"answerStep":      {class: alwaysOpen}, // the token in its path is the key
	"takeStripeEvent": {class: alwaysOpen}, // its signature is

	"health":       {alwaysOpen, access.Roles{access.Read}}, // balancers have no token
	"livez":        {class: alwaysOpen},
	"getCaller":    {class: alwaysOpen}, // it says to everybody who they are
	"GET /metrics": needs(access.Read, access.Metrics),

	"GET /{$}":             {class: alwaysOpen},
	"GET /docs":            {class: alwaysOpen},
	"GET /openapi.yaml":    {class: alwaysOpen},
	"GET /openapi.json":    {class: alwaysOpen},
	"GET /problems/{code}": {class: alwaysOpen},
	"GET /login":           {class: alwaysOpen}, // it says to the holder of a cookie whose it is
	"GET /login/{link}":    {class: alwaysOpen}, // the link is the key
	"POST /login/{link}":   {class: alwaysOpen},
	"POST /logout":         {class: alwaysOpen},
	"GET /console":         {class: alwaysOpen}, // it shows and does what the operations above let its user
	"GET /console/":        {class: alwaysOpen},
	"GET /console/live":    {class: alwaysOpen},
	"POST /console/":       {class: alwaysOpen},
	"/":                    {class: alwaysOpen}, // that nothing is there
}

var readers = access.Roles{access.Submit, access.Read}

// allows returns nil where a principal may do the operation. Errors: *access.NotIdentified, *forbidden.
func (r rule) allows(p *access.Principal) error {
	switch {
	case r.class == alwaysOpen, p == access.Anonymous && r.class == inContract:
		return nil
	case p == access.Anonymous:
		return &access.NotIdentified{Reason: "No credentials were sent, and they are required for requests from other machines."}
	case len(r.roles) == 0, slices.ContainsFunc(r.roles, p.Has):
		return nil
	}
	return &forbidden{principal: p, roles: r.roles}
}

// AllowedTo lists the operations of the API that a principal may do, as method and path.
func AllowedTo(p *access.Principal) (operations []string) {
	s := newServer(nil, Config{})
	for _, op := range s.documented {
		for _, pattern := range patternsOf(op.Method + " " + op.Path) {
			if s.ruleAt(pattern).allows(p) != nil {
				continue
			}
			if slices.Contains(submittersRead, op.OperationID) && !p.Has(access.Read) {
				pattern += " (of orders that it submitted)"
			}
			operations = append(operations, pattern)
		}
	}
	return operations
}

// submittersRead are the operations that with the role submit alone are about what was submitted with it.
var submittersRead = []string{"getOrder", "listTransitions", "listCalls"}
