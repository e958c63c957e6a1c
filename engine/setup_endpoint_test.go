package engine_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// endpoint is a provider that answers as a test has told it. Besides, it keeps the contract: a key has its effect once, an
// undone key never again, and it remembers what it was asked and what stands.
type endpoint struct {
	*door
	mu     sync.Mutex
	script map[string][]string // by call, as "charge/do": its answers, the last of which goes on
	during func(received)
	calls  []received
	bodies map[string]string // by key of the call
	keys   map[string]string // of dos: the name of the effect, or nothing once it was undone
	live   map[string]bool   // effects, by name
	names  int
	faults []string // of the service: another body under the same key
}

// received is a call, with what its body says of it.
type received struct {
	call, key                                                 string
	Operation, PaymentMethod, CallbackURL, Reference, UndoKey string
	Generation                                                int
}

func openEndpoint(t testing.TB) (*endpoint, string) {
	t.Helper()
	e := &endpoint{script: map[string][]string{}, bodies: map[string]string{}, keys: map[string]string{}, live: map[string]bool{}}
	e.door = &door{behind: http.HandlerFunc(e.serve)}
	server := httptest.NewServer(e)
	t.Cleanup(server.Close)
	return e, server.URL
}

// atEndpoint is the policy of steps at the endpoint: calls to ENDPOINT/charge/do and so on.
func atEndpoint(tuning string, steps ...string) (policy string) {
	for _, step := range steps {
		undo := fmt.Sprintf(", undoUrl: ENDPOINT/%s/undo", step)
		if step == "confirm" {
			undo = ""
		}
		policy += fmt.Sprintf("%s: {executor: http, url: ENDPOINT/%s/do%s, timeout: 60s%s}\n", step, step, undo, tuning)
	}
	return policy
}

// says changes what it answers from now on: "charge/do: error; done" fails once. Without a word a call is done.
//
//	done     it has its effect, and is answered with its name      refused  402, or with a code: refused sold_out
//	unnamed  it has its effect, and is answered without a name     not done 429
//	lost     it has its effect, and is answered 500                error    500, without an effect
//	waiting  202                                                   cut      the connection is lost, without an effect
//	only a   done for payment method a, refused for others         strict   refuses to undo what it has not named
//
// Everything else is a status and a body.
func (e *endpoint) says(answers ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, answer := range answers {
		call, script, _ := strings.Cut(answer, ": ")
		e.script[call] = strings.Split(script, "; ")
	}
}

// meanwhile is done before each call is answered.
func (e *endpoint) meanwhile(do func(received)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.during = do
}

func (e *endpoint) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	c := received{call: strings.TrimPrefix(r.URL.Path, "/"), key: r.Header.Get("Idempotency-Key")}
	if r.Method == http.MethodPost {
		if err := json.Unmarshal(body, &c); err != nil {
			panic(err)
		}
	}
	e.mu.Lock()
	e.calls = append(e.calls, c)
	if known, again := e.bodies[c.key]; again && r.Method == http.MethodPost && known != string(body) {
		e.faults = append(e.faults, fmt.Sprintf("another body under the same key: %s, then %s", known, body))
	}
	e.bodies[c.key] = string(body)
	during := e.during
	e.mu.Unlock()
	if during != nil {
		during(c)
	}
	status, text := e.answer(c)
	if status == 0 {
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text)
}

func (e *endpoint) answer(c received) (status int, body string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	said := "done"
	if script := e.script[c.call]; len(script) > 0 {
		said = script[0]
		e.script[c.call] = script[min(1, len(script)-1):]
	}
	effect := map[string]bool{"done": true, "unnamed": true, "lost": true}
	switch only, isOnly := strings.CutPrefix(said, "only "); {
	case isOnly && c.PaymentMethod != only:
		said = "refused"
	case isOnly || said == "strict" && c.Reference == "":
		said = "done"
	case said == "strict":
		said = "refused unknown_reference"
	}
	switch name, known := e.keys[c.key]; {
	case c.Operation == "undo" && effect[said]:
		delete(e.live, c.Reference)
		delete(e.live, e.keys[c.UndoKey])
		e.keys[c.UndoKey] = ""
	case c.Operation == "do" && known && name == "" && !strings.HasPrefix(said, "2"):
		said = "refused"
	case c.Operation == "do" && !known && effect[said]:
		e.names++
		name = fmt.Sprintf("ch_%d", e.names)
		e.keys[c.key], e.live[name] = name, true
	}
	return reply(said, e.keys[c.key])
}

// reply is what an answer is in HTTP. Status 0: the connection is lost.
func reply(said, name string) (status int, body string) {
	switch said {
	case "done":
		return http.StatusOK, fmt.Sprintf(`{"reference":%q}`, name)
	case "unnamed":
		return http.StatusOK, ""
	case "lost", "error":
		return http.StatusInternalServerError, ""
	case "refused":
		return http.StatusPaymentRequired, ""
	case "not done":
		return http.StatusTooManyRequests, ""
	case "waiting":
		return http.StatusAccepted, `{"reference":"r"}`
	case "cut":
		return 0, ""
	}
	if code, refused := strings.CutPrefix(said, "refused "); refused {
		return http.StatusBadRequest, fmt.Sprintf(`{"outcome":"refused","code":%q}`, code)
	}
	number, body, _ := strings.Cut(said, " ")
	status, err := strconv.Atoi(number)
	if err != nil {
		panic(err)
	}
	return status, body
}

// made are the calls of that name since the last reset.
func (e *endpoint) made(call string) (made []received) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.calls {
		if c.call == call {
			made = append(made, c)
		}
	}
	return made
}

// named is what undos of a step named, each key once. Nothing: it went by the key of what is undone.
func (e *endpoint) named(step string) (names []string) {
	seen := map[string]bool{}
	for _, c := range e.made(step + "/undo") {
		if !seen[c.key] {
			names = append(names, c.Reference)
		}
		seen[c.key] = true
	}
	return names
}

// stands are the effects that were not undone, and what was wrong with the calls.
func (e *endpoint) stands() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append(slices.Sorted(maps.Keys(e.live)), e.faults...)
}

// reset forgets what was called for.
func (e *endpoint) reset() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls = nil
	clear(e.bodies)
}

// token waits for the call of a step, and returns where it is to be answered.
func (e *endpoint) token(t testing.TB, step string) (token string) {
	t.Helper()
	eventually(t, step+" is called for", func() bool { return len(e.made(step+"/do")) > 0 })
	made := e.made(step + "/do")
	url := made[len(made)-1].CallbackURL
	return url[strings.LastIndex(url, "/")+1:]
}
