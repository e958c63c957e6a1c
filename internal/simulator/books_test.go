package simulator_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pawl/internal/simulator"
	"pawl/test/assert"
)

func TestBooks(t *testing.T) {
	t.Parallel()
	p := history(t)
	p.answers(call{key: "more", order: "more", amount: "0.015"}, "200 ch_5")
	p.answers(call{key: "unmore", undo: "more", order: "more", amount: "0.015"}, "200 refunded rf_6")

	var entry simulator.Entry
	lines := strings.Split(p.get("/books?orderId=other"), "\n")
	err := json.Unmarshal([]byte(lines[0]), &entry)
	assert.Require(t, err == nil && len(lines) == 1, lines, err)
	assert.True(t, !entry.At.IsZero(), "no time")
	entry.At = time.Time{}
	want := simulator.Entry{
		Key: "stock", Subject: simulator.Subject{OrderID: "other", Step: "reserve", Amount: "99.99", Currency: "USD", Quantity: 2, Item: "widget"},
		State: simulator.Undone, Reference: "rs_2", Effects: 1, Requests: 1,
	}
	assert.Equal(t, entry, want)
	assert.Equal(t, strings.Count(p.get("/books"), "\n")+1, 6, "lines")
	assert.Equal(t, p.get("/books?orderId=nobody"), "", "books of nobody")

	const sum = `{"steps":{"charge":{"effects":2,"live":1,"undone":1,"refused":1,"voided":1,"pending":1},` +
		`"confirm":{"effects":0,"live":0,"undone":0,"refused":0,"voided":0,"pending":0},` +
		`"reserve":{"effects":1,"live":0,"undone":1,"refused":0,"voided":0,"pending":0}},` +
		`"money":[{"currency":"USD","charged":"100.005","refunded":"0.015","kept":"99.990"}],` +
		`"doubleLive":0,"overlaps":0,"repeatedEffects":0,"requests":8,"repeated":0,"answersFound":0,"duplicatesSuppressed":0,"refusedAfterUndo":0}`
	assert.Equal(t, p.get("/summary"), sum)
}

func TestRequests(t *testing.T) {
	t.Parallel()
	p := start(t, simulator.Config{})
	header := http.Header{"Fencing-Token": {"7"}}
	p.answers(call{item: "error", header: header}, "500 error")
	p.answers(call{item: "error"}, "200 ch_1")
	p.answers(call{key: "undo", undo: "key", item: "error"}, "200 refunded rf_2")
	p.answers(call{key: "other", order: "other"}, "200 ch_3")
	var got []string
	for _, text := range strings.Split(p.get("/requests?orderId=order"), "\n") {
		var r simulator.Request
		assert.NoError(t, json.Unmarshal([]byte(text), &r))
		got = append(got, fmt.Sprint(r.Number, r.Key, r.UndoKey, r.TimesSent, r.Step, r.Operation, r.Fence, r.Fault, r.Outcome, r.Answered))
	}
	want := []string{"1key1charge" + "do7errorerrortrue", "2key2chargedo0donetrue", "3undokey1chargeundo0refundedtrue"}
	for i := range want {
		assert.True(t, i < len(got) && strings.ReplaceAll(got[i], " ", "") == want[i], got, "want", want[i])
	}
	assert.Equal(t, len(p.Requests("")), 4, "requests")
}

