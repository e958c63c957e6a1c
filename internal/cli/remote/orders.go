package remote

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pawl/client"
	"pawl/internal/cli/output"
)

func ordersCommand() *cobra.Command {
	commands := []*cobra.Command{ordersListCommand(), ordersShowCommand(), ordersWatchCommand(), ordersProcessCommand(), ordersRefundCommand()}
	return group("orders", "List, show, process and change orders",
		"  pawl orders process order-1 --amount 99.99 --item widget\n"+
			"  pawl orders list --status failed,canceled --since 24h\n"+
			"  pawl orders show order-1\n"+
			"  pawl orders cancel order-1 --reason \"the customer called\"\n"+
			"  pawl orders list --limit 0 -o json | jq -r .orderId", append(commands, verbCommands()...)...)
}

func ordersListCommand() *cobra.Command {
	var filter client.ListOrdersParams
	var statuses []string
	var since time.Duration
	var limit int
	cmd := asking(&cobra.Command{
		Use: "list", Short: "List orders, the newest first",
		Example: "  pawl orders list --hold attention\n  pawl orders list --item widget --status completed --limit 0 -o json",
	}, func(ctx context.Context, s *session, _ []string) error {
		for _, status := range statuses {
			filter.Status = append(filter.Status, client.Status(status))
		}
		if since > 0 {
			filter.CreatedFrom = time.Now().Add(-since)
		}
		filter.Limit = pageOf(limit)
		return orderRows.Print(s.out, s.format, first(limit, s.Orders(ctx, filter)))
	})
	f := cmd.Flags()
	f.StringSliceVar(&statuses, "status", nil, "only orders in one of these statuses, comma-separated")
	f.StringVar((*string)(&filter.Hold), "hold", "", "only orders that wait for this: attention, approval, callback, paused, queued, retry or scheduled")
	f.StringVar(&filter.HoldReason, "hold-reason", "", "with --hold: only orders with this reason, or with this before a colon in it")
	f.StringVar(&filter.CustomerID, "customer", "", "only orders of this customer")
	f.StringVar(&filter.Item, "item", "", "only orders for this item")
	f.DurationVar(&since, "since", 0, "only orders that were created within this time, such as 24h; 0: all")
	f.IntVar(&limit, "limit", 50, "most orders; 0: all")
	return cmd
}

// pageMost is the most that a page of the API has.
const pageMost = 200

func pageOf(limit int) int {
	if limit <= 0 {
		return pageMost
	}
	return min(limit, pageMost)
}

var orderRows = output.Columns[client.Order]{
	Titles: []any{"order", "status", "hold", "amount", "item", "quantity", "customer", "created"},
	Of: func(o *client.Order) []any {
		return []any{o.OrderID, o.Status, dash(o.Hold), o.Amount + " " + o.Currency, o.Item, o.Quantity, dash(o.CustomerID), moment(o.CreatedAt)}
	},
}

func ordersShowCommand() *cobra.Command {
	return asking(&cobra.Command{
		Use: "show ORDER", Short: "Show an order, what it waits for, and its history", Args: cobra.ExactArgs(1),
		Example: "  pawl orders show order-1\n  pawl orders show order-1 -o json | jq .allowedActions",
	}, func(ctx context.Context, s *session, args []string) error {
		order, err := s.GetOrder(ctx, args[0], nil)
		return show(s, order, err, func(o *client.Order) error {
			if err := s.printFields(o); err != nil {
				return err
			}
			fmt.Fprintln(s.out)
			return historyRows.Print(s.out, output.Table, s.Transitions(ctx, args[0], 0))
		})
	})
}

var historyRows = output.Columns[client.Transition]{
	Titles: []any{"seq", "at", "from", "to", "what", "actor", "reason"},
	Of: func(t *client.Transition) []any {
		return []any{t.Seq, moment(t.At), dash(t.From), t.To, dash(t.Verb), t.Actor, dash(t.Reason)}
	},
}

