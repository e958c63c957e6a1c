package provider_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"pawl/fsm"
	"pawl/internal/policy"
	"pawl/internal/provider"
	"pawl/internal/provider/endpoint"
	"pawl/internal/simulator"
	"pawl/test/assert"
)

func TestExecutorsConform(t *testing.T) {
	t.Parallel()
	for _, of := range fsm.Steps() {
		t.Run("simulator "+string(of), func(t *testing.T) {
			t.Parallel()
			conform(t, simulated(of, func(url string) policy.Step {
				return policy.Step{Executor: policy.Simulator, URL: url + "/", Secret: secretOf(t, secretText)}
			}))
		})
		t.Run("http "+string(of), func(t *testing.T) {
			t.Parallel()
			conform(t, simulated(of, func(url string) policy.Step {
				return policy.Step{Executor: policy.HTTP, URL: url + "/" + string(of), UndoURL: url + "/" + string(of) + "/undo",
					LookupURL: url + "/lookup?shop=1", Secret: secretOf(t, secretText)}
			}))
		})
	}
}

// conform holds an executor to the contract of Executor, over real HTTP. Each part has an
// executor and a provider of its own.
func conform(t *testing.T, of newSubject) {
	t.Helper()
	for name, part := range map[string]func(trial){
		"a key that is sent twice has one effect":                    sameKey,
		"a call sends what the one before it sent":                   sameBytes,
		"one key at the same time has one effect":                    sameTime,
		"a lost reply is unknown, and the next call is done":         lostReplies,
		"a lost request is unknown, and the next call is done":       lostRequests,
		"a slow answer is unknown at the deadline":                   slowAnswers,
		"a call that is canceled before it begins did nothing":       canceledBefore,
		"a call that is canceled on its way is unknown":              canceledDuring,
		"a refused connection did nothing and does not count":        refusedConnection,
		"a refusal stays one":                                        refusals,
		"an undo takes back once":                                    undoOnce,
		"an undo of an unseen key makes a late do fail":              undoUnseen,
		"an undo with a lost reply is done by the next":              undoLost,
		"an undo that races its do leaves nothing":                   undoRaces,
		"an undo of what was refused is done, and a late do refused": undoRefused,
		"a look-up says what became of a key":                        lookups,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			part(trial{t, of})
		})
	}
}

// subject is an executor whose provider's own books can be read.
type subject struct {
	provider.Executor
	of      fsm.Step
	books   func(c *provider.Call) books
	decline func(c *provider.Call) // makes it a call the provider refuses; nil: it refuses none
	prepare func(c *provider.Call) // does what a call needs to have been done before, and names it; nil: it needs nothing
}

// books is what the provider has in its own books under the key of a Do.
type books struct {
	made     int // effects that ever happened
	standing int // those that were not taken back
}

// newSubject makes an executor, and a provider that answers at the address serve returns
// for it.
type newSubject func(t *testing.T, serve func(http.Handler) string) subject

func (n newSubject) laid(t *testing.T) (subject, *wire) {
	t.Helper()
	var w *wire
	s := n(t, func(provider http.Handler) (url string) {
		w, url = lay(t, provider)
		return url
	})
	return s, w
}

func (s subject) call() *provider.Call {
	c := aCall(s.of)
	if s.prepare != nil {
		s.prepare(c)
	}
	return c
}

// undoable skips what is about undo for a step that has none.
func (s subject) undoable(t *testing.T) {
	t.Helper()
	if s.of == fsm.Confirm {
		t.Skip("confirm has no undo")
	}
}

func (s subject) has(t *testing.T, c *provider.Call, want books) {
	t.Helper()
	got := s.books(c)
	assert.True(t, got == want, "the books of the provider say", got, want)
}

// mustDo sends a Do that has to be done.
func (s subject) mustDo(t *testing.T, c *provider.Call) provider.Done {
	t.Helper()
	result := s.Do(t.Context(), c)
	done, ok := result.(provider.Done)
	assert.Require(t, ok, "do", result)
	return done
}