func TestPlan(t *testing.T) {
	t.Parallel()
	p := start(t, simulator.Config{})
	post := func(text string) (int, string) {
		t.Helper()
		response, err := p.client.Post(p.url+"/faults", "application/json", strings.NewReader(text))
		assert.NoError(t, err)
		defer response.Body.Close()
		got, _ := line(response)
		return response.StatusCode, got
	}
	status, got := post(`["decline:no@reserve", {"fault":"decline","amount":"13.0","code":"unlucky"}, {"fault":"slow","delay":"1ms","times":1}]`)
	assert.Require(t, status == http.StatusOK, status, got)
	const plan = `[{"fault":"decline","step":"reserve","operation":"do","code":"no"},` +
		`{"fault":"decline","amount":"13.0","operation":"do","code":"unlucky"},{"fault":"slow","operation":"do","times":1,"delay":"1ms"}]`
	for _, bad := range []string{`[{"fault":"decline","itm":"x"}]`, `["explode"]`, `[{"fault":"slow","delay":"soon"}]`, `{}`} {
		status, _ := post(bad)
		assert.Equal(t, status, http.StatusBadRequest, bad)
	}
	assert.Equal(t, p.get("/faults"), plan, "a plan that makes no sense was taken")
	p.answers(call{key: "a", amount: "13"}, "402 refused unlucky")
	p.answers(call{key: "b", step: "reserve"}, "402 refused no")
	p.answers(call{key: "c"}, "200 ch_1")
	p.faults()
	p.answers(call{key: "d", amount: "13", order: "other"}, "200 ch_2")
	p.faults("approve,order=vip-", "decline")
	p.answers(call{key: "e", order: "vip-1"}, "200 ch_3")
	p.answers(call{key: "f", order: "1"}, "402 refused card_declined")
}

// drawn returns which of many orders have a fault.
func drawn(t *testing.T, seed uint64, prefix string) (orders []int) {
	t.Helper()
	rule, err := simulator.ParseRule("decline,fraction=0.25")
	assert.NoError(t, err)
	sim, err := simulator.Open(simulator.Config{Seed: seed, Faults: []simulator.Rule{rule}})
	assert.NoError(t, err)
	for i := range 1000 {
		order := strconv.Itoa(i)
		if strings.HasPrefix(ask(sim, call{key: prefix + order, order: order}.request(t.Context(), "http://provider")), "402") {
			orders = append(orders, i)
		}
	}
	err = sim.Close()
	assert.True(t, err == nil, err)
	return orders
}

func TestFraction(t *testing.T) {
	t.Parallel()
	one := drawn(t, 1, "a")
	if off := math.Abs(float64(len(one)) - 250); off > 70 { // five standard deviations
		t.Errorf("%d of 1000", len(one))
	}
	assert.Equal(t, fmt.Sprint(drawn(t, 1, "b")), fmt.Sprint(one), "the key or chance decides")
	assert.True(t, fmt.Sprint(drawn(t, 2, "a")) != fmt.Sprint(one), "the seed does not decide")
}

func TestParseRule(t *testing.T) {
	t.Parallel()
	for _, good := range []struct {
		text string
		rule simulator.Rule
	}{
		{"hang", simulator.Rule{Fault: simulator.Hang, Operation: "do"}},
		{"error3:503@confirm", simulator.Rule{Fault: simulator.Error, Status: 503, Times: 3, Step: "confirm", Operation: "do"}},
		{"timeout_after@charge/undo,order=a,item=b",
			simulator.Rule{Fault: simulator.TimeoutAfter, Step: "charge", Operation: "undo", OrderPrefix: "a", Item: "b"}},
		{"async:1.5s,fraction=0.5,code=no",
			simulator.Rule{Fault: simulator.Async, Delay: 1500 * time.Millisecond, Fraction: 0.5, Code: "no", Operation: "do"}},
		{"rate-limit", simulator.Rule{Fault: simulator.RateLimit, Delay: time.Second, Operation: "do"}},
		{"slow", simulator.Rule{Fault: simulator.Slow, Delay: 2 * time.Second, Operation: "do"}},
		{"forget-declines", simulator.Rule{Fault: simulator.ForgetDeclines, Code: "card_declined", Times: 1, Operation: "do"}},
	} {
		got, err := simulator.ParseRule(good.text)
		assert.True(t, got == good.rule && err == nil, good.text, got, err)
	}
	for _, bad := range []string{
		"", "explode", "Decline", "slow:soon", "slow:-1s", "error:200", "error:402", "error:x", "decline@ship", "hang,color=red", "hang,fraction=2",
		"hang,fraction=NaN", "hang,amount=much", "async@charge/undo", "forget-declines@charge/undo", "late-after-void,code=x",
	} {
		got, err := simulator.ParseRule(bad)
		assert.True(t, err != nil, bad, got)
	}
}

