// Package fsm is the one definition of an order's machine: its states, its
// events and every edge between them. docs/state-machine.svg is a drawing of it.
//
// The machine is declared with looplab/fsm (Lifecycle) and compiled once, at
// start, into a small table: a look-up takes nanoseconds, allocates nothing and
// can't be wedged, while an FSM instance of the library costs microseconds and
// must never be shared between requests or be handed a context that may end.
//
// Everything else that knows the machine is generated from this package or
// compared with it by a test: the domain order_status, the trigger that
// refuses illegal moves, the enum in the API, the diagram in the docs.
package fsm
