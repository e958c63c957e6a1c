package engine_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stripe/stripe-go/v85/webhook"

	"pawl/engine"
	"pawl/internal/orders"
	"pawl/internal/provider"
	"pawl/internal/signing"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// A token that is not ours is known before anything is asked of the database: here nobody waits for its answer.
func TestForgedTokensCostNoRead(t *testing.T) {
	t.Parallel()
	d := waiting("")(t)
	d.admit(t, request("o"))
	token := d.provider.token(t, "charge")
	d.until(t, "o", "callback")
	gone, leave := context.WithCancel(t.Context())
	leave()
	forged := strings.Repeat("a", len(token))
	if _, err := d.engine.Answer(gone, forged, engine.CallbackResult{Outcome: "done"}); !errors.Is(err, orders.ErrNotFound) {
		t.Errorf("forged: %v", err)
	}
	if _, err := d.engine.Answer(gone, token, engine.CallbackResult{Outcome: "done"}); err == nil || errors.Is(err, orders.ErrNotFound) {
		t.Errorf("ours was not looked for: %v", err)
	}
}

// A token ends when the order has left the step and was called for a month ago. While the order is at the step it holds,
// however long that takes.
func TestCallbackTokensEndWithTheirStep(t *testing.T) {
	t.Parallel()
	d := waiting("")(t)
	d.admit(t, request("o"))
	charge := d.provider.token(t, "charge")
	d.until(t, "o", "callback")
	age := func(by string) {
		d.exec(t, fmt.Sprintf(`UPDATE step_calls SET started_at = started_at - interval '%s', finished_at = finished_at - interval '%[1]s'`, by))
	}
	age("32 days")
	if r := d.tell(t, charge, "done", "r"); !r.Accepted {
		t.Errorf("at the step: %+v", r)
	}
	reserve := d.provider.token(t, "reserve")
	if _, err := d.engine.Answer(t.Context(), charge, engine.CallbackResult{Outcome: "done"}); !errors.Is(err, orders.ErrNotFound) {
		t.Errorf("after the step, 32 days old: %v", err)
	}
	d.tell(t, reserve, "done", "r")
	d.tell(t, d.provider.token(t, "confirm"), "done", "r")
	d.until(t, "o", "completed")
	if r := d.tell(t, reserve, "done", "r"); !r.Accepted {
		t.Errorf("sent again after the end: %+v", r)
	}
	age("30 days")
	if r := d.tell(t, reserve, "done", "r"); !r.Accepted {
		t.Errorf("a month after the end: %+v", r)
	}
	age("2 days")
	if _, err := d.engine.Answer(t.Context(), reserve, engine.CallbackResult{Outcome: "done"}); !errors.Is(err, orders.ErrNotFound) {
		t.Errorf("more than a month after the end: %v", err)
	}
}

// What a callback repeats of the call is masked as in an answer, and so is what a person says.
func TestCallbacksAreMasked(t *testing.T) {
	t.Parallel()
	d := waiting("")(t)
	in := request("o")
	in.PaymentMethod = "pm_marked_card"
	d.admit(t, in)
	token := d.provider.token(t, "charge")
	d.until(t, "o", "callback")
	_, err := d.engine.Answer(t.Context(), token, engine.CallbackResult{Outcome: "done", CallbackText: provider.CallbackText{
		Reference: "ch_" + token, Data: []byte(`{"token":"` + strings.ToUpper(token) + `","with":"pm_marked_card"}`)}})
	assert.NoError(t, err)
	d.provider.token(t, "reserve")
	held := d.until(t, "o", "callback")
	d.exec(t, `UPDATE orders SET hold = 'attention', hold_reason = 'test', due_at = NULL, seq = seq + 1`)
	d.exec(t, `INSERT INTO transitions (order_no, seq, from_status, to_status, fence, verb) SELECT order_no, seq, status, status, fence, 'attention' FROM orders`)
	if held.ChargeReference != nil {
		t.Errorf("reference %s", *held.ChargeReference)
	}
	q := asked(orders.StepResult)
	q.OrderID, q.Async = "o", true
	q.Settle = &engine.Settled{Step: "reserve", Outcome: engine.SettledRefused, Code: "PM_MARKED_CARD", Detail: "no " + token}
	d.do(t, q)
	d.until(t, "o", "failed")
	for _, marked := range []string{token, "pm_marked_card"} {
		for _, table := range []string{"step_answers", "step_calls", "charges", "reservations", "transitions", "late_undos"} {
			d.counts(t, 0, `SELECT count(*) FROM `+table+` AS t WHERE t::text ILIKE '%' || $1 || '%'`, marked)
		}
	}
}

