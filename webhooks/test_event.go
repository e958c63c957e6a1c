package webhooks

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"strings"
	"time"

	"pawl/signing"
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
	no, _ := EndpointNo(id)
	e, err := s.endpoint(ctx, no)
	if err != nil {
		return TestSent{}, err
	}
	sender := NewSender(s.options.Private)
	defer sender.Close()
	now := s.options.Now()
	sent := TestSent{EventID: "evt_test_" + strings.ToLower(rand.Text())}
	sent.Attempt = sender.Send(ctx, &e, signing.Message{ID: sent.EventID, Body: testBody(sent.EventID, id, now)}, now)
	return sent, nil
}

// testBody has the form of every event.
func testBody(eventID, endpointID string, now time.Time) []byte {
	type data struct {
		EndpointID string `json:"endpointId"`
	}
	body, _ := json.Marshal(struct { // it can always be encoded
		ID        string    `json:"id"`
		Type      string    `json:"type"`
		Timestamp time.Time `json:"timestamp"`
		Data      data      `json:"data"`
	}{eventID, TestType, now.UTC(), data{endpointID}})
	return body
}
