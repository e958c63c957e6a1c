package simulator_test

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"pawl/internal/simulator"
)

func TestOneKey(t *testing.T) {
	t.Parallel()
	t.Run("200 at the same time are one effect", func(t *testing.T) {
		t.Parallel()
		p := start(t, simulator.Config{File: write(t, nil)})
		var mu sync.Mutex
		answers := map[string]int{}
		var all sync.WaitGroup
		for range 200 {
			all.Go(func() {
				got, err := p.send(call{})
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				answers[got]++
			})
		}
		all.Wait()
		if answers["200 ch_1"] != 1 || answers["200 ch_1 again"]+answers["409 in_progress"] != 199 {
			t.Errorf("%v", answers)
		}
		p.stands("key", "live 1")
		if sum := p.Summary(); sum.DuplicatesSuppressed != 199 || sum.Requests != 200 || p.Books("")[0].Requests != 200 {
			t.Errorf("%+v", sum)
		}
	})
	t.Run("is for one request", func(t *testing.T) {
		t.Parallel()
		p := start(t, simulator.Config{})
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
	})
	t.Run("that was never seen", func(t *testing.T) {
		t.Parallel()
		p := start(t, simulator.Config{})
		if lookup := p.get("/lookup?key=key"); lookup != `{"state":"unseen"}` {
			t.Errorf("looked up: %s", lookup)
		}
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
		"a long body":             good + strings.Repeat(" ", 70_000),
		"no key":                  good,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url+"/charge", strings.NewReader(body))
			if name != "no key" {
				r.Header.Set("Idempotency-Key", name)
			}
			response, err := p.client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			if got, err := line(response); got != "400 not_done bad_request" || err != nil {
				t.Errorf("%s %v", got, err)
			}
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
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			if got, err := line(response); got != "400 not_done bad_request" || err != nil {
				t.Errorf("%s %v", got, err)
			}
		})
	}
}

// What a provider forgets is its keys, and not what it did.
func TestForgottenKeys(t *testing.T) {
	t.Parallel()
	atOnce := simulator.Config{KeyRetention: time.Nanosecond}
	named := call{key: "undo", undo: "key", reference: "ch_1"}
	t.Run("are done again", func(t *testing.T) {
		t.Parallel()
		p := start(t, atOnce)
		p.answers(call{}, "200 ch_1")
		p.answers(call{}, "200 ch_2")
		if sum := p.Summary(); sum.OK() || sum.DoubleLive != 1 {
			t.Errorf("%+v", sum)
		}
	})
	t.Run("have nothing to take back", func(t *testing.T) {
		t.Parallel()
		p := start(t, atOnce)
		p.answers(call{}, "200 ch_1")
		p.answers(call{key: "undo", undo: "key"}, "200 voided")
		if live := p.Summary().Steps["charge"].Live; live != 1 {
			t.Errorf("%d live", live)
		}
	})
	t.Run("are not asked for by an undo that names what it takes back", func(t *testing.T) {
		t.Parallel()
		atOnce := simulator.Config{KeyRetention: time.Nanosecond, File: write(t, nil)}
		p := start(t, atOnce)
		p.answers(call{}, "200 ch_1")
		p.answers(named, "200 refunded rf_2")
		p.stands("key", "undone 1")
		q := start(t, simulator.Config{File: crash(t, p.file)})
		if got, want := known(q.Simulator), known(p.Simulator); got != want {
			t.Errorf("%s\nwant\n%s", got, want)
		}
		q.answers(named, "200 refunded rf_2 again")
		q.answers(call{}, "402 refused voided again")
		p.answers(named, "200 refunded rf_2 again")
	})
	t.Run("and a name that was never given are no success", func(t *testing.T) {
		t.Parallel()
		p := start(t, atOnce)
		p.answers(call{}, "200 ch_1")
		p.answers(call{key: "undo", undo: "key", reference: "ch_7"}, "402 refused unknown_reference")
	})
	t.Run("are looked up as unseen", func(t *testing.T) {
		t.Parallel()
		p := start(t, atOnce)
		p.answers(call{}, "200 ch_1")
		if lookup := p.get("/lookup?key=key"); lookup != `{"state":"unseen"}` {
			t.Error(lookup)
		}
	})
}

func TestUndoByReference(t *testing.T) {
	t.Parallel()
	t.Run("of a key that is known goes by the key", func(t *testing.T) {
		t.Parallel()
		p := start(t, simulator.Config{})
		p.answers(call{}, "200 ch_1")
		p.answers(call{key: "undo", undo: "key", reference: "ch_1"}, "200 refunded rf_2")
	})
	t.Run("that is of another key takes nothing back", func(t *testing.T) {
		t.Parallel()
		p := start(t, simulator.Config{})
		p.answers(call{}, "200 ch_1")
		p.answers(call{key: "two", order: "other"}, "200 ch_2")
		p.answers(call{key: "undo", undo: "key", reference: "ch_2"}, "422 idempotency_mismatch")
		p.answers(call{key: "undo", undo: "nobody's", reference: "ch_2"}, "422 idempotency_mismatch")
		p.stands("key", "live 1")
		p.stands("two", "live 1")
	})
}
