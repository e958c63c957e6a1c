package console

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"pawl/client"
)

type stockPage struct {
	Items []client.Item
	Next  string // the URL of the next page; empty on the last one
}

func (v *visit) showStock() error {
	list, err := v.api.ListInventory(v.r.Context(), &client.ListInventoryParams{Cursor: v.query("cursor")})
	if err != nil {
		return err
	}
	return v.show("stock", page{Title: "Stock", Data: stockPage{list.Items, v.behind(list.NextCursor)}})
}

// itemPage is an item with the last changes of its stock.
type itemPage struct {
	*stockItem
	Tasks     []task
	Movements []client.Movement
	Older     string // the URL of those before; empty: there are none
}

const movementsOnPage = 50

func (v *visit) showItem() error {
	name := v.query("item")
	item, err := v.item(name)
	if err != nil {
		return err
	}
	p := itemPage{stockItem: item, Tasks: v.offered(v.itemTasks(item)...)}
	if !item.Known() {
		return v.show("item", page{Title: name, Data: p})
	}
	list, err := v.api.ListStockMovements(v.r.Context(), name, &client.ListStockMovementsParams{
		Sort: client.ListStockMovementsParamsSortNewest, Before: int64(number(v.query("before"))), Limit: movementsOnPage})
	if err != nil {
		return err
	}
	if p.Movements = list.Movements; len(p.Movements) == movementsOnPage {
		p.Older = v.with("before", strconv.FormatInt(p.Movements[movementsOnPage-1].Version, 10))
	}
	return v.show("item", page{Title: name, Data: p})
}

// stockItem is an item as it was read, or the name of one that is not there: nobody has ordered it, nor given it stock.
type stockItem struct {
	client.Item
	etag string
}

// Known says whether the item is there.
func (i *stockItem) Known() bool { return i.etag != "" }

func (v *visit) item(name string) (*stockItem, error) {
	var answer http.Response
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
	item, err := v.item(v.query("item"))
	if err != nil {
		return err
	}
	return v.perform(v.itemTasks(item)...)
}

// itemURL is the page of an item, or of a task that it is asked for.
func itemURL(task, name string) string {
	return address("/console/item"+task, url.Values{"item": {name}})
}

func (v *visit) itemTasks(i *stockItem) []task { return []task{v.adjustItem(i), v.setItem(i)} }

func (v *visit) adjustItem(i *stockItem) task {
	return task{
		Label: "Add or take away", Link: itemURL("/adjust", i.Item.Item), operation: "adjustInventory",
		asks: confirmation{Heading: "Add units of " + visible(i.Item.Item) + ", or take some away", Button: "Change the stock", Back: itemURL("", i.Item.Item),
			Fields: []field{{Name: "change", Label: "Units", Type: "number", Required: true, Help: "How many more; with a minus, how many fewer."}, needed(whyField)},
			Notes:  []string{"For goods that arrive, break or come back. It is right however much is sold meanwhile. From then on the item is tracked, and never oversold."}},
		changes: func(form url.Values) ([]change, error) {
			units, err := units(form, "change")
			return i.changed(i.OnHand + units), err
		},
		do: func(form url.Values) error {
			units, err := units(form, "change")
			if err != nil {
				return err
			}
			body := client.AdjustInventoryBody{Change: units, Reason: form.Get("reason"), RequestID: form.Get("requestId")}
			return v.backTo(itemURL("", i.Item.Item))(v.api.AdjustInventory(v.r.Context(), i.Item.Item, nil, body))
		},
	}
}

func (v *visit) setItem(i *stockItem) task {
	return task{
		Label: "Set after a count", Link: itemURL("/set", i.Item.Item), operation: "setInventory",
		asks: confirmation{Heading: "Say how many units of " + visible(i.Item.Item) + " are on the shelf", Button: "Set the stock", Back: itemURL("", i.Item.Item),
			Hidden: map[string]string{"etag": i.etag},
			Fields: []field{{Name: "onHand", Label: "Units on the shelf", Type: "number", Required: true, Help: "Sold units are gone from it; what is reserved is still there."}, whyField},
			Notes:  []string{"It is set only if nothing is sold or changed from now on. From then on the item is tracked, and never oversold."}},
		changes: func(form url.Values) ([]change, error) {
			units, err := units(form, "onHand")
			return i.changed(units), err
		},
		do: func(form url.Values) error {
			units, err := units(form, "onHand")
			if err != nil {
				return err
			}
			params := client.SetInventoryParams{IfMatch: form.Get("etag")}
			if params.IfMatch == "" {
				params.IfNoneMatch = "*"
			}
			body := client.SetInventoryBody{OnHand: units, Reason: form.Get("reason"), RequestID: form.Get("requestId")}
			return v.backTo(itemURL("", i.Item.Item))(v.api.SetInventory(v.r.Context(), i.Item.Item, &params, body))
		},
	}
}

// changed is what another number on the shelf makes of an item.
func (i *stockItem) changed(onHand int64) []change {
	free := "not tracked"
	if i.Available != nil {
		free = strconv.FormatInt(*i.Available, 10)
	}
	if i.Tracked && onHand == i.OnHand {
		return nil
	}
	return []change{
		{"On hand", strconv.FormatInt(i.OnHand, 10), strconv.FormatInt(onHand, 10)},
		{"Left to sell", free, strconv.FormatInt(onHand-i.Reserved, 10)},
	}
}

// units reads a number of units from a form.
func units(form url.Values, name string) (int64, error) {
	n, err := strconv.ParseInt(strings.TrimSpace(form.Get(name)), 10, 64)
	if err != nil {
		return 0, unusable("The units must be a whole number.")
	}
	return n, nil
}
