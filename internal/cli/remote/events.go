package remote

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pawl/client"
	"pawl/internal/cli/output"
)

func eventsCommand() *cobra.Command {
	params := client.ListEventsParams{Limit: eventsAtOnce}
	var statuses []string
	var follow bool
	cmd := asking(&cobra.Command{
		Use: "events", Short: "Print events in order",
		Long: "Prints every transition of every order and every change of stock once, in order. With -f it waits for new events,\n" +
			"also through outages, until it is interrupted. Each line ends with the cursor to continue after it.",
		Example: "  pawl events -f\n" +
			"  pawl events --order order-1\n" +
			"  pawl events -f --type order.completed,order.failed -o json | jq --unbuffered -r .data.orderId\n" +
			"  pawl events -f --after 29411432.17",
	}, func(ctx context.Context, s *session, _ []string) error {
		for _, status := range statuses {
			params.Status = append(params.Status, client.Status(status))
		}
		switch {
		case params.After == "" && follow:
			params.After = "latest"
		case params.After == "":
			params.After = "oldest"
		}
		err := s.printEvents(ctx, params, follow)
		if follow && ctx.Err() != nil {
			return nil //nolint:nilerr // an interrupt is the normal end
		}
		return err
	})
	f := cmd.Flags()
	f.BoolVarP(&follow, "follow", "f", false, "keep printing new events")
	f.StringVar(&params.After, "after", "", "cursor to continue after, oldest or latest; default: oldest, with -f latest")
	f.StringVar(&params.Order, "order", "", "only events about this order")
	f.StringSliceVar(&params.Type, "type", nil, typesHelp)
	f.StringSliceVar(&statuses, "status", nil, "only events that leave an order in one of these statuses")
	return cmd
}

const (
	eventsAtOnce = 500             // page size
	eventsSoon   = 2 * time.Second // longest time until an event is in the feed
)

// printEvents prints the events in the feed, and with follow later ones. Without follow, it waits for events that
// occurred before the command and are not numbered yet.
func (s *session) printEvents(ctx context.Context, params client.ListEventsParams, follow bool) error {
	began := time.Now()
	for more := true; more; {
		soon := eventsSoon - time.Since(began)
		if params.Wait = ""; !follow && soon > 0 {
			params.Wait = fmt.Sprintf("%.0fs", math.Ceil(soon.Seconds()))
		}
		page, err := s.ListEvents(ctx, params)
		if err != nil {
			return err
		}
		for _, event := range page.Events {
			if err := s.printEvent(&event); err != nil {
				return err
			}
		}
		params.After = page.NextCursor
		more = page.More || params.Wait != "" && len(page.Events) > 0 // there may be more
	}
	params.Wait = ""
	if !follow {
		return nil
	}
	for event, err := range s.Events(ctx, params) {
		if err == nil {
			err = s.printEvent(&event)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// printEvent prints an event and its cursor. The columns have fixed widths, because later lines are not known.
func (s *session) printEvent(e *client.Event) error {
	if s.format == output.JSON {
		return output.Line(s.out, e)
	}
	d := e.Data
	about, amount := cmp.Or(d.OrderID, d.Item), strings.TrimSpace(d.Amount+" "+d.Currency)
	if d.OnHand != nil {
		amount = fmt.Sprintf("%d on hand", *d.OnHand)
	}
	by := strings.TrimSpace(d.Actor + " " + d.Reason)
	_, err := fmt.Fprintf(s.out, "%s  %-20s  %-24s  %-12s  %-24s  %s\n",
		moment(e.Timestamp), output.Clean(e.Type), output.Clean(about), amount, output.Clean(dash(by)), e.Cursor)
	return err
}