func (s subject) mustUndo(t *testing.T, c *provider.Call) {
	t.Helper()
	result, ok := s.Undo(t.Context(), c).(provider.Done)
	assert.True(t, ok, "undo", result)
}

// mustFail sends a Do that must not have an effect any more, and say so.
func (s subject) mustFail(t *testing.T, c *provider.Call) {
	t.Helper()
	result := s.Do(t.Context(), c)
	assert.Equal(t, kind(result), "refused", "a late do", result)
}

func kind(r provider.Result) string {
	switch r.(type) {
	case provider.Done:
		return "done"
	case provider.Refused:
		return "refused"
	case provider.Retry:
		return "retry"
	case provider.Waiting:
		return "waiting"
	}
	return "unknown"
}

// honest checks a result of the first Do of a call against the books.
func (s subject) honest(t *testing.T, c *provider.Call, r provider.Result) {
	t.Helper()
	made := s.books(c).made
	k := kind(r)
	assert.True(t, (k != "done" || made == 1) && (k != "retry" && k != "refused" || made == 0), r, "and the effect happened", made, "times")
}

// trial is one part of the suite under way.
type trial struct {
	*testing.T
	of newSubject
}

func sameKey(t trial) {
	s, _ := t.of.laid(t.T)
	c := s.call()
	first := s.mustDo(t.T, c)
	second := s.mustDo(t.T, again(c))
	assert.True(t, first.Reference != "" && second.Reference == first.Reference, "references", first.Reference, "and", second.Reference)
	s.has(t.T, c, books{made: 1, standing: 1})
}

func sameBytes(t trial) {
	s, w := t.of.laid(t.T)
	c := s.call()
	c.Metadata = []byte(`{"b":"2","aa":"<1>"}`)
	s.mustDo(t.T, c)
	first := w.seen()
	next := again(c)
	if s.prepare == nil { // otherwise it is what the call is about
		next.Reference = "ch_17"
	}
	next.Metadata = []byte(`{ "aa": "\u003c1>",  "b": "2" }`)
	s.mustDo(t.T, next)
	second := w.seen()[len(first):]
	bodies := map[string]string{}
	for _, r := range append(first, second...) {
		if r.method != http.MethodPost {
			continue
		}
		assert.True(t, r.key() != "", r.method, r.uri, "has no key")
		body, known := bodies[r.key()]
		assert.True(t, !known || body == r.uri+r.body, r.key(), "has", body, "and", r.uri+r.body)
		bodies[r.key()] = r.uri + r.body
	}
}

func sameTime(t trial) {
	s, _ := t.of.laid(t.T)
	c := s.call()
	results := make([]provider.Result, 8)
	var calls sync.WaitGroup
	for i := range results {
		calls.Go(func() { results[i] = s.Do(t.Context(), c) })
	}
	calls.Wait()
	for _, r := range results {
		k := kind(r)
		assert.True(t, k == "done" || k == "unknown" || k == "retry", r)
	}
	s.mustDo(t.T, again(c))
	s.has(t.T, c, books{made: 1, standing: 1})
}

// lostReplies loses the reply of each request a Do makes, in turn.
func lostReplies(t trial) {
	assert.True(t, eachRequest(t, lostReply), "no reply was lost after the effect")
	eachRequest(t, cutReply)
}

func lostRequests(t trial) { eachRequest(t, lostRequest) }

// eachRequest breaks the first request of a Do, then the second, and so on. It reports
// whether a Do was unknown after its effect had happened.
func eachRequest(t trial, f fault) (afterEffect bool) {
	t.Helper()
	for number := 0; ; number++ {
		s, w := t.of.laid(t.T)
		w.breaks(number, f)
		c := s.call()
		result := s.Do(t.Context(), c)
		if len(w.seen()) <= number {
			return afterEffect
		}
		s.honest(t.T, c, result)
		k := kind(result)
		assert.True(t, k == "unknown" || k == "done" || k == "retry", "request", number, result)
		afterEffect = afterEffect || kind(result) == "unknown" && s.books(c).made == 1
		s.mustDo(t.T, again(c))
		s.has(t.T, c, books{made: 1, standing: 1})
	}
}