func TestItems(t *testing.T) {
	t.Parallel()
	p := start(t, simulator.Config{})
	p.answers(call{key: "1", item: "decline:no@reserve"}, "200 ch_1")
	p.answers(call{key: "2", item: "decline:no@reserve", step: "reserve"}, "402 refused no")
	p.answers(call{key: "3", item: "decline it", order: "3"}, "200 ch_2")
	p.answers(call{key: "4", item: "Decline", order: "4"}, "200 ch_3")
	p.answers(call{key: "5", item: "slow:soon", order: "5"}, "200 ch_4")
	p.answers(call{key: "6", item: "error", order: "6"}, "500 error") // once for each key
	p.answers(call{key: "6", item: "error", order: "6"}, "200 ch_5")
	p.answers(call{key: "7", item: "error", order: "7", step: "reserve"}, "500 error")
	for range 2 {
		p.answers(call{key: "8", item: "error0:503", order: "8"}, "503 error")
	}
}

// known is the books without what is only counted since the start.
func known(sim *simulator.Simulator) string {
	var out strings.Builder
	for _, e := range sim.Books("") {
		e.Requests = 0
		fmt.Fprintf(&out, "%+v\n", e)
	}
	return out.String()
}

// history makes a file with one key of every kind.
func history(t *testing.T) *provider {
	t.Helper()
	p := start(t, simulator.Config{File: write(t, nil)})
	p.answers(call{key: "live"}, "200 ch_1")
	p.answers(call{key: "refused", item: "decline"}, "402 refused card_declined")
	p.answers(call{key: "stock", order: "other", step: "reserve"}, "200 rs_2")
	p.answers(call{key: "unstock", order: "other", undo: "stock", step: "reserve"}, "200 released rl_3")
	p.answers(call{key: "pending", item: "async:1h", callback: "http://127.0.0.1:1/"}, "202 ch_4")
	p.answers(call{key: "void", undo: "voided"}, "200 voided")
	return p
}

func TestFile(t *testing.T) {
	t.Parallel()
	t.Run("tells after an unclean stop what was answered", func(t *testing.T) {
		t.Parallel()
		p := history(t)
		q := start(t, simulator.Config{File: crash(t, p.file)})
		got, want := known(q.Simulator), known(p.Simulator)
		assert.True(t, got == want && strings.Count(got, "\n") == 5, got, "want", want)
		q.answers(call{key: "live"}, "200 ch_1 again")
		q.answers(call{key: "live", amount: "1"}, "422 idempotency_mismatch")
		q.answers(call{key: "refused", item: "decline"}, "402 refused card_declined again")
		q.answers(call{key: "stock", order: "other", step: "reserve"}, "402 refused voided again")
		q.answers(call{key: "unstock", order: "other", undo: "stock", step: "reserve"}, "200 released rl_3 again")
		q.answers(call{key: "unstock", order: "other", undo: "live", step: "reserve"}, "422 idempotency_mismatch")
		q.answers(call{key: "pending", item: "async:1h", callback: "http://127.0.0.1:1/"}, "202 ch_4 again")
		q.answers(call{key: "voided"}, "402 refused voided")
		q.answers(call{key: "new", order: "new"}, "200 ch_5")
	})
}

