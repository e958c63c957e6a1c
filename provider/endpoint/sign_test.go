package endpoint

import "testing"

// The example of the Standard Webhooks libraries.
func TestSignatureOfTheSpecification(t *testing.T) {
	t.Setenv("PAWL_SECRET_TEST", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	e := endpointAt(t, "http://127.0.0.1/", 1)
	e.how.Secret = "env:PAWL_SECRET_TEST"
	_, key, err := e.signingKey()
	if err != nil {
		t.Fatal(err)
	}
	got := signatureOf(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", []byte(`{"test": 2432232314}`))
	if want := "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
