package console

import (
	"net/url"
	"slices"
	"strings"

	"pawl/client"
)

// errorGroup is a group with the ways that lead on from it. Empty: there is none.
type errorGroup struct {
	client.ErrorGroup
	List  string // its orders
	Retry string // of the newest of them, as many as can be retried at a time
}

type errorsPage struct {
	Groups []errorGroup
	More   bool
}

func (v *visit) errorGroups() error {
	found, err := v.api.ListErrorGroups(v.r.Context())
	if err != nil {
		return err
	}
	p := errorsPage{More: found.More}
	for _, g := range found.Groups {
		group := errorGroup{ErrorGroup: g, List: ordersURL(searchOf(&g))}
		if g.Code != "" && v.may("retryOrders") && retryHelps(&g) {
			group.Retry = bulkURL("retry", filterOf(&g))
		}
		p.Groups = append(p.Groups, group)
	}
	return v.show("errors", page{Title: "Errors", Data: p})
}

// retryHelps says whether the runbook has orders of a group retried. Those whose outcome nobody knows would be refused.
func retryHelps(g *client.ErrorGroup) bool {
	if g.Hold == "" {
		return true
	}
	try := reasonOf(client.OrderHold(g.Hold), g.Code).try
	return try == nil || slices.Contains(try, "retry")
}

// filterOf chooses the orders of a group, as the API does.
func filterOf(g *client.ErrorGroup) url.Values {
	filter := url.Values{"status": {string(g.Status)}}
	if g.Hold != "" {
		filter.Set("hold", string(g.Hold))
		filter.Set("holdReason", g.Code)
		return filter
	}
	filter.Set("failureCode", g.Code)
	if g.Step != "" {
		filter.Set("failureStep", string(g.Step))
	}
	return filter
}

// searchOf is filterOf, as a person would type it.
func searchOf(g *client.ErrorGroup) string {
	words := []string{"status:" + string(g.Status)}
	code := `"` + strings.ReplaceAll(g.Code, `"`, `""`) + `"`
	switch {
	case g.Hold != "":
		words = append(words, "hold:"+string(g.Hold), "reason:"+code)
	case g.Step != "":
		words = append(words, "step:"+string(g.Step), "code:"+code)
	default:
		words = append(words, "code:"+code)
	}
	return strings.Join(words, " ")
}
