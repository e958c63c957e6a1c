// Package events is the feed: every row of the history and every stock movement, once, with a number. The relay gives the
// numbers, one of all replicas at a time. The Reader reads the events after a cursor. An Event has the same bytes wherever
// it is sent.
//
// Nothing is copied: what is stored is which range of transactions a batch of numbers stands for. What a batch holds, and in
// which order, follows from the rows (the view pawl.events).
package events
