package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/aymanbagabas/go-udiff"
	"github.com/govalues/decimal"
	"github.com/spf13/cobra"

	"pawl/db"
	"pawl/fsm"
	"pawl/internal/cli/output"
	"pawl/internal/iso4217"
	"pawl/internal/orders"
	"pawl/internal/pg"
	"pawl/internal/policy"
	"pawl/internal/policy/store"
)

func policyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "List, compare, check and activate policies",
		Long: "A policy says what does each step of an order, how long it is retried, and which orders a person must\n" +
			"approve. Every policy that was served is kept as a version. See docs/policy.md.",
		Example: "  pawl policy check shop.yaml   # any mistakes?\n" +
			"  pawl policy list              # which version is active?\n" +
			"  pawl policy activate 2        # back to version 2",
		RunE: func(*cobra.Command, []string) error {
			return usageError{errors.New("policy: list, show, diff, activate, check or schema")}
		},
	}
	show := policyQuery("show N", "Print version N", cobra.ExactArgs(1), showPolicy)
	diff := policyQuery("diff N M", "Print what changed from version N to version M", cobra.ExactArgs(2), diffPolicies)
	var actor string
	activate := policyQuery("activate N", "Activate version N for new orders", cobra.ExactArgs(1),
		func(ctx context.Context, query *db.Queries, versions []int32, out io.Writer) error {
			if actor == "" {
				return usageError{errors.New("actor: want a name")}
			}
			if err := store.Activate(ctx, query, store.Activation{Version: versions[0], Actor: actor}); err != nil {
				return err
			}
			fmt.Fprintf(out, "policy %d is active; running services see it within seconds\n", versions[0])
			return warnOfStock(ctx, query, versions[0], out)
		})
	activate.Flags().StringVar(&actor, "actor", userName(), "name to record in the history")
	schema := printCommand("schema", "Print the JSON schema of policies, for editors", policy.Schema)
	cmd.AddCommand(policyListCommand(), show, diff, activate, policyCheckCommand(), schema)
	return cmd
}

// warnOfStock prints if the stock that is tracked here does not count under a version.
func warnOfStock(ctx context.Context, query *db.Queries, version int32, out io.Writer) error {
	source, err := store.Source(ctx, query, version)
	if err != nil {
		return err
	}
	p, err := policy.Parse([]byte(source))
	if err != nil {
		return err
	}
	err = store.CheckStock(ctx, query, p)
	if errors.Is(err, store.ErrStockIgnored) {
		_, err = fmt.Fprintf(out, "warning: %v\n", err)
	}
	return err
}

// policyQuery is a command that asks the database about the versions in its arguments.
func policyQuery(use, short string, args cobra.PositionalArgs,
	run func(ctx context.Context, query *db.Queries, versions []int32, out io.Writer) error,
) *cobra.Command {
	var cfg config
	cmd := &cobra.Command{
		Use: use, Short: short, Args: args,
		RunE: func(cmd *cobra.Command, args []string) error {
			versions, err := parseVersions(args)
			if err != nil {
				return err
			}
			return withDatabase(cmd, &cfg, func(pool *pg.Pool, _ string) error {
				return run(cmd.Context(), db.New(pool), versions, cmd.OutOrStdout())
			})
		},
	}
	cfg.addTo(cmd)
	return cmd
}

func parseVersions(args []string) (versions []int32, err error) {
	for _, arg := range args {
		n, err := strconv.ParseInt(arg, 10, 32)
		if err != nil || n < 1 {
			return nil, usageError{fmt.Errorf("version %q: want a number from 1", arg)}
		}
		versions = append(versions, int32(n))
	}
	return versions, nil
}

// listedPolicy is a version as programs read of it.
type listedPolicy struct {
	Version     int32             `json:"version"`
	Active      bool              `json:"active"`
	CreatedAt   time.Time         `json:"createdAt"`
	ActivatedAt time.Time         `json:"activatedAt,omitzero"` // zero: never
	ActivatedBy string            `json:"activatedBy,omitempty"`
	Executors   map[string]string `json:"executors"` // by step; null: this program can't run it
}

