package console

import (
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"pawl/client"
)

type stockPage struct {
	Items     []client.Item
	Next      string // the URL of the next page
	Elsewhere int    // as in itemPage
}

func (v *visit) showStock() error {
	list, err := v.api.ListInventory(v.r.Context(), client.ListInventoryParams{Cursor: v.query("cursor")})
	if err != nil {
		return err
	}
	policy, err := v.reservesElsewhere()
	if err != nil {
		return err
	}
	return v.show("stock", page{Title: "Stock", Data: stockPage{list.Items, v.nextPage(list.NextCursor), policy}})
}

// lowStock is how many available units of an item are marked as few.
const lowStock = 5

// mark says that little or nothing of an item is left to sell.
func mark(i client.Item) template.HTML {
	switch {
	case i.Available == nil || *i.Available > lowStock:
		return ""
	case *i.Available > 0:
		return `<span class="badge approval">few left</span>`
	}
	return `<span class="badge attention">sold out</span>`
}

// restockOf is the order that units came back from, with a refund; empty: it was another change.
func restockOf(m client.Movement) (orderID string) {
	if m.Kind == client.MovementKindRestock {
		_, orderID, _ = strings.Cut(m.RequestID, " of ")
	}
	return orderID
}

// holdersURL is the list of the orders under way for an item, which hold units of it or are about to.
func holdersURL(item string) string { return ordersURL("status:open item:" + quoted(item)) }

// itemPage is an item with the last changes of its stock.
type itemPage struct {
	*stockItem
	Last, Counted *client.Movement // of all; nil: there is none on the first page, or this is another one
	Tasks         []*task
	Elsewhere     int // the active policy, if a provider keeps the stock by it
	Movements     []client.Movement
	Older         string // the URL of the next page
}

const movementsOnPage = 50

func (v *visit) showItem() error {
	item, err := v.item()
	if err != nil {
		return err
	}
	p := itemPage{stockItem: item, Tasks: v.offered(v.itemTasks(item))}
	if item.Known() {
		list, err := v.api.ListStockMovements(v.r.Context(), item.Item.Item, client.ListStockMovementsParams{
			Sort: client.ListStockMovementsParamsSortNewest, Before: int64(number(v.query("before"))), Limit: movementsOnPage})
		if err != nil {
			return err
		}
		if p.Movements = list.Movements; len(p.Movements) == movementsOnPage {
			p.Older = v.with("before", strconv.FormatInt(p.Movements[movementsOnPage-1].Version, 10))
		}
		if len(p.Movements) > 0 && v.query("before") == "" {
			p.Last = &p.Movements[0]
			if i := slices.IndexFunc(p.Movements, func(m client.Movement) bool { return m.Kind == client.MovementKindSet }); i >= 0 {
				p.Counted = &p.Movements[i]
			}
		}
	}
	if p.Elsewhere, err = v.reservesElsewhere(); err != nil {
		return err
	}
	return v.show("item", page{Title: item.Item.Item, Data: p})
}

// reservesElsewhere is the active policy if a provider reserves by it; 0: Pawl does, or the person may not know.
func (v *visit) reservesElsewhere() (policy int, err error) {
	active, err := v.activePolicy()
	if err != nil || active.Steps.Reserve == "" || active.Steps.Reserve == client.PolicyExecutorsReserveLedger {
		return 0, err
	}
	return active.Version, nil
}

// stockItem is an item, or only a name that was never reserved or stocked.
type stockItem struct {
	client.Item
	etag string
}

// Known reports whether the item exists.
func (i *stockItem) Known() bool { return i.etag != "" }

func (v *visit) item() (*stockItem, error) {
	var answer http.Response
	name := v.query("item")
	found, err := v.api.GetInventory(v.r.Context(), name, client.WithResponse(&answer))
	if hasStatus(err, http.StatusNotFound) && name != "" {
		return &stockItem{Item: client.Item{Item: name}}, nil
	}
	if err != nil {
		return nil, err
	}
	return &stockItem{Item: *found, etag: answer.Header.Get("ETag")}, nil
}

