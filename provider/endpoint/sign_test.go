package endpoint

import "testing"

// The example of the Standard Webhooks libraries.
func TestSignatureOfTheSpecification(t *testing.T) {
	t.Setenv("STEP_TEST_SECRET", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	_, key, err := signingKey("env:STEP_TEST_SECRET")
	if err != nil {
		t.Fatal(err)
	}
	got := signatureOf(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", []byte(`{"test": 2432232314}`))
	if want := "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
