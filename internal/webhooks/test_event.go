package webhooks

import (
	"context"
	"crypto/rand"
	"strings"

	"pawl/internal/signing"
)

// TestType is the type of the events that only tell whether an endpoint can be reached.
const TestType = "webhook_endpoint.test"

// TestSent is what came of a test event.
type TestSent struct {
	EventID string
	Attempt
}

// Test sends a test event to an endpoint now, whatever its state is, and returns what came back. Nothing of it is kept.
func (s *Endpoints) Test(ctx context.Context, id string) (TestSent, error) {
	e, err := s.endpoint(ctx, numberOf(id))
	if err != nil {
		return TestSent{}, err
	}
	sender := NewSender(s.options.Private)
	defer sender.Close()
	now := s.options.Now()
	m := message{ID: "evt_test_" + strings.ToLower(rand.Text()), Type: TestType, Timestamp: now.UTC()}
	m.Data.EndpointID = id
	return TestSent{m.ID, sender.Send(ctx, &e, signing.Message{ID: m.ID, Body: m.json()}, now)}, nil
}