// printFields prints what is known of an order.
func (s *session) printFields(o *client.Order) error {
	all := []field{
		{"order", o.OrderID},
		{"status", string(o.Status)},
		{"failure", strings.TrimSuffix(o.Failure.Code+": "+o.Failure.Detail, ": ")},
		{"hold", strings.TrimSuffix(string(o.Hold)+": "+o.HoldReason, ": ")},
		{"resumes", moment(o.ResumesAt)},
		{"may do", strings.Join(o.AllowedActions, ", ")},
		{"amount", o.Amount + " " + o.Currency},
		{"refunded", o.Refunded},
		{"item", fmt.Sprintf("%d of %s", o.Quantity, o.Item)},
		{"customer", o.CustomerID},
		{"submitted by", o.SubmittedBy},
		{"created", moment(o.CreatedAt)},
		{"finished", moment(o.FinishedAt)},
	}
	for _, name := range slices.Sorted(maps.Keys(o.Metadata)) {
		all = append(all, field{"metadata", name + "=" + o.Metadata[name]})
	}
	for _, r := range o.Refunds {
		all = append(all, field{fmt.Sprintf("refund %d", r.Refund), fmt.Sprintf("%s %s %s", r.State, r.Amount, r.Reason)})
	}
	return s.fields(all...)
}

// notDone is the end of an order that is not what was asked for.
type notDone struct{ order *client.Order }

func (e *notDone) Error() string {
	text := fmt.Sprintf("order %q is %s", e.order.OrderID, e.order.Status)
	if e.order.Failure.Code != "" {
		text += ": " + e.order.Failure.Code
	}
	return text
}

// ended is nil for an order that was done, or may still be.
func ended(o *client.Order) error {
	if o.Status == client.StatusFailed || o.Status == client.StatusCanceled {
		return &notDone{o}
	}
	return nil
}

func ordersProcessCommand() *cobra.Command {
	body := client.ProcessBody{Quantity: new(1)}
	var wait bool
	cmd := asking(&cobra.Command{
		Use: "process [ORDER] --amount AMOUNT --item ITEM", Short: "Process an order", Args: cobra.MaximumNArgs(1),
		Long: "Processes an order and prints what became of it. To give it again is safe: an order is done once. Without a\n" +
			"name for the order, it gets a new one each time. Ends with 1 if the order failed or was canceled.",
		Example: "  pawl orders process order-1 --amount 99.99 --item widget\n" +
			"  pawl orders process order-1 --amount 99.99 --item widget --wait",
	}, func(ctx context.Context, s *session, args []string) (err error) {
		if len(args) > 0 {
			body.OrderID = args[0]
		}
		if *body.Quantity < 1 {
			return fmt.Errorf("%w: --quantity must be 1 or more", ErrUsage)
		}
		process := s.Process
		if wait {
			process = s.ProcessAndWait
		}
		order, err := process(ctx, body)
		if order == nil {
			return err
		}
		printed := show(s, order, nil, func(o *client.Order) error {
			return orderRows.Print(s.out, output.Table, output.All([]client.Order{*o}))
		})
		return errors.Join(printed, err, ended(order))
	})
	f := cmd.Flags()
	f.StringVar(&body.Amount, "amount", "", "how much to charge, as a decimal")
	f.StringVar(&body.Currency, "currency", "", "ISO 4217; without it, the default of the service")
	f.StringVar(&body.Item, "item", "", "what is ordered")
	f.IntVar(body.Quantity, "quantity", 1, "how many of it")
	f.StringVar(&body.CustomerID, "customer", "", "who buys")
	f.StringToStringVar(&body.Metadata, "metadata", nil, "strings to keep with the order: name=value")
	f.BoolVar(&wait, "wait", false, "wait until the order has ended, also if a person must approve it")
	return requiring(cmd, "amount", "item")
}

// look is how long a look at an order waits for a change.
const look = "30s"

func ordersWatchCommand() *cobra.Command {
	return asking(&cobra.Command{
		Use: "watch ORDER", Short: "Print an order whenever it changes, until it has ended", Args: cobra.ExactArgs(1),
		Long:    "Prints an order now and whenever it changes, until it has ended.\nEnds with 1 if the order failed or was canceled.",
		Example: "  pawl orders watch order-1\n  pawl orders watch order-1 -o json | jq --unbuffered .status",
	}, func(ctx context.Context, s *session, args []string) error {
		order, err := s.GetOrder(ctx, args[0], nil)
		if err != nil {
			return err
		}
		lasting, err := s.connect(patienceForever)
		if err != nil {
			return err
		}
		s.printChange(order)
		for !order.Status.Final() {
			began := time.Now()
			next, err := lasting.GetOrder(ctx, args[0], &client.GetOrderParams{Wait: look, IfNoneMatch: order.ETag()})
			switch {
			case errors.Is(err, client.ErrNotModified):
				err = pauseUnless(ctx, time.Since(began) > time.Second)
			case err == nil:
				order = next
				s.printChange(order)
			}
			if err != nil {
				return err
			}
		}
		return ended(order)
	})
}