func TestTornFile(t *testing.T) {
	t.Parallel()
	t.Run("loses nothing but the part of a line, wherever it was torn", func(t *testing.T) {
		t.Parallel()
		p := history(t)
		whole, err := os.ReadFile(p.file)
		assert.NoError(t, err)
		last := bytes.LastIndexByte(whole[:len(whole)-1], '\n') + 1
		file := write(t, nil)
		for end := last; end < len(whole); end += 7 {
			assert.NoError(t, os.WriteFile(file, whole[:end], 0o600))
			sim, err := simulator.Open(simulator.Config{File: file})
			assert.NoError(t, err, "torn at", end)
			books := sim.Books("")
			err = sim.Close()
			assert.True(t, err == nil && len(books) == 4, "torn at", end, err, books)
			text, err := os.ReadFile(file)
			assert.True(t, err == nil && bytes.Equal(text, whole[:last]), "torn at", end, err, text, "is left")
		}
	})
	t.Run("holds whatever was answered while others are written", func(t *testing.T) {
		t.Parallel()
		p := start(t, simulator.Config{File: write(t, nil)})
		var mu sync.Mutex
		var answered, before []string
		var file string
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				for n := range 10 {
					key := fmt.Sprintf("%d-%d", i, n)
					p.answered(t, key)
					mu.Lock()
					answered = append(answered, key)
					if len(answered) == 100 {
						before, file = slices.Clone(answered), crash(t, p.file)
					}
					mu.Unlock()
				}
			})
		}
		all.Wait()
		q := start(t, simulator.Config{File: file})
		for _, key := range before {
			q.stands(key, "live 1")
		}
	})
}

func TestBadFile(t *testing.T) {
	t.Parallel()
	t.Run("that is damaged is refused, and the place named", func(t *testing.T) {
		t.Parallel()
		for text, want := range map[string]string{
			"{\"entries\":[{\"key\":\"a\"}]}\n{\"en\n{\"forgot\":\"a\"}\n": "line 2: read record",
			"{\"entries\":[{\"key\":\"a\",\"number\":2}]}\n":               "line 1: entry 2 comes before entry 1",
		} {
			_, err := simulator.Open(simulator.Config{File: write(t, []byte(text))})
			assert.True(t, err != nil && strings.Contains(err.Error(), want), text, err)
		}
	})
	t.Run("is for one simulator at a time", func(t *testing.T) {
		t.Parallel()
		p := start(t, simulator.Config{File: write(t, nil)})
		_, err := simulator.Open(simulator.Config{File: p.file})
		assert.True(t, err != nil && strings.Contains(err.Error(), "another simulator"), err)
		assert.NoError(t, p.Close())
		start(t, simulator.Config{File: p.file})
	})
	t.Run("that can't be made is an error", func(t *testing.T) {
		t.Parallel()
		assert.True(t, assert.Err(simulator.Open(simulator.Config{File: filepath.Join(t.TempDir(), "none", "file")})) != nil,
			"opened")
	})
	t.Run("that can't be written is an unknown outcome", func(t *testing.T) {
		t.Parallel()
		if _, err := os.Stat("/dev/full"); err != nil {
			t.Skip("no /dev/full")
		}
		// What says that it was done must be on disk: no answer of it may leave.
		p := start(t, simulator.Config{File: write(t, nil)})
		p.BreakFile("/dev/full")
		p.answers(call{}, "500 storage")
		p.answers(call{}, "500 storage")
		p.answers(call{key: "undo", undo: "key"}, "500 storage")
		n := p.Unwritten()
		assert.True(t, n == 0, n, "bytes are kept that will never be written")
	})
}

func (p *provider) answered(t *testing.T, key string) {
	t.Helper()
	got, err := p.send(call{key: key, order: key})
	assert.True(t, err == nil && strings.HasPrefix(got, "200 ch_"), key, got, err)
}

func TestClose(t *testing.T) {
	t.Parallel()
	p := start(t, simulator.Config{})
	hung := make(chan struct{})
	go func() {
		defer close(hung)
		p.sees(call{item: "timeout-after"}, dropped)
	}()
	p.awaits(t, "key", "done")
	for range 2 {
		assert.NoError(t, p.Close())
	}
	<-hung
	p.answers(call{key: "late"}, "503 not_done closed")
	p.stands("key", "live 1")
	p.stands("late", "")
}
