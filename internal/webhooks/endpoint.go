package webhooks

import (
	"strconv"
	"strings"
	"time"

	"pawl/db"
)

// MostEndpoints is how many endpoints there may be: each has a part of the requests that a replica makes at one time.
const MostEndpoints = 64

// idPrefix stands before the number of an endpoint.
const idPrefix = "whe_"

// EndpointID is the id of an endpoint by its number.
func EndpointID(endpointNo int32) string { return idPrefix + strconv.Itoa(int(endpointNo)) }

// numberOf is the number of an endpoint by its id; 0: no endpoint has such an id.
func numberOf(id string) int32 {
	digits, ok := strings.CutPrefix(id, idPrefix)
	n, err := strconv.ParseInt(digits, 10, 32)
	if !ok || err != nil || n <= 0 || EndpointID(int32(n)) != id {
		return 0
	}
	return int32(n)
}

// The states of an endpoint. One that is deleted is there until its deliveries are removed, and is shown to nobody.
const (
	Enabled  = "enabled"
	Disabled = "disabled"
	Deleted  = "deleted"
)

// The states of a delivery.
const (
	Pending   = "pending"   // it is due at a time, or waits for the one before it of its subject
	Delivered = "delivered" // an attempt was answered with 2xx
	Exhausted = "exhausted" // all attempts failed: it holds back its subject until a person acts
	Skipped   = "skipped"   // a person has given it up
)

// Entry is one attempt in the log of a delivery (db.WebhookDelivery.Log, a JSON array, oldest first).
type Entry struct {
	At        time.Time `json:"at"`
	Status    int       `json:"status,omitempty"`    // of the HTTP answer; 0: there was none
	LatencyMs int64     `json:"latencyMs,omitempty"` // until the answer was there
	Answer    string    `json:"answer,omitempty"`    // its beginning, up to 1 KiB
	Error     string    `json:"error,omitempty"`     // why there was no answer
}

const orderPrefix, itemPrefix = "order ", "item "

// OrderSubject is what the events of an order are kept in order for.
func OrderSubject(orderNo int64) string { return orderPrefix + strconv.FormatInt(orderNo, 10) }

// ItemSubject is what the events of an item are kept in order for.
func ItemSubject(item string) string { return itemPrefix + item }

// secretsOf are the secrets that what is sent to an endpoint is signed with at a time: two while one replaces the other.
func secretsOf(e *db.WebhookEndpoint, now time.Time) []string {
	secrets := []string{e.Secret}
	if e.PreviousSecret != nil && e.PreviousSecretUntil != nil && now.Before(*e.PreviousSecretUntil) {
		secrets = append(secrets, *e.PreviousSecret)
	}
	return secrets
}
