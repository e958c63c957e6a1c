package provider_test

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"pawl/fsm"
	"pawl/internal/policy"
	"pawl/internal/provider"
	"pawl/internal/provider/endpoint"
	"pawl/test/assert"
)

// TestSecrets: secrets of the call that an answer repeats are masked, wherever and in whatever form.
func TestSecrets(t *testing.T) {
	t.Parallel()
	const method, token = `pm_"card"/42 42`, "aaaaaaaaaaaaeaaaaaaaahypgwvu7"
	c := &provider.Call{PaymentMethod: method, Tokens: []string{token}}
	secrets := c.Secrets("sk_test_hidden")
	quoted, _ := json.Marshal(method)
	for _, c := range []struct{ give, want provider.Result }{
		{provider.Done{Reference: "ch_1", Data: []byte(`{"a":[1.50,"b"]}`)}, provider.Done{Reference: "ch_1", Data: []byte(`{"a":[1.50,"b"]}`)}},
		{provider.Done{Reference: "ch_" + method}, provider.Done{}},
		{provider.Done{Reference: strings.ToUpper(token)}, provider.Done{}},
		{provider.Done{Reference: "SK_TEST_hidden"}, provider.Done{}},
		{provider.Done{Data: []byte(`{"echo":{"` + token + `":["http://x/` + strings.ToUpper(token) + `?a"]}}`)},
			provider.Done{Data: []byte(`{"echo":{"***":["http://x/***?a"]}}`)}},
		{provider.Done{Data: []byte(`{"body":"{\"paymentMethod\":\"pm_\\\"card\\\"/42 42\"}",` +
			`"a":"pm_%22card%22%2F42+42","b":"pm_%22card%22%2F42%2042","c":` + string(quoted) + `}`)},
			provider.Done{Data: []byte(`{"a":"***","b":"***","body":"{\"paymentMethod\":\"***\"}","c":"***"}`)}},
		{provider.Done{Reference: "pi_1_secret_2", Data: []byte(`{"a":"see pi_3Nx_secret_Yk9 there"}`)},
			provider.Done{Data: []byte(`{"a":"see *** there"}`)}},
		{provider.Refused{Code: "x", Detail: "pi_3Nx_secret_Yk9 is used"}, provider.Refused{Code: "x", Detail: "*** is used"}},
		{provider.Refused{Code: "bad " + method, Detail: "no " + method + "!"}, provider.Refused{Code: "***", Detail: "no ***!"}},
		{provider.Retry{Code: "x", Detail: "Authorization: Bearer sk_test_hidden"}, provider.Retry{Code: "x", Detail: "Authorization: Bearer ***"}},
		{provider.Unknown{Code: "x", Detail: token, Reference: token}, provider.Unknown{Code: "x", Detail: "***"}},
		{provider.Waiting{Reference: "r", Action: []byte(`{"url":"https://bank.example/3ds?t=` + token + `"}`)},
			provider.Waiting{Reference: "r", Action: []byte(`{"url":"https://bank.example/3ds?t=***"}`)}},
	} {
		assert.Equal(t, secrets.MaskResult(c.give), c.want, c.give, "becomes")
	}
	short := (&provider.Call{PaymentMethod: "4"}).Secrets()
	if got := short.MaskResult(provider.Done{Reference: "ch_4", Data: []byte(`{"a":4,"b":14,"c":"4","d":"14"}`)}); !reflect.DeepEqual(got,
		provider.Done{Reference: "ch_4", Data: []byte(`{"a":"***","b":14,"c":"***","d":"14"}`)}) {
		t.Errorf("a short one becomes %#v", got)
	}
}