func (v *visit) doItem() error {
	item, err := v.item()
	if err != nil {
		return err
	}
	return v.perform(v.itemTasks(item))
}

func (v *visit) itemTasks(i *stockItem) []*task {
	ctx, name, query := v.r.Context(), i.Item.Item, url.Values{"item": {i.Item.Item}}
	done := v.backTo(address("/console/item", query))
	return tasksOf("/console/item", query,
		&task{
			Name: "adjust", Label: "Add or remove units", operation: "adjustInventory",
			Heading: "Add or remove units of " + visible(name), Button: "Change the stock",
			Notes:     i.notes("For goods that arrive, break or are returned. Sales in the meantime do not matter."),
			questions: []field{{Name: "change", Label: "Units", Type: "number", Required: true, Help: "To remove units, use a minus sign."}},
			fields:    []field{required(whyField)},
			preview:   i.preview("change", i.OnHand),
			do: func(form url.Values) error {
				units, err := units(form, "change")
				if err != nil {
					return err
				}
				return done(v.api.AdjustInventory(ctx, name, client.AdjustInventoryBody{
					Change: units, Reason: form.Get("reason"), RequestID: form.Get("requestId")}))
			},
		},
		&task{
			Name: "set", Label: "Set after a count", operation: "setInventory",
			Heading: "Set the units of " + visible(name) + " on the shelf", Button: "Set the stock",
			Notes: i.notes("It is set only if nothing is sold or changed from now on."),
			questions: []field{{Name: "onHand", Label: "Units on the shelf", Type: "number", Required: true,
				Help: "With reserved units, without sold ones."}},
			fields:  []field{whyField},
			seen:    map[string]string{"etag": i.etag},
			preview: i.preview("onHand", 0),
			do: func(form url.Values) error {
				units, err := units(form, "onHand")
				if err != nil {
					return err
				}
				params := client.SetInventoryParams{IfMatch: form.Get("etag")}
				if params.IfMatch == "" {
					params.IfNoneMatch = "*"
				}
				return done(v.api.SetInventory(ctx, name, client.SetInventoryBody{
					OnHand: units, Reason: form.Get("reason"), RequestID: form.Get("requestId")}, params))
			},
		},
	)
}

// notes say what the stock of the item is, and what a change means, after a note on the kind of change.
func (i *stockItem) notes(note string) []string {
	now := fmt.Sprintf("Now: %s on hand, of which orders under way hold %s.", count(i.OnHand), count(i.Reserved))
	if i.Tracked {
		return []string{now, note}
	}
	return []string{now, note, "The item is not tracked yet, so it is sold without a limit. From then on it is tracked, and never oversold."}
}

// preview shows the effect of the units in a field, counted from a number. An item that was not tracked is tracked then.
func (i *stockItem) preview(field string, from int64) func(url.Values) ([]change, []string, error) {
	return func(form url.Values) ([]change, []string, error) {
		units, err := units(form, field)
		if err != nil {
			return nil, nil, err
		}
		onHand, held, available := from+units, count(i.Reserved), "not tracked"
		if onHand < i.Reserved {
			return nil, nil, unusable(fmt.Sprintf("That would leave %s on hand, but orders under way hold %s.", count(onHand), held))
		}
		if i.Available != nil {
			available = count(i.Available)
		}
		changes, notes, err := previewOf(change{"On hand", count(i.OnHand), count(onHand)}, change{"Available", available, count(onHand - i.Reserved)})
		if err == nil {
			changes = slices.Insert(changes, len(changes)-1, change{"Held for orders under way", held, held})
		}
		return changes, notes, err
	}
}

// units parses a number of units in a form.
func units(form url.Values, name string) (int64, error) {
	n, err := strconv.ParseInt(strings.TrimSpace(form.Get(name)), 10, 64)
	if err != nil {
		return 0, unusable("The units must be a whole number.")
	}
	return n, nil
}
