package fsm

import (
	"context"
	"fmt"
	"slices"

	"github.com/looplab/fsm"
)

// Edge is one legal change of status.
type Edge struct {
	From, To State
	Event    Event
}

var (
	edges = compile(Lifecycle)
	next  = index(edges)
)

// Edges lists every legal change of status, in the order of States. The slice is
// the caller's.
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

// compile asks the library, state by state and event by event, where each event
// leads, and returns the answers as a table. It panics on a machine that is not
// sound: two edges between the same states, or a declared edge that the library
// lost (it silently keeps the last of two with the same event and source).
func compile(events fsm.Events) []Edge {
	var out []Edge
	for _, from := range states {
		for _, desc := range events {
			if to, ok := follow(events, from, desc.Name); ok && slices.Contains(desc.Src, string(from)) {
				out = append(out, Edge{From: from, To: to, Event: Event(desc.Name)})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Edge) int {
		if a.From != b.From {
			return slices.Index(states, a.From) - slices.Index(states, b.From)
		}
		return slices.Index(states, a.To) - slices.Index(states, b.To)
	})
	mustBeSound(events, out)
	return out
}

// follow fires one event on a fresh machine. A fresh one each time, because an
// instance is not safe to share and a failed Event can leave it unusable.
func follow(events fsm.Events, from State, event string) (State, bool) {
	machine := fsm.NewFSM(string(from), events, nil)
	if !machine.Can(event) {
		return "", false
	}
	if err := machine.Event(context.Background(), event); err != nil {
		panic(fmt.Sprintf("fsm: event %s in state %s: %v", event, from, err))
	}
	return State(machine.Current()), true
}

func mustBeSound(events fsm.Events, compiled []Edge) {
	declared := 0
	for _, desc := range events {
		declared += len(desc.Src)
	}
	seen := map[[2]State]bool{}
	for _, e := range compiled {
		pair := [2]State{e.From, e.To}
		if seen[pair] || !e.To.Known() {
			panic(fmt.Sprintf("fsm: edge %s to %s is declared twice or leads nowhere", e.From, e.To))
		}
		seen[pair] = true
	}
	if declared != len(compiled) {
		panic(fmt.Sprintf("fsm: %d edges declared, %d compiled", declared, len(compiled)))
	}
}

func index(list []Edge) map[[2]State]Event {
	m := make(map[[2]State]Event, len(list))
	for _, e := range list {
		m[[2]State{e.From, e.To}] = e.Event
	}
	return m
}
