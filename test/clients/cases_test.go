package clients

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"pawl/test/assert"
)

// clientCase is one case of client/cases.json, which clients/README.md explains.
type clientCase struct {
	Name   string           `json:"name"`
	Client options          `json:"client"`
	Before []map[string]any `json:"before"`
	Calls  []map[string]any `json:"calls"`
	Faults []fault          `json:"faults"`
	Want   []any            `json:"want"`
	Wire   struct {
		Requests        *int   `json:"requests"`
		RequestsAtLeast int    `json:"requestsAtLeast"`
		Keys            *int   `json:"keys"`
		PausesAtLeast   []int  `json:"pausesAtLeast"`
		Authorization   string `json:"authorization"`
	} `json:"wire"`
	Stored *struct {
		Path string `json:"path"`
		Want any    `json:"want"`
	} `json:"stored"`
}

// options are those that both clients have.
type options struct {
	Token           string `json:"token,omitempty"`
	TimeoutSeconds  int    `json:"timeoutSeconds,omitempty"`
	RetryForSeconds int    `json:"retryForSeconds,omitempty"`
}

// TestCases runs the table with the Go client; TestTypeScript runs it with the other one.
func TestCases(t *testing.T) { //nolint:tparallel // a case that kills the service would be in the way of others
	t.Parallel()
	runCases(t, "go", runGo)
}

// runCases runs the table with a client, on a service of its own.
func runCases(t *testing.T, language string, client func(t *testing.T, address string, c clientCase) []byte) {
	t.Helper()
	s := serve(t)
	p := startProxy(t, s)
	for _, c := range readCases(t, language, provider(t)) {
		t.Run(c.Name, func(t *testing.T) {
			runBefore(t, s.url, c)
			address, done := p.begin(t, c.Faults)
			returned := client(t, address, c)
			c.judge(t, returned, done())
			c.look(t, s.url)
		})
	}
}

// provider is the URL of a provider that does whatever it is asked for. The reference says what.
func provider(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"outcome":"done","reference":%q}`, strings.TrimPrefix(r.URL.Path, "/"))
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// readCases reads the table for a run, whose name replaces the $, as the URL of its provider does PROVIDER.
func readCases(t *testing.T, run, provider string) (cases []clientCase) {
	t.Helper()
	text, err := os.ReadFile("../../client/cases.json")
	assert.NoError(t, err)
	text = bytes.ReplaceAll(text, []byte("PROVIDER"), []byte(provider))
	decoder := json.NewDecoder(bytes.NewReader(bytes.ReplaceAll(text, []byte("$-"), []byte(run+"-"))))
	decoder.DisallowUnknownFields()
	assert.NoError(t, decoder.Decode(&cases))
	for _, c := range cases {
		for _, call := range c.Calls {
			if how, ok := call["signed"].(map[string]any); ok {
				call["headers"] = signed(how)
				delete(call, "signed")
			}
		}
	}
	return cases
}

// signed makes the headers of a webhook, as Standard Webhooks 1.0.0 says.
func signed(how map[string]any) map[string]any {
	ago, _ := how["agoSeconds"].(float64)
	at := strconv.FormatInt(time.Now().Unix()-int64(ago), 10)
	var signatures []string
	for _, secret := range how["with"].([]any) {
		key, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret.(string), "whsec_"))
		mac := hmac.New(sha256.New, key)
		fmt.Fprintf(mac, "evt_1.%s.%s", at, how["body"])
		signatures = append(signatures, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	return map[string]any{"webhook-id": "evt_1", "webhook-timestamp": at, "webhook-signature": strings.Join(signatures, " ")}
}

// runBefore makes the calls that prepare a case, straight to the service.
func runBefore(t *testing.T, service string, c clientCase) {
	t.Helper()
	if len(c.Before) == 0 {
		return
	}
	returned := runGo(t, service, clientCase{Calls: c.Before})
	assert.Require(t, !bytes.Contains(returned, []byte(`"problem"`)) && !bytes.Contains(returned, []byte(`"lost"`)),
		"before", returned)
}

// judge compares what the calls returned and what the proxy saw with what the case wants.
func (c clientCase) judge(t *testing.T, returned []byte, seen []seenRequest) {
	t.Helper()
	var got any
	assert.NoError(t, json.Unmarshal(returned, &got), "the client printed", returned)
	assert.Equal(t, differs("", c.Want, got), "", "returned", returned)
	keys := map[string]bool{}
	for i, request := range seen {
		if request.key != "" {
			keys[request.key] = true
		}
		assert.Equal(t, c.Wire.Authorization, request.authorization, "request", i+1, "has Authorization")
	}
	if want := c.Wire.Requests; want != nil && len(seen) != *want || len(seen) < c.Wire.RequestsAtLeast {
		t.Errorf("%d requests: %v", len(seen), seen)
	}
	want := c.Wire.Keys
	assert.True(t, want == nil || len(keys) == *want, len(keys), "idempotency keys", seen)
	for i, seconds := range c.Wire.PausesAtLeast {
		assert.True(t, i+1 >= len(seen) || seen[i+1].at.Sub(seen[i].at) >= time.Duration(seconds)*time.Second,
			"too little time between requests", i+1, "and", i+2)
	}
}

// look compares what the service has stored.
func (c clientCase) look(t *testing.T, service string) {
	t.Helper()
	if c.Stored == nil {
		return
	}
	status, text := fetch(t, service+c.Stored.Path)
	var got any
	assert.Require(t, json.Unmarshal(text, &got) == nil && status == http.StatusOK, c.Stored.Path, status, text)
	assert.Equal(t, differs("", c.Stored.Want, got), "", "stored", text)
}

// fetch asks until a service answers that may be starting.
func fetch(t *testing.T, address string) (status int, text []byte) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; <-time.After(50 * time.Millisecond) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
		assert.NoError(t, err)
		answer, err := http.DefaultClient.Do(request)
		if err != nil && time.Now().Before(end) {
			continue
		}
		assert.NoError(t, err)
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		assert.NoError(t, err)
		return answer.StatusCode, text
	}
}

// differs says where got lacks something of want, or "". Objects may have more fields; arrays are as long.
func differs(at string, want, got any) string {
	switch want := want.(type) {
	case map[string]any:
		object, _ := got.(map[string]any)
		for name, value := range want {
			if wrong := differs(at+"."+name, value, object[name]); wrong != "" {
				return wrong
			}
		}
		return ""
	case []any:
		array, _ := got.([]any)
		if len(array) != len(want) {
			return fmt.Sprintf("%s has %d elements, want %d", at, len(array), len(want))
		}
		for i, value := range want {
			if wrong := differs(fmt.Sprintf("%s[%d]", at, i), value, array[i]); wrong != "" {
				return wrong
			}
		}
		return ""
	case string:
		text, _ := got.(string)
		if pattern, ok := strings.CutPrefix(want, "~"); ok && regexp.MustCompile(pattern).MatchString(text) {
			return ""
		}
	}
	if !reflect.DeepEqual(want, got) {
		return fmt.Sprintf("%s is %v, want %v", at, got, want)
	}
	return ""
}
