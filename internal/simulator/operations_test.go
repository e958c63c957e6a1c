package simulator_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"pawl/internal/simulator"
	"pawl/test/assert"
)

func TestOneKey(t *testing.T) {
	t.Parallel()
	each(t, map[string]func(*provider){
		"200 at the same time are one effect": func(p *provider) {
			var mu sync.Mutex
			answers := map[string]int{}
			var all sync.WaitGroup
			for range 200 {
				all.Go(func() {
					got, err := p.send(call{})
					assert.True(p.t, err == nil, err)
					mu.Lock()
					defer mu.Unlock()
					answers[got]++
				})
			}
			all.Wait()
			assert.True(p.t, answers["200 ch_1"] == 1 && answers["200 ch_1 again"]+answers["409 in_progress"] == 199, answers)
			p.stands("key", "live 1")
			sum := p.Summary()
			assert.True(p.t, sum.DuplicatesSuppressed == 199 && sum.Requests == 200 && p.Books("")[0].Requests == 200, sum)
		},
		"is for one request": func(p *provider) {
			p.answers(call{}, "200 ch_1")
			p.answers(call{amount: "1.00"}, "422 idempotency_mismatch")
			p.answers(call{step: "reserve"}, "422 idempotency_mismatch")
			p.answers(call{key: "key", undo: "other"}, "422 idempotency_mismatch")
			p.answers(call{key: "undo", undo: "key"}, "200 refunded rf_2")
			p.answers(call{key: "undo", undo: "other"}, "422 idempotency_mismatch")
			p.answers(call{key: "undo"}, "422 idempotency_mismatch")
			p.answers(call{key: "strange", undo: "key", step: "reserve"}, "422 idempotency_mismatch")
			p.answers(call{key: "strange", undo: "key", order: "other"}, "422 idempotency_mismatch")
			p.stands("key", "undone 1")
			p.stands("undo", "")
			p.stands("other", "")
		},
		"that was never seen": func(p *provider) {
			assert.Equal(p.t, p.get("/lookup?key=key"), `{"state":"unseen"}`, "looked up")
		},
	})
}

func TestBadRequests(t *testing.T) {
	t.Parallel()
	const good = `{"orderId":"o","step":"charge","operation":"do","generation":0,"amount":"1.50","currency":"USD","item":"w","quantity":1}`
	p := start(t, simulator.Config{})
	for name, body := range map[string]string{
		"no JSON":                 `{`,
		"no order":                strings.Replace(good, `"o"`, `""`, 1),
		"another step":            strings.Replace(good, `"charge"`, `"reserve"`, 1),
		"another operation":       strings.Replace(good, `"do"`, `"undo"`, 1),
		"an amount as a number":   strings.Replace(good, `"1.50"`, `1.50`, 1),
		"a negative amount":       strings.Replace(good, `1.50`, `-1.50`, 1),
		"an amount of a fraction": strings.Replace(good, `1.50`, `1/2`, 1),
		"an amount in powers":     strings.Replace(good, `1.50`, `1e2`, 1),
		"a negative generation":   strings.Replace(good, `"generation":0`, `"generation":-1`, 1),
		"a callback to a file":    strings.Replace(good, `"quantity"`, `"callbackUrl":"file:///etc","quantity"`, 1),
		"a long body":             good + strings.Repeat(" ", 300_000),
		"no key":                  good,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url+"/charge", strings.NewReader(body))
			if name != "no key" {
				r.Header.Set("Idempotency-Key", name)
			}
			response, err := p.client.Do(r)
			assert.NoError(t, err)
			defer response.Body.Close()
			got, err := line(response)
			assert.True(t, got == "400 not_done bad_request" && err == nil, got, err)
			p.stands(name, "")
		})
	}
	for name, c := range map[string]call{
		"an undo of nothing": {key: "u", undo: ""},
		"an undo of itself":  {key: "u", undo: "u"},
		"a fence of letters": {key: "u", header: http.Header{"Fencing-Token": {"x"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := c.request(t.Context(), p.url)
			if name == "an undo of nothing" {
				r.URL.Path = "/charge/undo"
			}
			response, err := p.client.Do(r)
			assert.NoError(t, err)
			defer response.Body.Close()
			got, err := line(response)
			assert.True(t, got == "400 not_done bad_request" && err == nil, got, err)
		})
	}
}

