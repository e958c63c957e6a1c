package console

import (
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"pawl/client"
	"pawl/fsm"
	"pawl/fsm/diagram"
)

// orderPage is all that there is to know of an order, or a page of it.
type orderPage struct {
	*client.Order
	Done       string // what the person has just asked for, in a sentence
	Actions    []*verb
	Picture    template.HTML
	Way        []string // of the order, in words
	Cut        bool     // the way is longer
	History    *history
	Item       *client.Item
	Deliveries []client.Delivery
	Raw        string // JSON
}

func (v *visit) showOrder() error {
	order, err := v.api.GetOrder(v.r.Context(), v.query("id"), nil)
	if err != nil {
		return err
	}
	p := &orderPage{Order: order, Actions: v.actions(order)}
	if done := verbNamed(verbs, v.query("done")); done != nil {
		p.Done = done.asked
	}
	if err := errors.Join(v.readPast(p), v.readAround(p)); err != nil {
		return err
	}
	raw, err := json.MarshalIndent(order, "", "  ")
	if err != nil {
		return err
	}
	p.Raw = visibleLines(string(raw))
	v.live = fmt.Sprintf("/console/live?order=%s&seq=%d", url.QueryEscape(order.OrderID), order.Seq)
	return v.show("order", page{Title: "Order " + visible(order.OrderID), Data: p})
}

// readPast reads a page of the history, and the way of the order.
func (v *visit) readPast(p *orderPage) (err error) {
	const drawn = 200 // moves, which is all that there is of nearly every order
	moves, err := v.api.ListTransitions(v.r.Context(), p.OrderID, &client.ListTransitionsParams{Sort: "newest", Limit: drawn})
	if err != nil {
		return err
	}
	p.draw(moves.Transitions)
	p.Cut = len(moves.Transitions) == drawn
	p.History, err = v.history(p.Order)
	return err
}

// draw draws the machine with the way of the order, of which the newest move comes first.
func (p *orderPage) draw(moves []client.Transition) {
	picture := diagram.Picture{At: fsm.State(p.Status), Walked: map[[2]fsm.State]int{}}
	for _, m := range slices.Backward(moves) {
		if m.From == "" || m.From == m.To {
			continue
		}
		picture.Walked[[2]fsm.State{fsm.State(m.From), fsm.State(m.To)}]++
		if p.Way == nil {
			p.Way = []string{string(m.From)}
		}
		p.Way = append(p.Way, string(m.To))
	}
	picture.Label = "The way of this order: " + strings.Join(p.Way, ", ")
	if p.Way == nil {
		picture.Label = fmt.Sprintf("The order is %s and has not moved.", p.Status)
	}
	p.Picture = picture.HTML()
}

// readAround reads what is elsewhere: the stock of the item, and what was told to webhook endpoints.
func (v *visit) readAround(p *orderPage) error {
	ctx := v.r.Context()
	if v.may("getInventory") {
		item, err := v.api.GetInventory(ctx, p.Order.Item)
		if err != nil && !hasStatus(err, http.StatusNotFound) {
			return err
		}
		p.Item = item // none, where nothing was ever reserved of it
	}
	if !v.may("listDeliveriesOfOrder") {
		return nil
	}
	list, err := v.api.ListDeliveriesOfOrder(ctx, p.OrderID, &client.ListDeliveriesOfOrderParams{Limit: 20})
	if err == nil {
		p.Deliveries = list.Deliveries
	}
	return err
}
