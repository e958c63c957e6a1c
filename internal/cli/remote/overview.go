package remote

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pawl/client"
	"pawl/internal/cli/output"
)

func overviewCommand() *cobra.Command {
	return askingAll(&cobra.Command{
		Use: "overview", Short: "Show what is wrong, and what needs a person",
		Long:    "Shows what is wrong in the whole installation, what waits for a person, and which outages ended in the last hour. -o json prints the whole overview.",
		Example: "  pawl overview\n  pawl overview -o json | jq '.statuses'",
	}, func(ctx context.Context, s *session, _ []string) error {
		found, err := s.GetOverview(ctx)
		return show(s, found, err, func(o *client.Overview) error {
			for _, over := range o.Outages {
				if over.Replica != "" {
					fmt.Fprintf(s.out, "%s was lost at %s, and another replica has started in its place. Orders that were taken over: %s.\n", over.Replica, moment(over.Since), outcomes(&over.Waited))
					continue
				}
				fmt.Fprintf(s.out, "%s works again since %s, after failing for %s. Orders that waited: %s.\n",
					strings.Join(over.Steps, ", "), moment(over.Until), over.Until.Sub(over.Since).Round(time.Second), outcomes(&over.Waited))
			}
			if len(o.Incidents) == 0 {
				fmt.Fprintln(s.out, "Nothing needs you.")
				return nil
			}
			return incidentRows.Print(s.out, output.Table, output.All(o.Incidents))
		})
	})
}

var incidentRows = output.Columns[client.Incident]{
	Titles: []any{"what", "of", "since", "orders", "amount", "detail"},
	Of: func(i *client.Incident) []any {
		of := cmp.Or(string(i.Status), strings.TrimSpace(string(i.Step)+" "+i.Route), strings.TrimSpace(string(i.Operation)+" "+i.Reason), i.EndpointID, i.Replica)
		return []any{i.Kind, dash(of), dash(moment(i.Since)), atLeast(i.Orders, i.More), dash(totalsOf(i)), dash(detailOf(i))}
	},
}

func outcomes(o *client.Outcomes) string {
	return fmt.Sprintf("%s; %d completed, %d need a person, %d failed, %d were canceled, %d are still on the way",
		atLeast(o.Orders, o.More), o.Completed, o.Attention, o.Failed, o.Canceled, o.Left)
}

// detailOf is what is known about the cause.
func detailOf(i *client.Incident) string {
	var lost, policy string
	if i.Kind == client.IncidentKindReplicaLost {
		lost = "not heard of since; others take over its orders when their leases end"
		if i.TakenOver.Orders > 0 {
			lost = "not heard of since; orders taken over: " + outcomes(&i.TakenOver)
		}
	}
	if i.Policy > 0 {
		policy = fmt.Sprintf("policy %d", i.Policy)
	}
	parts := []string{i.Description, lost, i.Host, i.Detail, policy}
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), ", ")
}

func atLeast(n int64, more bool) string {
	if more {
		return fmt.Sprintf("%d+", n)
	}
	return fmt.Sprint(n)
}

func totalsOf(i *client.Incident) string {
	var all []string
	for _, total := range i.Totals {
		all = append(all, total.Amount+" "+total.Currency)
	}
	return strings.Join(all, ", ")
}
