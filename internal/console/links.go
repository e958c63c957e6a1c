package console

import "net/url"

// The URLs by which screens lead to each other.

func address(path string, query url.Values) string { return path + "?" + query.Encode() }

// orderURL is the page of an order.
func orderURL(id string) string { return address("/console/order", url.Values{"id": {id}}) }

// actionURL is the page where a verb is asked of an order.
func actionURL(verb, id string) string {
	return address("/console/order/"+verb, url.Values{"id": {id}})
}

// bulkURL is the page where a verb is asked of many orders: of those of a filter, whose fields have the names that the API
// gives them. A form posted to /console/bulk names the orders, each as id, and the verb.
func bulkURL(verb string, filter url.Values) string {
	query := url.Values{"verb": {verb}}
	for name, values := range filter {
		query[name] = values
	}
	return address("/console/bulk", query)
}

// ordersURL is the list of the orders that a search finds.
func ordersURL(search string) string { return address("/console/orders", url.Values{"q": {search}}) }
