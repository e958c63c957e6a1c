package console_test

import (
	"testing"
	"time"

	"pawl/client"
)

func TestBooks(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.process(t, client.ProcessBody{OrderID: "../1 <b>", Amount: "6", Item: "lamp"})
	before := s.get(t, "/console/books").want(t, 200, "has proved nothing", "Prove the books now")
	s.prove(t).want(t, 200, "The books are right", "14 checks hold", "status:completed", ">6<").lacks(t, "The books are wrong")
	s.listen(t, before.live(t)).poked(t) // though it listens late

	s.sql(t, `SET session_replication_role = replica; UPDATE charges SET amount = 7; UPDATE inventory SET sold = 3; RESET session_replication_role`)
	s.prove(t).want(t, 200, "The books are wrong", `/console/order?id=..%2f1%20%3cb%3e`, "<bdi>../1 &lt;b&gt;</bdi>", "/console/item?item=lamp", "charged another amount").lacks(t, "The books are right", "<b>")
}

// prove has the books proved, and returns the page of the report.
func (s *service) prove(t *testing.T) shown {
	t.Helper()
	s.post(t, "/console/books", nil).want(t, 303)
	for deadline := time.Now().Add(patience); ; <-time.After(time.Millisecond) {
		if state, err := s.api.GetVerification(t.Context()); err != nil || state.State == client.VerificationStateDone {
			return s.get(t, "/console/books")
		}
		if time.Now().After(deadline) {
			t.Fatal("the proof has no end")
		}
	}
}