// pauseUnless waits a second, so that a service that does not let its callers wait is not asked without a pause.
func pauseUnless(ctx context.Context, waited bool) error {
	if waited {
		return ctx.Err()
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Second):
		return nil
	}
}

func (s *session) printChange(o *client.Order) {
	if s.format == output.JSON {
		_ = output.Line(s.out, o)
		return
	}
	line := fmt.Sprintf("%s  %-10s", moment(time.Now()), o.Status)
	if o.Hold != "" {
		line += fmt.Sprintf("  %s %s", o.Hold, o.HoldReason)
	}
	if o.Failure.Code != "" {
		line += fmt.Sprintf("  %s %s", o.Failure.Code, o.Failure.Detail)
	}
	fmt.Fprintln(s.out, output.Clean(line))
}

// verb is what a person asks of an order.
type verb struct {
	name, short string
	send        func(ctx context.Context, c *client.Client, orderID string, w wish) (*client.Order, error)
}

// wish is how a verb is asked for.
type wish struct {
	client.VerbBody
	dryRun bool
}

var verbs = []verb{
	{"cancel", "Cancel an order, and undo its completed steps", func(ctx context.Context, c *client.Client, id string, w wish) (*client.Order, error) {
		return c.CancelOrder(ctx, id, &client.CancelOrderParams{DryRun: w.dryRun}, w.VerbBody)
	}},
	{"retry", "Try the step of an order again now, or start a failed order again", func(ctx context.Context, c *client.Client, id string, w wish) (*client.Order, error) {
		return c.RetryOrder(ctx, id, &client.RetryOrderParams{DryRun: w.dryRun}, client.RetryBody{Reason: w.Reason, RequestID: w.RequestID})
	}},
	{"pause", "Pause an order", func(ctx context.Context, c *client.Client, id string, w wish) (*client.Order, error) {
		return c.PauseOrder(ctx, id, &client.PauseOrderParams{DryRun: w.dryRun}, w.VerbBody)
	}},
	{"resume", "Resume a paused order", func(ctx context.Context, c *client.Client, id string, w wish) (*client.Order, error) {
		return c.ResumeOrder(ctx, id, &client.ResumeOrderParams{DryRun: w.dryRun}, w.VerbBody)
	}},
	{"approve", "Approve an order that waits for approval", func(ctx context.Context, c *client.Client, id string, w wish) (*client.Order, error) {
		return c.ApproveOrder(ctx, id, &client.ApproveOrderParams{DryRun: w.dryRun}, w.VerbBody)
	}},
	{"reject", "Reject an order that waits for approval", func(ctx context.Context, c *client.Client, id string, w wish) (*client.Order, error) {
		return c.RejectOrder(ctx, id, &client.RejectOrderParams{DryRun: w.dryRun}, w.VerbBody)
	}},
}

func verbCommands() (commands []*cobra.Command) {
	for _, v := range verbs {
		commands = append(commands, v.command())
	}
	return commands
}

// command does a verb to orders, one after the other. It goes on after one that refuses it.
func (v verb) command() *cobra.Command {
	var w wish
	cmd := asking(&cobra.Command{
		Use: v.name + " ORDER...", Short: v.short, Args: cobra.MinimumNArgs(1),
		Example: "  pawl orders " + v.name + " order-1 --reason \"the customer called\"\n  pawl orders " + v.name + " order-1 --dry-run",
	}, func(ctx context.Context, s *session, args []string) error {
		var done []client.Order
		var errs []error
		for _, id := range args {
			order, err := v.send(ctx, s.Client, id, w)
			switch {
			case err != nil:
				errs = append(errs, fmt.Errorf("order %q: %w", id, err))
			case s.format == output.JSON:
				errs = append(errs, output.Line(s.out, order))
			default:
				done = append(done, *order)
			}
		}
		if len(done) > 0 {
			errs = append(errs, orderRows.Print(s.out, s.format, output.All(done)), s.printDryRun(w.dryRun))
		}
		return errors.Join(errs...)
	})
	f := cmd.Flags()
	f.StringVar(&w.Reason, "reason", "", "why; kept in the history")
	f.StringVar(&w.RequestID, "request-id", "", "name of the request, so that it is done once however often it is given; without it, a new one")
	f.BoolVar(&w.dryRun, "dry-run", false, "check whether the request would succeed, without changing anything")
	return cmd
}

