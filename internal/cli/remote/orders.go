package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pawl/client"
	"pawl/internal/cli/output"
)

func ordersCommand() *cobra.Command {
	return group("orders", "List, show, process and change orders",
		"  pawl orders process order-1 --amount 99.99 --item widget\n"+
			"  pawl orders list --status failed,canceled --since 24h\n"+
			"  pawl orders show order-1\n"+
			"  pawl orders import orders.ndjson\n"+
			"  pawl orders cancel order-1 --reason \"the customer called\"\n"+
			"  pawl orders list --limit 0 -o json | jq -r .orderId",
		ordersListCommand(), ordersShowCommand(), ordersWatchCommand(), ordersProcessCommand(), ordersImportCommand(), ordersRefundCommand(),
		ordersCaptureCommand(), ordersVoidCommand(), ordersRequestCommand(), ordersDisputeCommand(), ordersStepResultCommand(),
		verbOfMany("cancel", "Cancel an order, and undo its completed steps"),
		verbOfMany("retry", "Try the step of an order again now, or start a failed order again"),
		verbOfMany("pause", "Pause an order"),
		verbOfMany("resume", "Resume a paused order"),
		verbOfMany("approve", "Approve an order that waits for approval"),
		verbOfMany("reject", "Reject an order that waits for approval"))
}

func ordersListCommand() *cobra.Command {
	var filter client.ListOrdersParams
	var statuses []string
	var since time.Duration
	var limit int
	cmd := asking(&cobra.Command{
		Use: "list [TERM]", Short: "List orders, newest first, or find them by one term", Args: cobra.MaximumNArgs(1),
		Long: "Lists orders, newest first. With TERM, it finds the order with this id, and those whose id begins with it, or whose\n" +
			"customer, provider's reference or searchable metadata it is (see pawl migrate search-keys). If there are none, it finds\n" +
			"the newest orders that have it inside one of these, or that have this amount. The filters apply, too.",
		Example: "  pawl orders list --hold attention\n  pawl orders list --item widget --status completed --limit 0 -o json\n" +
			"  pawl orders list ch_3P8xZq",
	}, func(ctx context.Context, s *session, args []string) error {
		for _, status := range statuses {
			filter.Status = append(filter.Status, client.Status(status))
		}
		if since > 0 {
			filter.CreatedFrom = time.Now().Add(-since)
		}
		if filter.Limit = pageOf(limit); len(args) > 0 {
			filter.Term = args[0]
		}
		if s.format == output.CSV {
			return s.printCSV(s.OrdersCSV(ctx, filter), limit)
		}
		if filter.Term != "" {
			return s.search(ctx, filter, limit)
		}
		return listedRows.Print(s.out, s.format, first(limit, s.Orders(ctx, filter)))
	})
	f := cmd.Flags()
	output.AllowCSV(f)
	f.StringSliceVar(&statuses, "status", nil, "only orders in these statuses, comma-separated")
	f.StringVar((*string)(&filter.Hold), "hold", "", holdHelp)
	f.StringVar(&filter.HoldReason, "hold-reason", "", "with --hold: only orders with this reason, or with this part of it before a colon")
	f.StringVar(&filter.CustomerID, "customer", "", "only orders of this customer")
	f.StringVar(&filter.Item, "item", "", "only orders for this item")
	f.DurationVar(&since, "since", 0, "only orders created within this time, such as 24h; 0: all")
	f.StringVar(&filter.Currency, "currency", "", "only orders in this currency")
	f.BoolVar(&filter.Charged, "charged", false, "only orders that were charged, also if that was undone")
	f.BoolVar(&filter.Refunded, "refunded", false, "only orders of which something was refunded, or whose charge was undone")
	f.BoolVar(&filter.Authorized, "authorized", false, "only orders of which something is authorized, and neither captured nor voided")
	f.BoolVar(&filter.Voided, "voided", false, "only orders of whose authorization something was voided or has ended")
	f.StringVar((*string)(&filter.Refund), "refund", "", "only orders with a refund, capture or void that is open, or whose last refund is done: open or done")
	f.StringVar((*string)(&filter.FailureStep), "failure-step", "", "only orders of which this has failed: charge, reserve, confirm, refund, capture or void")
	f.StringVar((*string)(&filter.Dispute), "dispute", "", "only orders with a dispute in this state: open, won or lost")
	f.IntVar(&limit, "limit", 50, "maximum number of orders; 0: all")
	completing(cmd, "status", statusWords...)
	completing(cmd, "hold", holdWords...)
	completing(cmd, "refund", "open", "done")
	completing(cmd, "failure-step", "charge", "reserve", "confirm", "refund", "capture", "void")
	completing(cmd, "dispute", "open", "won", "lost")
	return cmd
}