func policyListCommand() *cobra.Command {
	var format output.Format
	cmd := policyQuery("list", "List the versions; the active one has a star", cobra.NoArgs,
		func(ctx context.Context, query *db.Queries, _ []int32, out io.Writer) error {
			list, err := listPolicies(ctx, query)
			if err != nil {
				return err
			}
			columns := output.Columns[listedPolicy]{Titles: []any{"version", "stored", "last activated", "by", "charge", "reserve", "confirm"}, Of: policyRow}
			return columns.Print(out, format, output.All(list))
		})
	format.AddTo(cmd.Flags())
	return cmd
}

func listPolicies(ctx context.Context, query *db.Queries) (list []listedPolicy, _ error) {
	rows, err := store.List(ctx, query, math.MaxInt32, math.MaxInt32)
	if err != nil {
		return nil, err
	}
	active, versions, err := store.Read(ctx, query, nil)
	if err != nil {
		return nil, err
	}
	steps := map[int32]map[string]string{}
	for _, v := range versions {
		steps[v.Number] = executors(v.Policy)
	}
	for _, row := range slices.Backward(rows) {
		p := listedPolicy{Version: row.Version, Active: row.Version == active, CreatedAt: row.CreatedAt.UTC(), Executors: steps[row.Version]}
		if row.ActivatedAt != nil {
			p.ActivatedAt, p.ActivatedBy = row.ActivatedAt.UTC(), *row.ActivatedBy
		}
		list = append(list, p)
	}
	return list, nil
}

func policyRow(p *listedPolicy) []any {
	star, activated := "", "never"
	if p.Active {
		star = "*"
	}
	if !p.ActivatedAt.IsZero() {
		activated = p.ActivatedAt.Format(time.RFC3339)
	}
	row := []any{fmt.Sprint(p.Version, star), p.CreatedAt.Format(time.RFC3339), activated, fmt.Sprintf("%.40q", p.ActivatedBy)}
	if p.Executors == nil {
		return append(row, "(not for this release)")
	}
	for _, s := range fsm.Steps() {
		row = append(row, p.Executors[string(s)])
	}
	return row
}

// executors are what does the steps of a policy; nil: this program can't run it.
func executors(p *policy.Policy) map[string]string {
	if p == nil {
		return nil
	}
	all := map[string]string{}
	for _, s := range fsm.Steps() {
		all[string(s)] = string(p.Step(s).Executor)
	}
	return all
}

func showPolicy(ctx context.Context, query *db.Queries, versions []int32, out io.Writer) error {
	source, err := store.Source(ctx, query, versions[0])
	if err != nil {
		return err
	}
	_, err = io.WriteString(out, source)
	return err
}

func diffPolicies(ctx context.Context, query *db.Queries, versions []int32, out io.Writer) error {
	var sources [2]string
	for i, version := range versions {
		var err error
		if sources[i], err = store.Source(ctx, query, version); err != nil {
			return err
		}
	}
	name := func(version int32) string { return fmt.Sprintf("policy %d", version) }
	_, err := io.WriteString(out, udiff.Unified(name(versions[0]), name(versions[1]), sources[0], sources[1]))
	return err
}

// userName is who runs this process, as far as it can be told.
func userName() string {
	if current, err := user.Current(); err == nil && current.Username != "" {
		return current.Username
	}
	return "uid " + strconv.Itoa(os.Getuid())
}

func policyCheckCommand() *cobra.Command {
	var order string
	cfg := config{Listen: "127.0.0.1"} // as `serve` does
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Check a policy for mistakes, and try it on an order",
		Long: "Reads a policy (- is standard input), prints every mistake with its line and column, and exits with 1 if\n" +
			"there is one. It needs no database and calls nobody. Give it the settings that the service has: they bound which\n" +
			"secrets and addresses a policy may name.",
		Example: `  pawl policy check shop.yaml --order '{"amount": 700, "item": "car", "customerId": "bob"}'`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := checkPolicy(args[0], cmd.InOrStdin(), cmd.OutOrStdout())
			if err != nil {
				return err
			}
			explainBounds(cmd.OutOrStdout(), p, cfg.Bounds)
			explainStock(cmd.OutOrStdout(), p)
			if order == "" {
				return nil
			}
			o, err := parseOrder(order, cfg.Currency)
			if err != nil {
				return usageError{fmt.Errorf("order: %w", err)}
			}
			explainOrder(cmd.OutOrStdout(), p, o)
			return nil
		},
	}
	cfg.boundsFlags(cmd.Flags())
	cmd.PreRunE = cfg.loadFirst
	cmd.Flags().StringVar(&order, "order", "", "an order as `JSON`, as POST /api/orders/process takes it: print what would happen to it")
	cmd.Flags().StringVar(&cfg.Currency, "currency", "USD", "currency of an order that names none")
	return cmd
}