// What a provider forgets is its keys, and not what it did.
func TestForgottenKeys(t *testing.T) {
	t.Parallel()
	atOnce := simulator.Config{KeyRetention: time.Nanosecond}
	named := call{key: "undo", undo: "key", reference: "ch_1"}
	each(t, map[string]func(*provider){
		"are done again": func(p *provider) {
			p = start(p.t, atOnce)
			p.answers(call{}, "200 ch_1")
			p.answers(call{}, "200 ch_2")
			sum := p.Summary()
			assert.True(p.t, !sum.OK() && sum.DoubleLive == 1, sum)
		},
		"have nothing to take back": func(p *provider) {
			p = start(p.t, atOnce)
			p.answers(call{}, "200 ch_1")
			p.answers(call{key: "undo", undo: "key"}, "200 voided")
			assert.Equal(p.t, p.Summary().Steps["charge"].Live, 1, "live")
		},
	})
	t.Run("are not asked for by an undo that names what it takes back", func(t *testing.T) {
		t.Parallel()
		atOnce := simulator.Config{KeyRetention: time.Nanosecond, File: write(t, nil)}
		p := start(t, atOnce)
		p.answers(call{}, "200 ch_1")
		p.answers(named, "200 refunded rf_2")
		p.stands("key", "undone 1")
		q := start(t, simulator.Config{File: crash(t, p.file)})
		assert.Equal(t, known(q.Simulator), known(p.Simulator))
		q.answers(named, "200 refunded rf_2 again")
		q.answers(call{}, "402 refused voided again")
		p.answers(named, "200 refunded rf_2 again")
	})
	each(t, map[string]func(*provider){
		"and a name that was never given are no success": func(p *provider) {
			p = start(p.t, atOnce)
			p.answers(call{}, "200 ch_1")
			p.answers(call{key: "undo", undo: "key", reference: "ch_7"}, "402 refused unknown_reference")
		},
		"are looked up as unseen": func(p *provider) {
			p = start(p.t, atOnce)
			p.answers(call{}, "200 ch_1")
			assert.Equal(p.t, p.get("/lookup?key=key"), `{"state":"unseen"}`)
		},
	})
}

func TestUndoByReference(t *testing.T) {
	t.Parallel()
	each(t, map[string]func(*provider){
		"of a key that is known goes by the key": func(p *provider) {
			p.answers(call{}, "200 ch_1")
			p.answers(call{key: "undo", undo: "key", reference: "ch_1"}, "200 refunded rf_2")
		},
		"that is of another key takes nothing back": func(p *provider) {
			p.answers(call{}, "200 ch_1")
			p.answers(call{key: "two", order: "other"}, "200 ch_2")
			p.answers(call{key: "undo", undo: "key", reference: "ch_2"}, "422 idempotency_mismatch")
			p.answers(call{key: "undo", undo: "nobody's", reference: "ch_2"}, "422 idempotency_mismatch")
			p.stands("key", "live 1")
			p.stands("two", "live 1")
		},
	})
}

