package fsm

import (
	"context"
	"fmt"
	"slices"

	"github.com/looplab/fsm"
)

// Edge is a legal change of status.
type Edge struct {
	From, To State
	Event    Event
}

var (
	edges = compile(Lifecycle)
	next  = index(edges)
)

// Edges lists every legal change of status, in the order of States. The slice is a copy.
func Edges() []Edge { return slices.Clone(edges) }

// EventOf names the event that leads from one state to the other; ok is false
// when the machine has no such edge. It allocates nothing and is safe for
// concurrent use.
func EventOf(from, to State) (event Event, ok bool) {
	event, ok = next[[2]State{from, to}]
	return event, ok
}

// Legal reports whether the machine has an edge between the two states.
func Legal(from, to State) bool {
	_, ok := EventOf(from, to)
	return ok
}

// compile asks the library where each declared event leads from each state, and returns the edges in the order of
// States, first by From, then by To. It panics if the machine is unsound: two edges between the same states, an edge
// that leads nowhere, or one that the library lost (of two edges with the same event and source, it silently keeps
// the last).
func compile(events fsm.Events) []Edge {
	declared := 0
	for _, desc := range events {
		declared += len(desc.Src)
	}
	var out []Edge
	for _, from := range states {
		for _, to := range states {
			for _, desc := range events {
				if slices.Contains(desc.Src, string(from)) && follow(events, from, desc.Name) == to {
					out = append(out, Edge{From: from, To: to, Event: Event(desc.Name)})
				}
			}
		}
	}
	if pairs := len(index(out)); pairs != declared || len(out) != declared {
		panic(fmt.Sprintf("fsm: %d edges declared, %d compiled, between %d pairs of states", declared, len(out), pairs))
	}
	return out
}

// follow fires one event on a fresh machine: an instance is not safe to share, and a failed Event can leave it
// unusable.
func follow(events fsm.Events, from State, event string) State {
	machine := fsm.NewFSM(string(from), events, nil)
	if err := machine.Event(context.Background(), event); err != nil {
		panic(fmt.Sprintf("fsm: event %s in state %s: %v", event, from, err))
	}
	return State(machine.Current())
}

func index(list []Edge) map[[2]State]Event {
	m := make(map[[2]State]Event, len(list))
	for _, e := range list {
		m[[2]State{e.From, e.To}] = e.Event
	}
	return m
}
