package httpapi

import (
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pawl/db"
	"pawl/internal/webhooks"
)

// webhookEndpoint is an endpoint as the API shows it.
type webhookEndpoint struct {
	ID             string     `json:"id" example:"whe_1"`
	URL            string     `json:"url" maxLength:"2000" doc:"Where events are posted to." example:"https://shop.example/pawl"`
	Description    string     `json:"description,omitempty"`
	Types          []string   `json:"types" nullable:"false" doc:"The types of the events that it gets: exact ones, or order.* for all that begin so. Empty: all." example:"[\"order.*\"]"`
	State          string     `json:"state" enum:"enabled,disabled"`
	DisabledAt     *time.Time `json:"disabledAt,omitempty"`
	DisabledReason string     `json:"disabledReason,omitempty" doc:"Why it is disabled."`
	Failures       int32      `json:"failures" minimum:"0" doc:"Attempts that failed since the last one that succeeded."`
	FailingSince   *time.Time `json:"failingSince,omitempty" doc:"When the first of them was. After five days without a success it is disabled."`
	PausedUntil    *time.Time `json:"pausedUntil,omitempty" doc:"Nothing is sent before, because it fails or has asked for it."`
	EventNo        int64      `json:"eventNo" minimum:"0" doc:"Up to this number of the feed its deliveries were made."`
	Version        int32      `json:"version" minimum:"1" doc:"Raised by every change of it; also its ETag."`
	CreatedAt      time.Time  `json:"createdAt"`
	CreatedBy      string     `json:"createdBy" doc:"Who made it, as in the history of an order." example:"token:operations"`
	Secret         string     `json:"secret,omitempty" doc:"What its deliveries are signed with. Only in the answer to the request that made it, also when that comes again." example:"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"`

	PreviousSecretUntil *time.Time `json:"previousSecretUntil,omitempty" doc:"Until then its deliveries are signed with the secret before, too."`

	IgnoredFields []string `json:"ignoredFields,omitempty" nullable:"false" doc:"Fields of the request that are not known, and had no effect."`
}

// delivery is an event for an endpoint.
type delivery struct {
	EndpointID  string     `json:"endpointId" doc:"The endpoint that it is for." example:"whe_1"`
	Delivery    int64      `json:"delivery" minimum:"1" doc:"Its number at this endpoint."`
	EventID     string     `json:"eventId" doc:"The id of the event, and the webhook-id of every attempt." example:"evt_1042_5_660e29dbaab52"`
	Type        string     `json:"type" example:"order.completed"`
	OrderID     string     `json:"orderId,omitempty" doc:"The order that the event is about."`
	Item        string     `json:"item,omitempty" doc:"The item whose stock the event is about."`
	State       string     `json:"state" enum:"pending,delivered,exhausted,skipped" doc:"exhausted: all attempts failed. It holds back what follows of its order at this endpoint until somebody has it sent again or skips it."`
	CreatedAt   time.Time  `json:"createdAt"`
	DueAt       *time.Time `json:"dueAt,omitempty" doc:"When it is sent next. Absent where it is finished, and where one before it of its order is not."`
	AttemptedAt *time.Time `json:"attemptedAt,omitempty" doc:"When it was sent last."`
	FinishedAt  *time.Time `json:"finishedAt,omitempty"`
	Attempts    int16      `json:"attempts" minimum:"0" doc:"How often it was sent, since it was stored or somebody had it sent again."`
	Status      int32      `json:"status,omitempty" doc:"HTTP status of the last answer. Absent: there was none."`

	Log     []attempt        `json:"log,omitempty" nullable:"false" doc:"The last 20 attempts, the oldest first. Not in lists."`
	Changes []deliveryChange `json:"changes,omitempty" nullable:"false" doc:"What people have asked of it, the oldest first. Not in lists."`

	IgnoredFields []string `json:"ignoredFields,omitempty" nullable:"false" doc:"Fields of the request that are not known, and had no effect."`
}

// attempt is one time that a delivery was sent.
type attempt struct {
	At        time.Time `json:"at"`
	Status    int       `json:"status,omitempty" doc:"HTTP status of the answer. 200 to 299 is a success. Absent: there was no answer."`
	LatencyMs int64     `json:"latencyMs" minimum:"0" doc:"How long the answer took, in milliseconds."`
	Answer    string    `json:"answer,omitempty" doc:"Its beginning, up to 1 KiB."`
	Error     string    `json:"error,omitempty" doc:"Why there was no answer."`
}

// deliveryChange is what somebody has asked of a delivery.
type deliveryChange struct {
	At         time.Time `json:"at"`
	Verb       string    `json:"verb" enum:"resent,skipped"`
	Actor      string    `json:"actor" doc:"Who asked, as in the history of an order." example:"token:operations"`
	OnBehalfOf string    `json:"onBehalfOf,omitempty" doc:"For whom the actor says that it asked."`
	Reason     string    `json:"reason,omitempty"`
}

func webhookEndpointOf(e *db.WebhookEndpoint) webhookEndpoint {
	return webhookEndpoint{
		ID: webhooks.EndpointID(e.EndpointNo), URL: e.Url, Description: or(e.Description, ""), Types: e.Types, State: e.State,
		DisabledAt: utc(e.DisabledAt), DisabledReason: or(e.DisabledReason, ""), Failures: e.Failures, FailingSince: utc(e.FailingSince),
		PausedUntil: utc(e.PausedUntil), EventNo: e.EventNo, Version: e.Version, CreatedAt: e.CreatedAt.UTC(), CreatedBy: e.CreatedBy,
		Secret: e.Secret, PreviousSecretUntil: utc(e.PreviousSecretUntil),
	}
}

func deliveryOf(d *webhooks.Delivery) delivery {
	return delivery{
		EndpointID: webhooks.EndpointID(d.EndpointNo), Delivery: d.DeliveryNo, EventID: d.EventID, Type: d.Type, OrderID: d.OrderID, Item: d.Item(), State: d.State,
		CreatedAt: d.CreatedAt.UTC(), DueAt: utc(d.DueAt), AttemptedAt: utc(d.AttemptedAt), FinishedAt: utc(d.FinishedAt),
		Attempts: d.Attempts, Status: d.Status,
		Log: each(d.Log, attemptOf), Changes: each(d.Changes, deliveryChangeOf),
	}
}

func attemptOf(a *webhooks.Entry) attempt {
	return attempt{At: a.At.UTC(), Status: a.Status, LatencyMs: a.LatencyMs, Answer: a.Answer, Error: a.Error}
}

func deliveryChangeOf(c *db.WebhookChangesOfDeliveryRow) deliveryChange {
	return deliveryChange{At: c.At.UTC(), Verb: c.Verb, Actor: c.Actor, OnBehalfOf: or(c.OnBehalfOf, ""), Reason: or(c.Reason, "")}
}

// eventType is a type of events, or the beginning of several.
type eventType string

// Schema is that of a short text.
func (eventType) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, MinLength: new(1), MaxLength: new(maxText), Examples: []any{"order.completed"}}
}
