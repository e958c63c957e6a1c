package engine_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"pawl/engine"
)

// The answer to a replica that had lost the order reports a charge, and the database is away just then: nobody else has
// heard of that charge, and it must be undone.
func TestAFencedAnswerIsKeptWhenTheDatabaseIsBack(t *testing.T) {
	t.Parallel()
	for _, statement := range []string{"CallFenced", "LateUndoOpen"} {
		t.Run(statement, func(t *testing.T) {
			t.Parallel()
			var calls, lost atomic.Int32
			hang := make(chan struct{})
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case strings.HasSuffix(r.URL.Path, "/undo"): // done
				case calls.Add(1) == 1:
					<-hang
					_, _ = w.Write([]byte(`{"reference":"ch_1"}`))
				default:
					w.WriteHeader(http.StatusPaymentRequired)
				}
			}))
			t.Cleanup(server.Close)
			s := openBehind(t)
			s.use(t, strings.ReplaceAll(`charge: {executor: http, url: "URL/do", undoUrl: "URL/undo", timeout: 60s}`, "URL", server.URL))
			s.admit(t, request("one"))
			eventually(t, "it is called for", func() bool { return calls.Load() == 1 })
			startEngine(t, s.URL, engine.Config{RecoveryInterval: often})
			s.exec(t, `UPDATE orders SET due_at = now()`)
			s.until(t, "one", "failed")
			s.proxy.On(func(name string) fate {
				if name == statement && lost.Add(1) <= 3 {
					return loseRequest
				}
				return passes
			})
			close(hang)
			eventually(t, "the late charge is undone", func() bool {
				return value[bool](t, s.Pool, `SELECT EXISTS (SELECT FROM late_undos WHERE finished_at IS NOT NULL AND reference = 'ch_1')`)
			})
			if fenced := column[string](t, s.Pool, `SELECT reference FROM step_calls WHERE fenced`); len(fenced) != 1 || fenced[0] != "ch_1" || lost.Load() < 4 {
				t.Errorf("fenced: %q, lost %d times", fenced, lost.Load())
			}
		})
	}
}