// listedRows are orderRows, with why an order failed or is held.
var listedRows = output.Columns[client.Order]{
	Titles: append(slices.Clone(orderRows.Titles), "why"),
	Of: func(o *client.Order) []any {
		why, _, _ := strings.Cut(o.HoldReason, ":")
		return append(orderRows.Of(o), dash(cmp.Or(o.Failure.Code, why)))
	},
}

// search prints the orders that have a term. No order is not an error, as with a filter.
func (s *session) search(ctx context.Context, filter client.ListOrdersParams, limit int) error {
	var found []client.Order
	page := &client.OrderPage{}
	for more := true; more; more = filter.Cursor != "" && (limit <= 0 || len(found) < limit && page.Looked == 0) {
		var err error
		if page, err = s.ListOrders(ctx, filter); err != nil {
			return err
		}
		found, filter.Cursor = append(found, page.Orders...), page.NextCursor
	}
	if err := matchRows.Print(s.out, s.format, first(limit, output.All(found))); err != nil {
		return err
	}
	switch {
	case s.format != output.Table:
	case len(page.NotFound) > 0:
		fmt.Fprintln(s.out, "not found: "+strings.Join(page.NotFound, ", "))
	case page.More || limit > 0 && len(found) > limit:
		fmt.Fprintln(s.out, "and more: use --limit")
	case page.NextCursor != "":
		fmt.Fprintf(s.out, "looked inside the newest %d orders only, back to %s\n", page.Looked, moment(page.LookedSince))
	}
	return nil
}

// matchRows are orderRows, with what has the term.
var matchRows = output.Columns[client.Order]{
	Titles: slices.Insert(slices.Clone(orderRows.Titles), 1, any("matched")),
	Of: func(o *client.Order) []any {
		return slices.Insert(orderRows.Of(o), 1, any(strings.TrimSpace(string(o.Matched.By)+" "+strings.Join(o.Matched.Keys, " "))))
	},
}

const holdHelp = "only orders that wait for this: attention, approval, callback, paused, queued, retry or scheduled"

// pageMost is the largest page of the API.
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
		item, units := o.Item, o.Quantity
		if o.Lines != nil {
			item = o.What()
			for _, l := range o.Lines {
				if l.Kind == "" {
					units += l.Quantity
				}
			}
		}
		return []any{o.OrderID, o.Status, dash(o.Hold), o.Amount + " " + o.Currency, item, units, dash(o.CustomerID), moment(o.CreatedAt)}
	},
}

