// Package fsm defines the state machine of an order: its states, its events and every edge between them.
// docs/state-machine.svg is a drawing of it.
//
// The machine is declared with looplab/fsm (Lifecycle) and compiled once, at start, into a small table. A look-up in the
// table takes nanoseconds and allocates nothing. An FSM instance of the library takes microseconds, must never be shared
// between requests, and can be left unusable by a context that ends.
//
// Everything else that depends on the machine is generated from this package or compared with it by a test: the domain
// order_status, the trigger that refuses illegal moves, the enum in the API, the diagram in the docs.
package fsm
