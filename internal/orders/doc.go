// Package orders reads what is stored: orders, their history, the calls made for them, and the stock of items. It also
// has what the API and the engine both need to know of an order without driving it: which verbs apply to it as its row
// is, and the errors that a caller is answered with.
//
// httpapi reads with it for its callers. The engine reads with it before it obeys a verb or answers a request. Nothing
// here writes, waits for an order, or calls a provider.
package orders