func ordersShowCommand() *cobra.Command {
	return asking(&cobra.Command{
		Use: "show ORDER", Short: "Show an order, what it waits for, and its history", Args: cobra.ExactArgs(1),
		Example: "  pawl orders show order-1\n  pawl orders show order-1 -o json | jq .allowedActions",
	}, func(ctx context.Context, s *session, args []string) error {
		order, err := s.GetOrder(ctx, args[0])
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

func (s *session) printFields(o *client.Order) error {
	all := []string{
		"order", o.OrderID,
		"status", string(o.Status),
		"failure", strings.TrimSuffix(o.Failure.Code+": "+o.Failure.Detail, ": "),
		"hold", strings.TrimSuffix(string(o.Hold)+": "+o.HoldReason, ": "),
		"resumes", moment(o.ResumesAt),
		"if nobody approves", string(o.ApprovalOnTimeout),
		"may do", strings.Join(o.AllowedActions, ", "),
		"amount", o.Amount + " " + o.Currency,
		"authorized", o.Authorized, "captured", o.Captured, "voided", o.Voided, "refunded", o.Refunded,
	}
	all = append(all, whatFields(o)...)
	all = append(all,
		"customer", o.CustomerID,
		"submitted by", o.SubmittedBy,
		"created", moment(o.CreatedAt),
		"finished", moment(o.FinishedAt),
	)
	for _, name := range slices.Sorted(maps.Keys(o.Metadata)) {
		all = append(all, "metadata", name+"="+o.Metadata[name])
	}
	for _, c := range o.Captures {
		all = append(all, fmt.Sprintf("capture %d", c.Number), fmt.Sprintf("%s %s %s", c.State, c.Amount, c.Reason))
	}
	for _, v := range o.Voids {
		all = append(all, fmt.Sprintf("void %d", v.Number), fmt.Sprintf("%s %s %s", v.State, v.Amount, v.Reason))
	}
	for _, r := range o.Refunds {
		all = append(all, fmt.Sprintf("refund %d", r.Refund), fmt.Sprintf("%s %s %s", r.State, r.Amount, r.Reason))
		for _, l := range r.Lines {
			all = append(all, fmt.Sprintf("refund %d", r.Refund), fmt.Sprintf("%s of line %d, %s", cmp.Or(strings.TrimPrefix(strconv.Itoa(l.Quantity), "0"), l.Amount), l.Line, l.Item))
		}
	}
	for _, d := range o.Disputes {
		all = append(all, "dispute "+d.Reference, fmt.Sprintf("%s %s %s", d.State, d.Amount, d.Reason))
	}
	return s.fields(all...)
}

// whatFields are the item of an order, or its lines.
func whatFields(o *client.Order) (all []string) {
	if o.Lines == nil {
		return []string{"item", fmt.Sprintf("%d of %s", o.Quantity, o.Item)}
	}
	for i, l := range o.Lines {
		text := fmt.Sprintf("%d of %s", l.Quantity, l.Item)
		if l.Kind != "" {
			text = fmt.Sprintf("%s (%s)", l.Item, l.Kind)
		}
		if l.Amount != "" {
			text += ", " + l.Amount + " " + o.Currency
		}
		all = append(all, fmt.Sprintf("line %d", i+1), text)
	}
	return all
}

// ended returns an error for an order that failed or was canceled.
func ended(o *client.Order) error {
	if o.Status != client.StatusFailed && o.Status != client.StatusCanceled {
		return nil
	}
	return errors.New(strings.TrimSuffix(fmt.Sprintf("order %q is %s: %s", o.OrderID, o.Status, o.Failure.Code), ": "))
}

func ordersProcessCommand() *cobra.Command {
	body := client.ProcessBody{Quantity: new(1)}
	var wait bool
	cmd := asking(&cobra.Command{
		Use: "process [ORDER] --amount AMOUNT --item ITEM", Short: "Process an order", Args: cobra.MaximumNArgs(1),
		Long: "Processes an order and prints the result. Repeating the command is safe: an order is processed once. Without ORDER\n" +
			"it is a new order each time. Exits with 1 if the order failed or was canceled.",
		Example: "  pawl orders process order-1 --amount 99.99 --item widget\n" +
			"  pawl orders process order-1 --amount 99.99 --item widget --wait",
	}, func(ctx context.Context, s *session, args []string) (err error) {
		if len(args) > 0 {
			body.OrderID = args[0]
		}
		if *body.Quantity < 1 {
			return usage("--quantity must be 1 or more")
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
	f.StringVar(&body.Amount, "amount", "", "amount to charge, a decimal")
	f.StringVar(&body.Currency, "currency", "", "ISO 4217 code; empty: the default of the service")
	f.StringVar(&body.Item, "item", "", "name of the item")
	f.IntVar(body.Quantity, "quantity", 1, "number of units")
	f.StringVar(&body.CustomerID, "customer", "", "ID of the customer")
	f.StringToStringVar(&body.Metadata, "metadata", nil, "name=value to store with the order")
	f.BoolVar(&wait, "wait", false, "wait until the order is final, including approval")
	return requiring(cmd, "amount", "item")
}

func ordersWatchCommand() *cobra.Command {
	return asking(&cobra.Command{
		Use: "watch ORDER", Short: "Print an order whenever it changes, until it is final", Args: cobra.ExactArgs(1),
		Long:    "Prints an order now and whenever it changes, until it is final.\nExits with 1 if the order failed or was canceled.",
		Example: "  pawl orders watch order-1\n  pawl orders watch order-1 -o json | jq --unbuffered .status",
	}, func(ctx context.Context, s *session, args []string) error {
		order, err := s.GetOrder(ctx, args[0])
		if err != nil {
			return err
		}
		for next, err := range s.Watch(ctx, order) {
			if ctx.Err() != nil {
				return nil // an interrupt is the normal end
			}
			if err != nil {
				return err
			}
			order = next
			s.printChange(order)
		}
		return ended(order)
	})
}

func (s *session) printChange(o *client.Order) {
	if s.format == output.JSON {
		_ = output.Line(s.out, o)
		return
	}
	line := ""
	if o.Hold != "" {
		line += fmt.Sprintf("  %s %s", o.Hold, o.HoldReason)
	}
	if o.Failure.Code != "" {
		line += fmt.Sprintf("  %s %s", o.Failure.Code, o.Failure.Detail)
	}
	status := output.Paint(s.out, string(o.Status)) + strings.Repeat(" ", max(0, 10-len(o.Status)))
	fmt.Fprintln(s.out, strings.TrimRight(fmt.Sprintf("%s  %s  %s", moment(time.Now()), status, output.Clean(line)), " "))
}

// verbOfMany makes a command that sends a verb for several orders, one after the other. It continues after an error.
func verbOfMany(verb, short string) *cobra.Command {
	var body client.VerbBody
	var to client.CancelOrderParams
	cmd := asking(&cobra.Command{
		Use: verb + " ORDER...", Short: short, Args: cobra.MinimumNArgs(1),
		Example: "  pawl orders " + verb + " order-1 --reason \"the customer called\"\n  pawl orders " + verb + " order-1 --dry-run",
	}, func(ctx context.Context, s *session, args []string) error {
		var done []client.Order
		var errs []error
		for _, id := range args {
			order, err := s.ApplyVerb(ctx, client.OrderVerb{OrderID: id, Name: verb, Body: body}, to)
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
			errs = append(errs, orderRows.Print(s.out, s.format, output.All(done)), s.printDryRun(to.DryRun))
		}
		return errors.Join(errs...)
	})
	cmd.Flags().StringVar(&body.Reason, "reason", "", "reason, for the history")
	requestIDFlag(cmd.Flags(), "request", &body.RequestID)
	dryRunFlag(cmd.Flags(), &to.DryRun)
	return cmd
}

// verbOfOne makes a command that sends a verb for the order in its argument, with the body that its flags set.
func verbOfOne(verb string, body any, cmd *cobra.Command) *cobra.Command {
	var to client.CancelOrderParams
	cmd.Args = cobra.ExactArgs(1)
	dryRunFlag(cmd.Flags(), &to.DryRun)
	return asking(cmd, func(ctx context.Context, s *session, args []string) error {
		order, err := s.ApplyVerb(ctx, client.OrderVerb{OrderID: args[0], Name: verb, Body: body}, to)
		return show(s, order, err, func(o *client.Order) error {
			return errors.Join(s.printFields(o), s.printDryRun(to.DryRun))
		})
	})
}

func requestIDFlag(f *pflag.FlagSet, of string, id *string) {
	f.StringVar(id, "request-id", "", "ID of the "+of+", which makes repeating it safe; empty: a new one")
}

// chargeFlags adds the flags that all changes of a charge have.
func chargeFlags(cmd *cobra.Command, reason, requestID *string) {
	cmd.Flags().StringVar(reason, "reason", "", "reason, for the history and for http providers")
	requestIDFlag(cmd.Flags(), cmd.Name(), requestID)
}

const amountHelp = "amount, a decimal; by default everything that is left"

// optional is a flag whose text stays nil without it.
type optional struct{ text **string }

func (o optional) String() string { return *cmp.Or(*o.text, new("")) }

func (o optional) Set(text string) error {
	*o.text = &text
	return nil
}

func (optional) Type() string { return "string" }

func ordersRefundCommand() *cobra.Command {
	var body client.RefundBody
	var lines, parts []string
	var restock []int
	cmd := verbOfOne("refund", &body, &cobra.Command{
		Use: "refund ORDER --reason TEXT", Short: "Refund a completed order",
		Long: "Refunds a completed order. With --request-id, repeating the command is safe.\n" +
			"Units bring no share of tax or discount: give it with --line-amount.",
		Example: "  pawl orders refund order-1 --amount 12.50 --reason \"one is broken\" --request-id ticket-1\n" +
			"  pawl orders refund order-1 --reason \"sent back\" --restock 1 --dry-run\n" +
			"  pawl orders refund order-2 --reason \"sent back\" --line 1=2 --line-amount 3=2.86 --restock-line 1",
		PreRunE: func(*cobra.Command, []string) (err error) {
			body.Lines, err = linesIn(lines, parts, restock)
			return err
		},
	})
	f := cmd.Flags()
	f.Var(optional{&body.Amount}, "amount", amountHelp)
	chargeFlags(cmd, &body.Reason, &body.RequestID)
	f.IntVar(&body.Restock, "restock", 0, "number of units to return to stock, of an order of one item")
	f.StringSliceVar(&lines, "line", nil, "`LINE=UNITS` of an order with lines, comma-separated; the amount is by default theirs")
	f.StringSliceVar(&parts, "line-amount", nil, "`LINE=AMOUNT` of a tax, discount, fee or shipping: a part of it, comma-separated")
	f.IntSliceVar(&restock, "restock-line", nil, "number of a --line whose units return to stock, comma-separated")
	return requiring(cmd, "reason")
}

// linesIn reads LINE=UNITS and LINE=AMOUNT, and which of the units return to stock.
func linesIn(texts, parts []string, restock []int) (lines []client.LinePart, err error) {
	for i, text := range slices.Concat(texts, parts) {
		line, much, _ := strings.Cut(text, "=")
		number, faulty := strconv.Atoi(line)
		part := client.LinePart{Line: number, Amount: much, Restock: slices.Contains(restock, number)}
		if i < len(texts) && faulty == nil {
			part.Amount = ""
			part.Quantity, faulty = strconv.Atoi(much)
		}
		if faulty != nil || much == "" {
			return nil, usage("--line must be the number of a line and its units, such as 2=1, and --line-amount a part of its amount, such as 4=2.86")
		}
		lines = append(lines, part)
	}
	for _, number := range restock {
		if !slices.ContainsFunc(lines, func(l client.LinePart) bool { return l.Line == number }) {
			return nil, usage("--restock-line must be one of --line")
		}
	}
	return lines, nil
}

func ordersCaptureCommand() *cobra.Command {
	var body client.CaptureBody
	cmd := verbOfOne("capture", &body, &cobra.Command{
		Use: "capture ORDER", Short: "Capture a part of an authorization",
		Long: "Captures a part of what the charge of a completed order authorized. With --request-id, repeating the command is safe.",
		Example: "  pawl orders capture order-1 --amount 40 --request-id parcel-1\n" +
			"  pawl orders capture order-1 --amount 20 --final",
	})
	cmd.Flags().Var(optional{&body.Amount}, "amount", amountHelp)
	cmd.Flags().BoolVar(&body.Final, "final", false, "void the rest")
	chargeFlags(cmd, &body.Reason, &body.RequestID)
	return cmd
}

func ordersVoidCommand() *cobra.Command {
	var body client.VoidBody
	cmd := verbOfOne("void", &body, &cobra.Command{
		Use: "void ORDER", Short: "Void the rest of an authorization",
		Long:    "Gives up what is not captured of the charge of a completed order. With --request-id, repeating the command is safe.",
		Example: "  pawl orders void order-1 --request-id rest",
	})
	chargeFlags(cmd, &body.Reason, &body.RequestID)
	return cmd
}

func ordersDisputeCommand() *cobra.Command {
	var body client.DisputeBody
	cmd := verbOfOne("dispute", &body, &cobra.Command{
		Use: "dispute ORDER --reference REFERENCE --state STATE --amount AMOUNT", Short: "Record a dispute of an order's charge",
		Long: "Records that a dispute was opened, won or lost. It moves nothing. Repeating the command is safe: each state of a\n" +
			"dispute is recorded once. Stripe's disputes are recorded by themselves.",
		Example: "  pawl orders dispute order-1 --reference dp_1P8xZq --state opened --amount 99.99 --reason fraudulent",
	})
	f := cmd.Flags()
	f.StringVar(&body.Reference, "reference", "", "the provider's name for the dispute")
	f.StringVar((*string)(&body.State), "state", "", "opened, won or lost")
	f.StringVar(&body.Amount, "amount", "", "disputed amount, a decimal")
	f.StringVar(&body.Reason, "reason", "", "reason, for the history")
	return requiring(cmd, "reference", "state", "amount")
}

func holdsCommand() *cobra.Command {
	var only string
	var limit int
	cmd := askingAll(&cobra.Command{
		Use: "holds", Short: "List orders on hold, with reasons and allowed actions",
		Long: "Lists orders on hold, oldest first, with reasons and allowed actions. The runbook\n" +
			"(docs/runbook.md) has a section on each hold and reason.",
		Example: "  pawl holds --hold attention\n  pawl holds --limit 0 -o json | jq -r 'select(.hold==\"attention\") | .orderId'\n" +
			"  pawl holds --all --url \"http://cell0:3000 http://cell1:3000\"",
	}, func(ctx context.Context, s *session, _ []string) error {
		wanted := holdWords
		if only != "" {
			wanted = []string{only}
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
	cmd.Flags().StringVar(&only, "hold", "", holdHelp)
	completing(cmd, "hold", holdWords...)
	cmd.Flags().IntVar(&limit, "limit", 50, "maximum number of orders; 0: all")
	return cmd
}

// waiting returns the orders on hold, oldest first.
func (s *session) waiting(ctx context.Context, holds []string) (orders []client.Order, _ error) {
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
		actions := strings.Join(o.AllowedActions, ",")
		return []any{o.OrderID, o.Hold, moment(o.CreatedAt), dash(moment(o.ResumesAt)), dash(actions), dash(o.HoldReason)}
	},
}