// checkPolicy prints what is wrong with a policy file, or what it comes to.
func checkPolicy(path string, in io.Reader, out io.Writer) (*policy.Policy, error) {
	source, err := readPolicy(path, in)
	if err != nil {
		return nil, err
	}
	p, err := policy.Parse(source)
	var problems policy.Problems
	if errors.As(err, &problems) {
		for _, problem := range problems {
			fmt.Fprintf(out, "%s:%d:%d: %s\n", path, problem.Line, problem.Column, problem.Says())
		}
		return nil, fmt.Errorf("%s: mistakes: %d", path, len(problems))
	}
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(out, "%s is a policy: charge %s, reserve %s, confirm %s\n", path, p.Charge.Executor, p.Reserve.Executor, p.Confirm.Executor)
	return p, nil
}

// explainBounds prints which steps could not be done with these settings, on this machine.
func explainBounds(out io.Writer, p *policy.Policy, bounds policy.Bounds) {
	for _, s := range fsm.Steps() {
		if err := bounds.Usable(p, s); err != nil {
			fmt.Fprintf(out, "here it could not %v\n", err)
		}
	}
}

// explainStock prints where stock that is tracked in the database does not count. Whether any is, only the database knows.
func explainStock(out io.Writer, p *policy.Policy) {
	if p.Reserve.Executor.Remote() {
		fmt.Fprintf(out, "reserve is done by %s: orders take nothing from stock that is tracked here (PUT /api/inventory/…)\n", p.Reserve.Executor)
	}
}

// maxPolicyFile bounds what is read of a file named by mistake; Parse says what is too long.
const maxPolicyFile = 1 << 20

// readPolicy reads a policy file; - is in.
func readPolicy(path string, in io.Reader) ([]byte, error) {
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("read policy: %w", err)
		}
		defer file.Close()
		in = file
	}
	source, err := io.ReadAll(io.LimitReader(in, maxPolicyFile))
	if err != nil {
		return nil, fmt.Errorf("read policy: %w", err)
	}
	return source, nil
}

// triedOrder is an order as a request has it: what a policy asks of it, its own times, and the rest, so that a whole
// request can be pasted.
type triedOrder struct {
	policy.Order
	Amount         *decimal.Decimal // in place of the Order's until it is known that there is one
	CompleteBy     *time.Time
	ReservationTTL int64 // seconds; 0: that of the policy

	OrderID, Quantity, Metadata, PaymentMethod, StartAt json.RawMessage
}

func parseOrder(text, currency string) (*triedOrder, error) {
	o := triedOrder{Order: policy.Order{Currency: currency}}
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&o)
	switch {
	case err != nil:
		return nil, err
	case decoder.More():
		return nil, errors.New("want one JSON object")
	case o.Amount == nil || o.Amount.IsNeg():
		return nil, errors.New("amount: want a number of at least 0")
	case o.Item == "":
		return nil, errors.New("item: want a text")
	case !iso4217.Known(o.Currency):
		return nil, errors.New("currency: not an ISO 4217 code")
	case o.ReservationTTL < 0:
		return nil, errors.New("reservationTtl: want seconds")
	}
	o.Order.Amount = *o.Amount
	return &o, nil
}

