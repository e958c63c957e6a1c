// Package webhooks sends events to endpoints that people have named: each event of a subject (an order, an item) after the
// one before it, at least once, signed as Standard Webhooks 1.0.0 says.
//
// An endpoint is sent to by one replica, which holds a lease on its row. It reads the feed from where the endpoint stands,
// stores a delivery for each event that the endpoint wants, sends those that are due, and stores what came of them. All
// statements about an endpoint come from one goroutine of its owner (endpointSender), and each raises the seq of the endpoint, so
// a person's request in between is noticed.
package webhooks