func TestUndo(t *testing.T) {
	t.Parallel()
	undo := call{key: "undo", undo: "key"}
	each(t, map[string]func(*provider){
		"of a key that was never seen makes a later do fail": func(p *provider) {
			p.answers(undo, "200 voided")
			p.answers(undo, "200 voided again")
			p.answers(call{}, "402 refused voided")
			p.answers(call{}, "402 refused voided again")
			p.stands("key", "voided 0")
			sum := p.Summary()
			assert.True(p.t, sum.RefusedAfterUndo == 2 && sum.DuplicatesSuppressed == 2, sum)
		},
		"takes an effect back once": func(p *provider) {
			p.answers(call{}, "200 ch_1")
			p.answers(undo, "200 refunded rf_2")
			p.answers(undo, "200 refunded rf_2 again")
			p.answers(call{key: "another undo", undo: "key"}, "200 refunded rf_2")
			p.answers(call{}, "402 refused voided again")
			p.stands("key", "undone 1")
			p.answers(call{key: "stock", step: "reserve"}, "200 rs_3")
			p.answers(call{key: "unstock", undo: "stock", step: "reserve"}, "200 released rl_4")
			assert.Equal(p.t, p.get("/lookup?key=key"), `{"state":"undone","reference":"ch_1","code":"voided"}`,
				"looked up")
		},
		"of a refused do has nothing to take back": func(p *provider) {
			p.answers(call{item: "decline"}, "402 refused card_declined")
			p.answers(call{key: "undo", undo: "key", item: "decline"}, "200 voided")
			p.stands("key", "refused 0")
		},
		"stops a provider that forgets declines": func(p *provider) {
			p.faults("forget-declines")
			p.answers(call{}, "402 refused card_declined")
			p.answers(undo, "200 voided")
			p.answers(call{}, "402 refused voided")
		},
		"of a confirmation does not exist": func(p *provider) {
			p.answers(call{step: "confirm"}, "200 cf_1")
			got, err := p.send(call{key: "undo", undo: "key", step: "confirm"})
			assert.True(p.t, err != nil, "answered", got)
			p.stands("key", "live 1")
		},
		"does not wait for a do in progress: it will be refused": func(p *provider) {
			left := make(chan struct{})
			go func() {
				defer close(left)
				p.sees(call{item: "hang"}, dropped) // until Close
			}()
			p.awaits(p.t, "key", "running")
			p.answers(call{item: "hang"}, "409 in_progress")
			assert.Equal(p.t, p.get("/lookup?key=key"), `{"state":"in_progress"}`, "looked up")
			p.answers(call{key: "undo", undo: "key", item: "hang"}, "200 voided")
			p.stands("key", "voided 0")
			assert.Succeeds(p.t, p.Close())
			<-left
		},
	})
}

func (p *provider) awaits(t *testing.T, key, outcome string) {
	t.Helper()
	_, err := p.Await(t.Context(), func(r simulator.Request) bool { return r.Key == key && r.Outcome == outcome })
	assert.NoError(t, err)
}

func TestBreachOfContract(t *testing.T) {
	t.Parallel()
	undo := call{key: "undo", undo: "key"}
	each(t, map[string]func(*provider){
		"a late do charges after a void, and the books say so": func(p *provider) {
			p.faults("late-after-void,order=order")
			p.answers(undo, "200 voided")
			p.answers(call{key: "next", generation: 1}, "200 ch_1")
			p.answers(call{}, "200 ch_2")
			p.stands("key", "live 1")
			check := func(p *provider) {
				p.t.Helper()
				sum := p.Summary()
				assert.True(p.t, !sum.OK() && sum.DoubleLive == 1 && sum.Overlaps == 1 && sum.RepeatedEffects == 0, sum)
			}
			check(p)
			check(start(p.t, simulator.Config{File: crash(p.t, p.file)}))
			p.answers(undo, "200 refunded rf_3 again") // also with the key of the void
			p.stands("key", "undone 1")
		},
		"an effect twice under one key is counted": func(p *provider) {
			p.faults("late-after-void")
			p.answers(call{}, "200 ch_1")
			p.answers(undo, "200 refunded rf_2")
			p.answers(call{}, "200 ch_3")
			p.stands("key", "live 2")
			sum := p.Summary()
			assert.True(p.t, !sum.OK() && sum.DoubleLive == 0 && sum.Overlaps == 0 && sum.RepeatedEffects == 1, sum)
		},
		"two generations are legal one after the other": func(p *provider) {
			p.answers(call{}, "200 ch_1")
			p.answers(undo, "200 refunded rf_2")
			p.answers(call{key: "next", generation: 1}, "200 ch_3")
			if sum := p.Summary(); !sum.OK() {
				p.t.Errorf("%+v", sum)
			}
			p.answers(call{key: "third", generation: 2}, "200 ch_4")
			sum := p.Summary()
			assert.True(p.t, !sum.OK() && sum.DoubleLive == 1, sum)
		},
	})
}

