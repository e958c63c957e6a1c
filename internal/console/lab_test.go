package console_test

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"pawl/client"
	"pawl/internal/console"
)

// TestLab: the lab shows what is, offers what can be done to it, and works while no replica does.
func TestLab(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var asked []console.LabAction
	state := console.LabState{
		Replicas: []console.LabReplica{{1, "http://127.0.0.1:1", console.LabServes}, {2, "http://127.0.0.1:2", console.LabDead}},
		Faults:   []console.LabFault{{Name: "Works"}, {Name: "Slow", Says: "it is <b>slow</b>", Rules: []string{"slow:1s"}}},
		Rules:    []string{"slow:1s"},
		Books:    console.LabBooks{Lines: []console.LabLine{{What: "charges that stand", Pawl: "41", Provider: "42"}}, Unfinished: 1},
	}
	l := local(t, console.New(console.Config{
		Client: func(*http.Request) (*client.Client, error) { return nil, errors.New("no replica serves") },
		Lab: &console.Lab{
			State: func(context.Context) console.LabState {
				mu.Lock()
				defer mu.Unlock()
				return state
			},
			Do: func(_ context.Context, action console.LabAction) error {
				mu.Lock()
				defer mu.Unlock()
				asked = append(asked, action)
				if len(action.Rules) == 1 && action.Rules[0] == "nonsense" {
					return errors.New("nobody knows <nonsense>")
				}
				return nil
			},
		},
	}))
	ask := visitor(t, l)
	_, page := ask(http.MethodGet, "/console/lab", "")
	for text, want := range map[string]bool{
		`value="kill"`: true, `value="stop"`: true, `value="start"`: true, `value="go-on"`: false, `<button aria-pressed="true">Slow`: true,
		"it is &lt;b&gt;slow&lt;/b&gt;": true, "<b>slow": false, ">41<": true, ">42<": true, "are under way": true, `href="/console/lab"`: true,
		"is comparing the books": true, `data-live="/console/lab/live"`: true, "<style": false, " style=": false,
	} {
		if strings.Contains(page, text) != want {
			t.Errorf("%q on the page: %t; %s", text, !want, page)
		}
	}
	for _, form := range []url.Values{{"do": {"kill"}, "replica": {"1"}}, {"do": {"provider"}, "rules": {" hang \r\n\r\nslow:1s\n"}}} {
		if status, body := ask(http.MethodPost, "/console/lab", form.Encode()); status != http.StatusOK || !strings.Contains(body, "<h1>Lab</h1>") {
			t.Errorf("%d %s", status, body)
		}
	}
	if status, body := ask(http.MethodPost, "/console/lab", "do=provider&rules=nonsense"); status != http.StatusConflict ||
		!strings.Contains(body, "nobody knows &lt;nonsense&gt;") || !strings.Contains(body, ">nonsense</textarea>") || strings.Contains(body, "data-live") {
		t.Errorf("%d %s", status, body)
	}
	mu.Lock()
	if want := []console.LabAction{{Verb: "kill", Replica: 1}, {Verb: "provider", Rules: []string{"hang", "slow:1s"}}, {Verb: "provider", Rules: []string{"nonsense"}}}; !reflect.DeepEqual(asked, want) {
		t.Errorf("asked for %+v", asked)
	}
	state.Proof = console.LabProof{At: time.Now(), Checks: 21, Broken: []string{"Nothing happened twice."}}
	mu.Unlock()
	if _, page = ask(http.MethodGet, "/console/lab", ""); !strings.Contains(page, "The books are wrong") {
		t.Error(page)
	}
	if status, body := ask(http.MethodGet, "/console", ""); status != http.StatusBadGateway || !strings.Contains(body, "no replica serves") || !strings.Contains(body, `href="/console/lab"`) {
		t.Errorf("%d %s", status, body)
	}
}

// TestNoLab: what can be broken is that of the demonstration alone.
func TestNoLab(t *testing.T) {
	t.Parallel()
	l := local(t, console.New(console.Config{Client: func(*http.Request) (*client.Client, error) { return nil, errors.New("away") }}))
	ask := visitor(t, l)
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		if status, body := ask(method, "/console/lab", "do=kill&replica=1"); status == http.StatusOK || strings.Contains(body, "Kill") || strings.Contains(body, ">Lab</a>") {
			t.Errorf("%d %s", status, body)
		}
	}
}
