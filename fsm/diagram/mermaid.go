package diagram

import (
	"fmt"
	"strings"

	"github.com/looplab/fsm"

	machine "pawl/fsm"
)

// Mermaid draws the machine as a Mermaid state diagram, as the library sees it.
func Mermaid() string {
	drawn := fsm.NewFSM(string(machine.Pending), machine.Lifecycle, nil)
	text, err := fsm.VisualizeForMermaidWithGraphType(drawn, fsm.StateDiagram)
	if err != nil {
		panic("fsm: " + err.Error()) // the graph type is a constant
	}
	var b strings.Builder
	b.WriteString(strings.TrimSpace(text))
	for _, s := range machine.States() {
		if s.Final() {
			fmt.Fprintf(&b, "\n    %s --> [*]", s)
		}
	}
	b.WriteString("\n")
	return b.String()
}

// Markdown is the page of the docs about the machine: the picture and its edges.
func Markdown() string {
	var b strings.Builder
	b.WriteString("# The machine of an order\n\n" +
		"Generated from `fsm/` by `pawl diagram --format markdown`; a test fails when they differ.\n\n" +
		"![The machine of an order](state-machine.svg)\n\n" +
		"| from | event | to |\n|---|---|---|\n")
	for _, e := range machine.Edges() {
		fmt.Fprintf(&b, "| `%s` | %s | `%s` |\n", e.From, e.Event, e.To)
	}
	b.WriteString("\nA write that keeps the status (a take-over, a hold, a request to stop) is a history row with the same\n" +
		"`from` and `to`. The database rejects all other changes, from any client.\n")
	return b.String()
}