// explainOrder prints what would become of an order.
func explainOrder(out io.Writer, p *policy.Policy, o *triedOrder) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, s := range fsm.Steps() {
		fmt.Fprintf(table, "%s\t%s\n", s, explainStep(p.Step(s)))
	}
	fmt.Fprintf(table, "approval\t%s\n", explainApproval(p.ApprovalOf(o.Order)))
	fmt.Fprintf(table, "concurrency\t%s\n", explainConcurrency(p, p.Key(o.Order)))
	fmt.Fprintf(table, "deadline\t%s\n", explainDeadline(p, o))
	fmt.Fprintf(table, "reservation\t%s\n", explainReservation(p, o))
	_ = table.Flush()
}

func explainStep(how *policy.Step) string {
	if !how.Executor.Remote() {
		return "ledger, in the database"
	}
	text := fmt.Sprintf("%s at %s; a call takes up to %s; a person is asked after %d retries and %s",
		how.Executor, cmp.Or(how.URL, "its own address"), how.Timeout, how.Retry.MaxRetries, how.Retry.Budget)
	if how.Capture != "" {
		text += "; captured " + how.Capture
	}
	return text
}

func explainApproval(rule *policy.Approval, i int) string {
	if rule == nil {
		return "none needed"
	}
	text := fmt.Sprintf("rule %d fits: waits for a person before the charge", i+1)
	if rule.ByAnother {
		text += ", not the one who submitted it"
	}
	if rule.Timeout > 0 {
		text += fmt.Sprintf("; after %s: %s", rule.Timeout, rule.OnTimeout)
	}
	return text
}

func explainConcurrency(p *policy.Policy, key string) string {
	if key == "" {
		return "no limit"
	}
	return fmt.Sprintf("at most %d under way with %q", p.Concurrency.Limit, key)
}

func explainDeadline(p *policy.Policy, o *triedOrder) string {
	switch {
	case o.CompleteBy != nil:
		return o.CompleteBy.Format(time.RFC3339)
	case p.CompleteWithin > 0:
		return fmt.Sprintf("%s after it came", p.CompleteWithin)
	default:
		return "none"
	}
}

func explainReservation(p *policy.Policy, o *triedOrder) string {
	ttl := cmp.Or(time.Duration(o.ReservationTTL)*time.Second, p.ReservationTTL)
	if ttl == 0 {
		return "waits for its confirmation for ever"
	}
	return fmt.Sprintf("waits for its confirmation for %s", ttl)
}

// loadPolicy reads the policy file of a service: nil where none is named.
func loadPolicy(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	source, err := readPolicy(path, os.Stdin)
	if err != nil {
		return nil, err
	}
	if _, err := policy.Parse(source); err != nil {
		return nil, fmt.Errorf("policy %s:\n%w", path, err)
	}
	return source, nil
}

// newPolicy is the policy file of a service, and what it may name.
type newPolicy struct {
	source []byte // nil: there is none
	bounds policy.Bounds
}

// usePolicy stores the policy of a service and makes a new one the active version. What
// is not as whoever named the file may think is said.
func usePolicy(ctx context.Context, query *db.Queries, of newPolicy, log *slog.Logger) error {
	if of.source == nil {
		return nil
	}
	use := func(ctx context.Context, source []byte) (store.Used, error) {
		return store.Use(ctx, query, source, "serve")
	}
	used, err := orders.Read(ctx, orders.NewReader(ctx, query), use, of.source) // done again, it has the same result
	if err != nil {
		return databaseError(err)
	}
	if used.Activated {
		log.Info("the policy is active", "version", used.Version)
	}
	if used.Version != used.Active {
		log.Warn("the policy file was active before and is not the active version", "version", used.Version, "active", used.Active,
			"to_activate", fmt.Sprintf("pawl policy activate %d", used.Version))
	}
	p, err := policy.Parse(of.source)
	if err != nil {
		return err
	}
	for _, s := range fsm.Steps() {
		if err := of.bounds.Usable(p, s); err != nil {
			log.Warn("orders will be held at a step that can't be done", "step", s, "error", err)
		}
	}
	if err := store.CheckStock(ctx, query, p); errors.Is(err, store.ErrStockIgnored) {
		log.Warn("stock is tracked and does not count", "error", err)
	} else if err != nil {
		return databaseError(err)
	}
	return nil
}