func slowAnswers(t trial) {
	for _, done := range []bool{false, true} {
		s, w := t.of.laid(t.T)
		over := late{t.Context(), make(chan struct{})}
		w.breaks(0, func(_ http.ResponseWriter, r *http.Request, provider http.Handler) {
			if done {
				within(r, provider)
			}
			close(over.passed)
			<-r.Context().Done()
		})
		c := s.call()
		result := s.Do(over, c)
		assert.Equal(t, kind(result), "unknown", result)
		s.mustDo(t.T, again(c))
		s.has(t.T, c, books{made: 1, standing: 1})
	}
}

// late is a context whose deadline passes when the test says so: on a busy machine, one that is set beforehand may pass
// before the request is sent.
type late struct {
	context.Context
	passed chan struct{}
}

func (l late) Done() <-chan struct{} { return l.passed }

func (l late) Err() error {
	select {
	case <-l.passed:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

func canceledBefore(t trial) {
	s, w := t.of.laid(t.T)
	c := s.call()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	result, ok := s.Do(ctx, c).(provider.Retry)
	assert.True(t, ok && !result.Counts, result)
	assert.Equal(t, len(w.seen()), 0, "requests")
}

func canceledDuring(t trial) {
	s, w := t.of.laid(t.T)
	c := s.call()
	ctx, cancel := context.WithCancel(t.Context())
	w.breaks(0, func(to http.ResponseWriter, r *http.Request, provider http.Handler) {
		within(r, provider)
		cancel()
		<-r.Context().Done()
	})
	result := s.Do(ctx, c)
	assert.Equal(t, kind(result), "unknown", result)
	s.mustDo(t.T, again(c))
	s.has(t.T, c, books{made: 1, standing: 1})
}

func refusedConnection(t trial) {
	s := t.of(t.T, func(provider http.Handler) string {
		gone := httptest.NewServer(provider)
		defer gone.Close()
		return gone.URL
	})
	c := s.call()
	result, ok := s.Do(t.Context(), c).(provider.Retry)
	assert.True(t, ok && !result.Counts && result.Code != "", result)
	s.has(t.T, c, books{})
}

func refusals(t trial) {
	s, _ := t.of.laid(t.T)
	if s.decline == nil {
		t.Skip("this provider refuses nothing")
	}
	c := s.call()
	s.decline(c)
	for _, call := range []*provider.Call{c, again(c)} {
		result, ok := s.Do(t.Context(), call).(provider.Refused)
		assert.True(t, ok && result.Code != "", result)
	}
	s.has(t.T, c, books{})
}

func undoOnce(t trial) {
	s, _ := t.of.laid(t.T)
	s.undoable(t.T)
	c := s.call()
	done := s.mustDo(t.T, c)
	c.Reference = done.Reference
	s.mustUndo(t.T, c)
	s.mustUndo(t.T, again(c))
	s.has(t.T, c, books{made: 1})
	s.mustFail(t.T, again(c))
	s.has(t.T, c, books{made: 1})
}

func undoUnseen(t trial) {
	s, _ := t.of.laid(t.T)
	s.undoable(t.T)
	c := s.call()
	s.mustUndo(t.T, c)
	s.mustFail(t.T, c)
	s.mustUndo(t.T, again(c))
	s.has(t.T, c, books{})
}

// undoLost loses the reply of each request an Undo makes, in turn.
func undoLost(t trial) {
	for number := 0; ; number++ {
		s, w := t.of.laid(t.T)
		s.undoable(t.T)
		c := s.call()
		c.Reference = s.mustDo(t.T, c).Reference
		before := len(w.seen())
		w.breaks(before+number, lostReply)
		result := s.Undo(t.Context(), c)
		assert.True(t, kind(result) == "unknown" || kind(result) == "done" || kind(result) == "retry", result)
		if len(w.seen()) <= before+number {
			return
		}
		s.mustUndo(t.T, again(c))
		s.has(t.T, c, books{made: 1})
	}
}

func undoRaces(t trial) {
	s, _ := t.of.laid(t.T)
	s.undoable(t.T)
	var calls sync.WaitGroup
	for range 10 {
		c := s.call()
		calls.Go(func() { s.Do(t.Context(), c) })
		calls.Go(func() {
			s.Undo(t.Context(), again(c))
		})
		calls.Wait()
		s.mustUndo(t.T, again(c))
		b := s.books(c)
		assert.True(t, b.standing == 0 && b.made <= 1, b)
	}
}

func undoRefused(t trial) {
	s, _ := t.of.laid(t.T)
	s.undoable(t.T)
	if s.decline == nil {
		t.Skip("this provider refuses nothing")
	}
	c := s.call()
	s.decline(c)
	result := s.Do(t.Context(), c)
	assert.Require(t, kind(result) == "refused", result)
	s.mustUndo(t.T, c)
	s.mustFail(t.T, again(c))
	s.has(t.T, c, books{})
}

func lookups(t trial) {
	s, _ := t.of.laid(t.T)
	looker, ok := s.Executor.(provider.Looker)
	if !ok {
		t.Skip("it can't be asked")
	}
	asked := func(c *provider.Call, want string) provider.Result {
		t.Helper()
		result := looker.Lookup(t.Context(), again(c))
		assert.Equal(t, kind(result), want, "look-up", result)
		return result
	}
	c := s.call()
	asked(c, "retry")
	done := s.mustDo(t.T, c)
	found, _ := asked(c, "done").(provider.Done)
	assert.Equal(t, found.Reference, done.Reference, "look-up found")
	if s.decline != nil {
		declined := s.call()
		s.decline(declined)
		s.Do(t.Context(), declined)
		asked(declined, "refused")
	}
	if s.of == fsm.Confirm {
		return
	}
	s.mustUndo(t.T, c)
	asked(c, "refused")
	unseen := s.call()
	s.mustUndo(t.T, unseen)
	asked(unseen, "refused")
}

// simulated is an executor whose provider is the simulator.
func simulated(of fsm.Step, policyOf func(url string) policy.Step) newSubject {
	return func(t *testing.T, serve func(http.Handler) string) subject {
		t.Helper()
		sim := newSimulator(t, simulator.Config{Secret: secretText})
		return subject{
			Executor: endpoint.New(new(policyOf(serve(sim))), of, local, provider.NewTransport(0, true)), of: of,
			decline: func(c *provider.Call) { c.Item = "decline" },
			books:   counted(t, sim, func(c *provider.Call) string { return c.Key(provider.Do) }),
		}
	}
}

func newSimulator(t *testing.T, config simulator.Config) *simulator.Simulator {
	t.Helper()
	sim, err := simulator.Open(config)
	assert.NoError(t, err)
	t.Cleanup(func() {
		assert.Succeeds(t, sim.Close())
	})
	return sim
}

// counted counts what the simulator has of a step of an order, all of which must be under one key.
func counted(t *testing.T, sim *simulator.Simulator, key func(*provider.Call) string) func(*provider.Call) books {
	t.Helper()
	return func(c *provider.Call) (b books) {
		for _, entry := range sim.Books(c.OrderID) {
			if c.Step == fsm.Confirm && entry.Step != string(fsm.Confirm) { // of what was prepared
				continue
			}
			assert.Equal(t, entry.Key, key(c), "the provider knows", c.OrderID, "as")
			b.made += entry.Effects
			if entry.State == simulator.Live { // also money that is only authorized
				b.standing++
			}
		}
		return b
	}
}
