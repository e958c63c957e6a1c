// Package model holds models of the protocol by which orders are driven, written in
// Promela, and a test that has Spin (Holzmann, "The Model Checker SPIN", 1997) go through
// all their states: the protocol keeps its promises, and breaks one as soon as any of its
// safeguards is taken away. README.md says what is modeled.
package model
