package console

import (
	"context"
	"net/http"
	"strings"
	"time"
)

// Lab is what a person can break, in the console of pawl demo. The screen works when no replica does.
type Lab struct {
	// State is how everything is now. It takes no longer than a moment.
	State func(context.Context) LabState
	// Do breaks something, or mends it. Its error is told to the person.
	Do func(context.Context, LabAction) error
}

// LabAction is what a button of the lab asks for.
type LabAction struct {
	Verb    string   // LabKill and the others
	Replica int      // from 1 on; not with LabProvider
	Rules   []string // with LabProvider: what goes wrong there from now on, in the short form of docs/simulator.md
}

// The verbs of the lab.
const (
	LabKill     = "kill"     // end a replica at once (SIGKILL)
	LabStop     = "stop"     // have it stand still (SIGSTOP)
	LabGoOn     = "go-on"    // and go on
	LabStart    = "start"    // start one that was killed
	LabProvider = "provider" // change what the provider does
)

// What a replica of the lab is doing.
const (
	LabServes   = "serves"
	LabStopped  = "stopped"
	LabDead     = "dead"
	LabStarting = "starting"
)

// LabState is how everything in the lab is.
type LabState struct {
	Replicas []LabReplica
	Faults   []LabFault // that the provider can have at the press of a button
	Rules    []string   // that the provider goes by now
	Orders   LabOrders
	ByHand   bool // nothing breaks by itself
	Books    LabBooks
	Proof    LabProof
}

// LabReplica is one of the replicas.
type LabReplica struct {
	Number int // from 1 on
	URL    string
	State  string
}

// LabFault is something that can be wrong with the provider.
type LabFault struct {
	Name  string
	Says  string // what it does, in words
	Rules []string
}

// LabOrders is what the callers of the lab have seen.
type LabOrders struct{ Sent, Completed, Failed int }

// LabBooks are the books of both sides, read one right after the other.
type LabBooks struct {
	Lines      []LabLine
	Unfinished int64  // orders that have not ended
	Repeated   int    // requests that the provider had had before
	Twice      int    // what happened twice at the provider
	Wrong      string // why the books can't be read; empty: they were
}

// LabLine is one thing that both sides have in their books.
type LabLine struct{ What, Pawl, Provider string }

// LabProof is what pawl verify last said of both books.
type LabProof struct {
	At     time.Time // zero: it has not said anything yet
	Checks int       // that were made
	Broken []string  // what should be and is not
	Wrong  string    // why it could not say anything
}

// inLab serves a page also when no replica can say who asks: then a person must be able to start one.
func (c *console) inLab(serve func(*visit) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v := c.visit(w, r)
		_ = v.identify()
		if err := serve(v); err != nil {
			v.showError(err)
		}
	}
}

// labPage is what the screen shows.
type labPage struct {
	LabState
	Refused string // why what was asked for was not done
	Typed   string // the rules in the form
}

func (v *visit) showLab() error {
	return v.showLabWith("", "")
}

func (v *visit) showLabWith(refused, typed string) error {
	state := v.console.Lab.State(v.r.Context())
	if typed == "" {
		typed = strings.Join(state.Rules, "\n")
	}
	p := page{Title: "Lab", Data: labPage{state, refused, typed}}
	if refused != "" { // to load itself anew would take away what was refused, and why
		return v.showAs(http.StatusConflict, "lab", p)
	}
	v.live = "/console/lab/live"
	return v.show("lab", p)
}

// doInLab does what a button says. There is no page in between: everything here is there to be broken.
func (v *visit) doInLab() error {
	if err := v.r.ParseForm(); err != nil {
		return err
	}
	typed := v.r.PostForm.Get("rules")
	action := LabAction{Verb: v.r.PostForm.Get("do"), Replica: number(v.r.PostForm.Get("replica")), Rules: lines(typed)}
	if err := v.console.Lab.Do(v.r.Context(), action); err != nil {
		return v.showLabWith(err.Error(), typed)
	}
	return v.redirect("/console/lab")
}

// lines are those of a text that are not empty.
func lines(text string) (all []string) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			all = append(all, line)
		}
	}
	return all
}

// Is says whether these are the rules of a fault.
func (f LabFault) Is(rules []string) bool {
	return strings.Join(f.Rules, "\n") == strings.Join(rules, "\n")
}

// labPokes has the page load itself anew every second: orders come all the time, and what is broken has no feed.
func (v *visit) labPokes() error {
	return v.stream(func(context.Context) (string, error) { return time.Now().String(), nil }, "")
}