// TestActionsHaveWebAddressesOnly: customers see only http and https addresses.
func TestActionsHaveWebAddressesOnly(t *testing.T) {
	t.Parallel()
	for action, want := range map[string]string{
		`{"url":"https://bank.example/3ds"}`:                                  `{"url":"https://bank.example/3ds"}`,
		`{"url":"http://bank.example"}`:                                       `{"url":"http://bank.example"}`,
		`{"url":"HTTPS://bank.example"}`:                                      `{"url":"HTTPS://bank.example"}`,
		`{"type":"x","url":"javascript:alert(1)"}`:                            `{"type":"x"}`,
		`{"url":"\u0001javascript:alert(1)"}`:                                 `{}`,
		`{"url":" https://bank.example"}`:                                     `{}`,
		`{"url":"data:text/html,x"}`:                                          `{}`,
		`{"url":"//bank.example"}`:                                            `{}`,
		`{"url":"/3ds"}`:                                                      `{}`,
		`{"url":"https:///3ds"}`:                                              `{}`,
		`{"url":["javascript:alert(1)"]}`:                                     `{}`,
		`{"URL":"javascript:alert(1)","redirect":{"returnUrl":"vbscript:x"}}`: `{"redirect":{}}`,
		`{"steps":[{"url":"javascript:x"},{"url":"https://a.example"}]}`:      `{"steps":[{},{"url":"https://a.example"}]}`,
		`{"clientSecret":"pi_1_secret_2"}`:                                    `{"clientSecret":"pi_1_secret_2"}`,
	} {
		got, _ := (provider.Secrets{}).MaskResult(provider.Waiting{Action: []byte(action)}).(provider.Waiting)
		assert.Equal(t, string(got.Action), want, action, "becomes", got.Action)
	}
}

// TestMasking: the result of every method is masked, including the secret of the step, which only the executor knows.
func TestMasking(t *testing.T) {
	t.Parallel()
	const marked = "marked_secret_of_the_step"
	_, url := lay(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"state":"done","reference":"` + marked + `","data":{"a":"pm_marked ` + strings.ToUpper(marked) + `"}}`))
	}))
	how := policy.Step{Executor: policy.HTTP, URL: url, UndoURL: url, LookupURL: url, CaptureURL: url, Secret: secretOf(t, marked)}
	exec := provider.Masking(endpoint.New(&how, fsm.Charge, local, provider.NewTransport(0, true)))
	call := &provider.Call{Step: fsm.Charge, PaymentMethod: "pm_marked", OperationKind: provider.Capture}
	for name, ask := range map[string]func(context.Context, *provider.Call) provider.Result{
		"do": exec.Do, "undo": exec.Undo, "capture": exec.Operate, "lookup": exec.(provider.Looker).Lookup,
	} {
		got := ask(t.Context(), call)
		assert.True(t, reflect.DeepEqual(got, provider.Done{Data: []byte(`{"a":"*** ***"}`)}), name, got)
	}
	how.LookupURL = ""
	_, looks := provider.Masking(endpoint.New(&how, fsm.Charge, local, provider.NewTransport(0, true))).(provider.Looker)
	assert.True(t, !looks, "an executor without look-ups became a Looker")
}

// TestNameServersAreNotShown: an error about a name does not reveal the addresses of name servers.
func TestNameServersAreNotShown(t *testing.T) {
	t.Parallel()
	for want, lookUp := range map[string]net.DNSError{
		"look up shop.example: no such host":                            {Err: "no such host", IsNotFound: true},
		"look up shop.example: no answer from the name servers in time": {Err: "read udp 10.1.2.3:40000->10.0.0.2:53: i/o timeout", IsTimeout: true},
		"look up shop.example: the name servers failed":                 {Err: "server misbehaving"},
	} {
		lookUp.Name, lookUp.Server = "shop.example", "10.0.0.2:53"
		x := provider.Exchange{Err: &net.OpError{Op: "dial", Net: "tcp", Err: &lookUp}}
		got := x.Reason()
		assert.True(t, got == want && !strings.Contains(got, "10."), got, want)
	}
}

// Data without a secret keeps its bytes; one that is escaped in it is found.
func TestDataWithoutSecrets(t *testing.T) {
	t.Parallel()
	secrets := provider.NewSecrets("card", "tok_visa_4242", `a"quoted"one`)
	for data, want := range map[string]string{
		`{"a":[1.50,"tok_visa"]}`:              `{"a":[1.50,"tok_visa"]}`,
		`{"a":"card"}`:                         `{"a":"***"}`,
		`{"a":"a cardigan"}`:                   `{"a":"a cardigan"}`,
		`{"TOK_VISA_4242":1}`:                  `{"***":1}`,
		`{"a":"tok\u005fvisa_4242"}`:           `{"a":"***"}`,
		`{"a":"a\"quoted\"one"}`:               `{"a":"***"}`,
		`{"a":"pi_1_secret_2","b":"_secret_"}`: `{"a":"***","b":"_secret_"}`,
	} {
		assert.Equal(t, string(secrets.Data([]byte(data))), want, data, "became")
	}
}