func ordersRefundCommand() *cobra.Command {
	var body client.RefundBody
	var amount string
	var dryRun bool
	cmd := asking(&cobra.Command{
		Use: "refund ORDER --reason TEXT", Short: "Refund a completed order", Args: cobra.ExactArgs(1),
		Long: "Refunds a completed order. A refund with a --request-id is made once, however often the command runs.",
		Example: "  pawl orders refund order-1 --amount 12.50 --reason \"one is broken\" --request-id ticket-1\n" +
			"  pawl orders refund order-1 --reason \"sent back\" --restock 1 --dry-run",
	}, func(ctx context.Context, s *session, args []string) error {
		if amount != "" { // empty, it was refused
			body.Amount = &amount
		}
		order, err := s.RefundOrder(ctx, args[0], &client.RefundOrderParams{DryRun: dryRun}, body)
		return show(s, order, err, func(o *client.Order) error {
			return errors.Join(s.printFields(o), s.printDryRun(dryRun))
		})
	})
	f := cmd.Flags()
	f.StringVar(&amount, "amount", "", "how much, as a decimal; without it, all that is left")
	f.StringVar(&body.Reason, "reason", "", "why; kept in the history, and told to an http provider")
	f.StringVar(&body.RequestID, "request-id", "", "name of the refund, so that it is done once; without it, a new one")
	f.IntVar(&body.Restock, "restock", 0, "how many units to put back into stock")
	f.BoolVar(&dryRun, "dry-run", false, "check whether the request would succeed, without changing anything")
	return requiring(cmd, "reason")
}

// holds are all that an order can wait for: first what waits for people.
var holds = []client.OrderHold{
	client.OrderHoldAttention, client.OrderHoldApproval, client.OrderHoldPaused, client.OrderHoldCallback,
	client.OrderHoldRetry, client.OrderHoldQueued, client.OrderHoldScheduled,
}

func holdsCommand() *cobra.Command {
	only := ""
	limit := 50
	cmd := asking(&cobra.Command{
		Use: "holds", Short: "List orders on hold, with reasons and allowed actions",
		Long: "Lists orders on hold, oldest first, with reasons and allowed actions. The runbook\n" +
			"(docs/runbook.md) has a section on each hold and reason.",
		Example: "  pawl holds --hold attention\n  pawl holds --limit 0 -o json | jq -r 'select(.hold==\"attention\") | .orderId'",
	}, func(ctx context.Context, s *session, _ []string) error {
		wanted := holds
		if only != "" {
			wanted = []client.OrderHold{client.OrderHold(only)}
		}
		waiting, err := s.waiting(ctx, wanted)
		if err != nil {
			return err
		}
		err = heldRows.Print(s.out, s.format, first(limit, output.All(waiting)))
		if more := len(waiting) - limit; err == nil && limit > 0 && more > 0 && s.format == output.Table {
			fmt.Fprintf(s.out, "and %d more\n", more)
		}
		return err
	})
	cmd.Flags().StringVar(&only, "hold", "", "only orders that wait for this: attention, approval, callback, paused, queued, retry or scheduled")
	cmd.Flags().IntVar(&limit, "limit", limit, "most orders; 0: all")
	return cmd
}

// waiting are the orders on hold, the oldest first.
func (s *session) waiting(ctx context.Context, holds []client.OrderHold) (orders []client.Order, _ error) {
	for _, hold := range holds {
		for order, err := range s.Orders(ctx, client.ListOrdersParams{Hold: client.ListOrdersParamsHold(hold), Limit: pageMost}) {
			if err != nil {
				return nil, err
			}
			orders = append(orders, order)
		}
	}
	slices.SortStableFunc(orders, func(a, b client.Order) int { return a.CreatedAt.Compare(b.CreatedAt) })
	return orders, nil
}

var heldRows = output.Columns[client.Order]{
	Titles: []any{"order", "hold", "created", "resumes", "may do", "reason"},
	Of: func(o *client.Order) []any {
		return []any{o.OrderID, o.Hold, moment(o.CreatedAt), dash(moment(o.ResumesAt)), dash(strings.Join(o.AllowedActions, ",")), dash(o.HoldReason)}
	},
}