// The log has one line about a webhook that was refused, not one for each secret and each request that anybody sends.
// The secret of a policy that was replaced long ago signs nothing any more.
func TestWebhookSecretsEnd(t *testing.T) {
	t.Parallel()
	var said dbtest.Log
	cfg := quick
	cfg.Log = slog.New(slog.NewTextHandler(&said, nil))
	b := setupWith(t, cfg)
	folder := t.TempDir()
	for _, name := range []string{"key", "old", "new"} {
		assert.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte("sk_test_of_the_"+name), 0o600))
	}
	for _, name := range []string{"old", "gone", "lost", "new"} {
		b.activate(t, fmt.Sprintf("charge: {executor: stripe, secret: 'file:%s/key', webhookSecret: 'file:%[1]s/%s'}", folder, name))
	}
	send := func(e *engine.Engine, name string) error {
		payload := []byte(`{"object":"event","id":"evt_1","type":"any","data":{"object":{}}}`)
		signed := webhook.GenerateTestSignedPayload(&webhook.UnsignedPayload{Payload: payload, Secret: "sk_test_of_the_" + name, Timestamp: time.Now()})
		return e.StripeEvent(t.Context(), payload, signed.Header)
	}
	for range 20 {
		if err := send(b.engine, "guess"); !errors.Is(err, engine.ErrSignature) {
			t.Fatal(err)
		}
	}
	if n := strings.Count(said.String(), "a webhook was refused"); n != 1 || strings.Count(said.String(), "level=WARN") != 1 {
		t.Errorf("%d lines:\n%s", n, said.String())
	}
	for _, name := range []string{"old", "new"} {
		if err := send(b.engine, name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	b.exec(t, `ALTER TABLE policy_activations DISABLE TRIGGER USER`)
	b.exec(t, `UPDATE policy_activations SET at = at - interval '32 days'`)
	later := b.replica(t, cfg) // the one that runs looks again within minutes
	assert.ErrorIs(t, send(later, "old"), engine.ErrSignature, "of a policy that was replaced a month ago")
	if err := send(later, "new"); err != nil {
		t.Errorf("of the active policy: %v", err)
	}
}

// signedBy are the headers of a callback that is signed with the secret of a file, or with another one.
func signedBy(t *testing.T, path string, m signing.Message, at time.Time) http.Header {
	t.Helper()
	key := []byte("of somebody else")
	if path != "" {
		text, err := os.ReadFile(path)
		assert.NoError(t, err)
		if key, err = base64.StdEncoding.DecodeString(strings.TrimPrefix(string(text), "whsec_")); err != nil {
			t.Fatal(err)
		}
	}
	stamp := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(m.ID + "." + stamp + "."))
	mac.Write(m.Body)
	header := http.Header{}
	header.Set("Webhook-Id", m.ID)
	header.Set("Webhook-Timestamp", stamp)
	header.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	return header
}

// A policy can want signed callbacks: then the token alone completes nothing, and what is signed counts for one call only.
func TestSignedCallbacks(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "secret")
	assert.NoError(t, os.WriteFile(path, []byte("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), 0o600))
	d := waiting(fmt.Sprintf(", secret: 'file:%s', signedCallbacks: true", path))(t)
	d.admit(t, request("o"))
	token, key := d.provider.token(t, "charge"), d.provider.made("charge/do")[0].key
	d.until(t, "o", "callback")
	post := func(token, body string, header http.Header) int {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, d.cfg.PublicURL+"/api/callbacks/"+token, bytes.NewReader([]byte(body)))
		assert.NoError(t, err)
		r.Header = header
		response, err := http.DefaultClient.Do(r)
		assert.NoError(t, err)
		_ = response.Body.Close()
		return response.StatusCode
	}
	body := `{"outcome":"done","reference":"r"}`
	m, now := signing.Message{ID: key, Body: []byte(body)}, time.Now()
	for name, header := range map[string]http.Header{
		"not at all": {}, "for another body": signedBy(t, path, signing.Message{ID: key, Body: []byte(body + " ")}, now),
		"long ago": signedBy(t, path, m, now.Add(-6*time.Minute)), "ahead of time": signedBy(t, path, m, now.Add(6*time.Minute)),
		"by somebody else": signedBy(t, "", m, now), "with another id": signedBy(t, path, signing.Message{ID: "msg_1", Body: m.Body}, now),
		"without an id": signedBy(t, path, signing.Message{Body: m.Body}, now),
	} {
		assert.Equal(t, post(token, body, header), http.StatusBadRequest, "signed", name)
	}
	d.counts(t, 0, `SELECT count(*) FROM step_answers`)
	signed := signedBy(t, path, m, time.Now())
	assert.Equal(t, post(token, body, signed), http.StatusOK, "signed")
	reserve := d.provider.token(t, "reserve")

	// Whoever has seen it can't complete the next step of the order with it, nor another order.
	d.provider.reset()
	d.admit(t, request("p"))
	for step, token := range map[string]string{"reserve of the same order": reserve, "charge of another order": d.provider.token(t, "charge")} {
		assert.Equal(t, post(token, body, signed), http.StatusBadRequest, "signed for a charge", step)
	}
	d.counts(t, 1, `SELECT count(*) FROM step_answers`)
}

// TestTheCallbackSecretIsReplaced does what docs/security.md says to do when somebody has read it.
func TestTheCallbackSecretIsReplaced(t *testing.T) {
	t.Parallel()
	d := waiting("")(t)
	d.admit(t, request("before"))
	old := d.provider.token(t, "charge")
	d.until(t, "before", "callback")
	d.exec(t, `UPDATE pawl.installation SET callback_secret = DEFAULT`)

	d.engine = d.replica(t, d.cfg) // the one after the restart
	assert.NoError(t, d.engine.LoadPolicies(t.Context()))
	if _, err := d.engine.Answer(t.Context(), old, engine.CallbackResult{Outcome: "done"}); !errors.Is(err, orders.ErrNotFound) {
		t.Errorf("a token of the old secret: %v", err)
	}
	d.provider.reset()
	d.admit(t, request("after"))
	token := d.provider.token(t, "charge")
	if token == old {
		t.Error("the token is the same")
	}
	d.until(t, "after", "callback")
	d.tell(t, token, "done", "ch_after")
	d.provider.token(t, "reserve")
}