// TestUndoRaces sends a do and its undo at the same time, over real connections.
func TestUndoRaces(t *testing.T) {
	t.Parallel()
	p := start(t, simulator.Config{File: write(t, nil)})
	var all sync.WaitGroup
	for i := range 100 {
		key := fmt.Sprintf("key %d", i)
		for _, c := range []call{{key: key}, {key: key}, {key: "undo " + key, undo: key}} {
			c.order = key
			all.Go(func() {
				assert.Succeeds(t, assert.Err(p.send(c)))
			})
		}
	}
	all.Wait()
	for _, e := range p.Books("") {
		assert.True(t, (e.State == simulator.Undone || e.State == simulator.Voided) && e.Effects <= 1, e)
	}
	assert.Equal(t, len(p.Books("")), 100, "keys")
}

// actor is a caller that sends a request at a time, and leaves a second later.
type actor struct {
	at   time.Duration
	undo bool
	key  int
}

// TestUndoIsForEver has dos and undos of some keys come at any time, with any fault that
// keeps the contract. Once an undo of a key has been answered, nothing is live under it.
func TestUndoIsForEver(t *testing.T) {
	t.Parallel()
	items := []string{
		"approve", "slow:30ms", "slow:3s", "hang", "timeout-before", "timeout-after", "cut-after", "error2", "error-after", "not-done", "decline",
		"refuse-connection", "async:20ms", "async:2s", "callback-twice:10ms", "callback-late:1s", "callback-before", "callback-never", "answer-twice",
		"forget-declines", "timeout-after@charge/undo", "slow:20ms@charge/undo",
	}
	rapid.Check(t, func(rt *rapid.T) {
		kinds := rapid.SliceOfN(rapid.SampledFrom(items), 1, 4).Draw(rt, "items")
		actors := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) actor {
			return actor{
				at:   time.Duration(rapid.IntRange(0, 60).Draw(rt, "ms")) * time.Millisecond,
				undo: rapid.Bool().Draw(rt, "undo"), key: rapid.IntRange(0, len(kinds)-1).Draw(rt, "key"),
			}
		}), 1, 30).Draw(rt, "actors")
		var faults []string
		synctest.Test(t, func(t *testing.T) { faults = play(t, kinds, actors) })
		if len(faults) > 0 {
			rt.Fatal(strings.Join(faults, "\n"))
		}
	})
}

func play(t *testing.T, items []string, actors []actor) (faults []string) {
	t.Helper()
	sim := simulator.New()
	sim.CallbackTo(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
	})
	var mu sync.Mutex
	undone := map[string]bool{}
	look := func() { // mu is held
		for _, e := range sim.Books("") {
			if undone[e.Key] && (e.State == simulator.Live || e.State == simulator.Pending) || e.Effects > 1 {
				faults = append(faults, fmt.Sprintf("%+v", e))
			}
		}
	}
	var all sync.WaitGroup
	for _, a := range actors {
		all.Go(func() {
			<-time.After(a.at)
			ctx, leave := context.WithTimeout(t.Context(), time.Second)
			defer leave()
			key := fmt.Sprintf("key %d", a.key)
			c := call{key: key, order: key, item: items[a.key], callback: "http://caller/"}
			if a.undo {
				c.key, c.undo = "undo "+key, key
			}
			mu.Lock()
			late := undone[key]
			mu.Unlock()
			got := ask(sim, c.request(ctx, "http://provider"))
			mu.Lock()
			defer mu.Unlock()
			if a.undo && strings.HasPrefix(got, "200 ") {
				undone[key] = true
			}
			if !a.undo && late && (strings.HasPrefix(got, "200") || strings.HasPrefix(got, "202")) {
				faults = append(faults, fmt.Sprintf("%s: answered %s after its undo", key, got))
			}
			look()
		})
	}
	all.Wait()
	<-time.After(time.Minute)
	look()
	if !sim.Summary().OK() {
		faults = append(faults, fmt.Sprintf("%+v", sim.Summary()))
	}
	assert.Succeeds(t, sim.Close())
	return faults
}
