package console

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Lab causes faults in pawl demo. Its screen works even if no replica does.
type Lab struct {
	// State returns the current state, at once.
	State func(context.Context) LabState
	// Do begins or ends a fault. The person sees its error.
	Do func(context.Context, LabAction) error
}

// LabAction is the action of a button.
type LabAction struct {
	Verb    string   // LabKill or another one
	Replica int      // from 1; not with LabProvider
	Rules   []string // with LabProvider: its new faults, in the short form of docs/simulator.md
}

// The verbs of the lab.
const (
	LabKill     = "kill"     // end a replica at once (SIGKILL)
	LabStop     = "stop"     // freeze it (SIGSTOP)
	LabGoOn     = "go-on"    // let it continue (SIGCONT)
	LabStart    = "start"    // start it again
	LabProvider = "provider" // set the faults of the provider
)

// The states of a replica of the lab.
const (
	LabServes   = "serves"
	LabStopped  = "frozen"
	LabDead     = "dead"
	LabStarting = "starting"
)

// LabState is the state of the lab.
type LabState struct {
	Replicas []LabReplica
	Faults   []LabFault // of the provider, each with a button
	Rules    []string   // of the provider now
	ByHand   bool       // no faults by themselves
	Stalled  string     // why no order ends, and what to press; empty: they end
	Verdict  string     // at the end, if the books balance
	Wrong    string     // at the end, if they don't
	Books    LabBooks
	Proof    LabProof
}

// LabReplica is a replica.
type LabReplica struct {
	Number int // from 1 on
	URL    string
	State  string
}

// LabFault is a fault of the provider.
type LabFault struct {
	Name   string
	Effect string // its effect
	Rules  []string
}

// LabBooks are the books of both sides, read one after the other. Amounts are decimals in Currency.
type LabBooks struct {
	Completed, Failed, UnderWay, Orders int64 // orders of Pawl
	Late                                int64 // charges that came too late, and are not undone yet

	// What is charged and not undone, by Pawl's books and by those of the provider.
	Charges, ChargesThere     int64
	Kept, KeptThere, Currency string

	Repeated int    // requests to the provider, with the key of an earlier one
	Found    int    // answers that were lost, and found by asking the provider
	FoundOf  string // the order of the last one
	Twice    int    // effects at the provider
	Wrong    string // why the books can't be read
}

// Ended is the number of orders that have ended.
func (b LabBooks) Ended() int64 { return b.Completed + b.Failed }

// Unfinished is how many of Pawl's charges are of orders that are not completed.
func (b LabBooks) Unfinished() int64 { return b.Charges - b.Completed }

// AddUp reports whether every completed order is charged at the provider, and each other charge can be of an order that
// is under way.
func (b LabBooks) AddUp() bool {
	rest := b.ChargesThere - b.Completed
	return rest >= 0 && rest <= b.UnderWay+b.Late
}

// Equal reports whether both sides have the same.
func (b LabBooks) Equal() bool {
	return b.Charges == b.ChargesThere && parsed(b.Kept).Equal(parsed(b.KeptThere))
}

// LabProof is the last result of pawl verify for both books.
type LabProof struct {
	At     time.Time // zero: there is none yet
	Checks int
	Broken []string // checks that failed
	Wrong  string   // why it could not run
}

// Count formats a number for people, as the pages do.
func Count(n any) string { return count(n) }

// Over reports whether the demonstration has ended.
func (s *LabState) Over() bool { return s.Verdict != "" || s.Wrong != "" }

// inLab serves a page even if no replica can identify the person, who must be able to start one.
func (c *console) inLab(serve func(*visit) error) http.HandlerFunc {
	return c.visited(func(v *visit) error {
		_ = v.identify()
		return serve(v)
	})
}

type labPage struct {
	LabState
	Refused string // why the action failed
	Own     field  // for rules
}

func (v *visit) labPage() *labPage {
	state := v.console.Lab.State(v.r.Context())
	return &labPage{LabState: state, Own: field{
		Name: "rules", Label: "Or your own rules, one per line", Type: "textarea", Value: strings.Join(state.Rules, "\n"),
		Help: "Such as timeout-after@charge,fraction=0.5 or decline:stolen_card@charge,item=teapot.",
	}}
}

func (v *visit) showLab() error {
	p, title := v.labPage(), "Lab"
	if p.Verdict != "" {
		title = fmt.Sprint(p.Books.Twice, " charged twice")
	}
	if !p.Over() {
		v.live = "/console/lab/live"
	}
	return v.show("lab", page{Title: title, Data: p})
}

// doInLab does the action of a button, without confirmation: faults are the purpose of the lab.
func (v *visit) doInLab() error {
	if err := v.r.ParseForm(); err != nil {
		return err
	}
	typed := v.r.PostForm.Get("rules")
	action := LabAction{Verb: v.r.PostForm.Get("do"), Replica: number(v.r.PostForm.Get("replica"))}
	for line := range strings.Lines(typed) {
		if line = strings.TrimSpace(line); line != "" {
			action.Rules = append(action.Rules, line)
		}
	}
	refused := v.console.Lab.Do(v.r.Context(), action)
	if refused == nil {
		return v.redirect("/console/lab")
	}
	p := v.labPage() // without reloads, which would remove the error and the typed rules
	if typed == "" {
		p.Refused = refused.Error()
	} else {
		p.Own.Value, p.Own.Wrong = typed, refused.Error()
	}
	return v.showAs(http.StatusConflict, "lab", page{Title: "Lab", Data: p})
}

// Is reports whether these are the rules of the fault.
func (f LabFault) Is(rules []string) bool { return slices.Equal(f.Rules, rules) }

// labPokes reloads the page every second, because the lab has no feed.
func (v *visit) labPokes() error {
	return v.stream(func(context.Context) (string, error) { return time.Now().String(), nil }, "")
}
