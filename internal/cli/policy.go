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
	"slices"
	"strconv"
	"strings"
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
		Long: "A policy says how each step of an order is done and retried, and which orders need approval.\n" +
			"Every policy that was served is kept as a version. See docs/policy.md.",
		Example: "  pawl policy check shop.yaml   # find mistakes\n" +
			"  pawl policy list              # which version is active?\n" +
			"  pawl policy activate 2        # go back to version 2",
	}
	cmd.AddCommand(policyListCommand(), policyActivateCommand(), policyCheckCommand(),
		policyQuery("show N", "Print version N", cobra.ExactArgs(1), showPolicy),
		policyQuery("diff N M", "Print what changed from version N to version M", cobra.ExactArgs(2), diffPolicies),
		printCommand("schema", "Print the JSON schema of policies, for editors", policy.Schema))
	return cmd
}

func policyActivateCommand() *cobra.Command {
	var cfg config
	var actor string
	cmd := &cobra.Command{
		Use: "activate N", Short: "Activate version N for new orders",
		Long: "Activates version N for new orders. With --all, N must be the same policy in all cells, which number their versions\n" +
			"separately; otherwise nothing is activated.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			versions, err := parseVersions(args)
			if err != nil {
				return usageError{err}
			}
			if err := samePolicy(cmd, &cfg, versions[0]); err != nil {
				return err
			}
			return cfg.eachCell(cmd, output.Table, func(one *config) error {
				return withDatabase(cmd, one, func(pool *pg.Pool, _ string) error {
					return activatePolicy(cmd.Context(), db.New(pool), store.Activation{Version: versions[0], Actor: actor}, cmd.OutOrStdout())
				})
			})
		},
	}
	cfg.addTo(cmd)
	actorFlag(cmd.Flags(), &actor)
	return allFlag(cmd)
}

// samePolicy returns an error if a version is not the same policy in all cells of --all.
func samePolicy(cmd *cobra.Command, cfg *config, version int32) error {
	each, names := cfg.cells(cmd)
	if len(each) == 0 { // of one database, or of none, which is an error of eachCell
		return nil
	}
	err := output.Together(names)
	first := ""
	for i := range each {
		var source string
		read := withDatabase(cmd, &each[i], func(pool *pg.Pool, _ string) (err error) {
			source, err = store.Source(cmd.Context(), db.New(pool), version)
			return err
		})
		switch {
		case read != nil:
			err = errors.Join(err, fmt.Errorf("%s: %w", names[i], read))
		case i == 0:
			first = source
		case source != first:
			err = errors.Join(err, fmt.Errorf("%s: version %d is not the policy that it is in %s", names[i], version, names[0]))
		}
	}
	if err != nil {
		return fmt.Errorf("nothing was activated: %w", err)
	}
	return nil
}

func activatePolicy(ctx context.Context, query *db.Queries, a store.Activation, out io.Writer) error {
	if err := store.Activate(ctx, query, a); err != nil {
		return err
	}
	fmt.Fprintf(out, "policy %d is active; running services see it within seconds\n", a.Version)
	return warnOfStock(ctx, query, a.Version, out)
}

// warnOfStock prints a warning if a version ignores the stock that is tracked here.
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

func policyQuery(use, short string, args cobra.PositionalArgs,
	run func(ctx context.Context, query *db.Queries, versions []int32, out io.Writer) error,
) *cobra.Command {
	var versions []int32
	parse := func(_ *cobra.Command, args []string) (err error) {
		versions, err = parseVersions(args)
		return err
	}
	return onDatabase(use, short, cobra.MatchAll(args, parse), func(cmd *cobra.Command, _ []string, query *db.Queries) error {
		return run(cmd.Context(), query, versions, cmd.OutOrStdout())
	})
}

func parseVersions(args []string) (versions []int32, err error) {
	for _, arg := range args {
		n, err := strconv.ParseInt(arg, 10, 32)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("version must be a positive number, not %q", arg)
		}
		versions = append(versions, int32(n))
	}
	return versions, nil
}

type listedPolicy struct {
	Version     int32             `json:"version"`
	Active      bool              `json:"active"`
	CreatedAt   time.Time         `json:"createdAt"`
	ActivatedAt time.Time         `json:"activatedAt,omitzero"` // zero: never
	ActivatedBy string            `json:"activatedBy,omitempty"`
	Executors   map[string]string `json:"executors"` // by step; null: not supported by this release
}

func policyListCommand() *cobra.Command {
	var format output.Format
	cmd := policyQuery("list", "List the versions; the active one has a star", cobra.NoArgs,
		func(ctx context.Context, query *db.Queries, _ []int32, out io.Writer) error {
			list, err := listPolicies(ctx, query)
			if err != nil {
				return err
			}
			titles := []any{"version", "stored", "last activated", "by", "charge", "reserve", "confirm"}
			return output.Columns[listedPolicy]{Titles: titles, Of: policyRow}.Print(out, format, output.All(list))
		})
	format.AddTo(cmd.Flags())
	return allFlag(cmd)
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
		p := listedPolicy{
			Version: row.Version, Active: row.Version == active, CreatedAt: row.CreatedAt.UTC(), Executors: steps[row.Version],
		}
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

// executors returns the executor of each step, and of a charge with routes each with its executor; nil: this release
// can't run the policy.
func executors(p *policy.Policy) map[string]string {
	if p == nil {
		return nil
	}
	all := map[string]string{}
	for _, s := range fsm.Steps() {
		all[string(s)] = string(p.Step(s, "").Executor)
	}
	if len(p.Routes) > 0 {
		var routes []string
		for i := range p.Routes {
			name := p.Routes[i].Name
			routes = append(routes, name+": "+string(p.Step(fsm.Charge, name).Executor))
		}
		all[string(fsm.Charge)] = strings.Join(routes, ", ")
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
	var names, sources [2]string
	for i, version := range versions {
		var err error
		if sources[i], err = store.Source(ctx, query, version); err != nil {
			return err
		}
		names[i] = fmt.Sprintf("policy %d", version)
	}
	_, err := io.WriteString(out, udiff.Unified(names[0], names[1], sources[0], sources[1]))
	return err
}

func policyCheckCommand() *cobra.Command {
	var order string
	cfg := config{Listen: "127.0.0.1"} // the default of serve
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Check a policy for mistakes, and try it on an order",
		Long: "Reads a policy (- is standard input) and prints every mistake with its line and column. Exits with 1 if there\n" +
			"is one. It needs no database and calls no provider. Use the settings of the service, because they limit which\n" +
			"secrets and addresses a policy may name.",
		Example: `  pawl policy check shop.yaml --order '{"amount": 700, "item": "car", "customerId": "bob"}'`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := checkPolicy(args[0], cmd.InOrStdin(), cmd.OutOrStdout())
			if err != nil {
				return err
			}
			explainHere(cmd.OutOrStdout(), p, cfg.Bounds)
			if order == "" {
				return nil
			}
			o, err := parseOrder(order, cfg.Currency)
			if err != nil {
				return usageError{fmt.Errorf("order: %w", err)}
			}
			return explainOrder(cmd.OutOrStdout(), p, o)
		},
	}
	cfg.boundsFlags(cmd.Flags())
	cmd.PreRunE = cfg.loadFirst
	cmd.Flags().StringVar(&order, "order", "", "print what would happen to this order, `JSON` as in POST /api/orders/process")
	cmd.Flags().StringVar(&cfg.Currency, "currency", "USD", "currency of an order without one")
	return cmd
}

// checkPolicy prints the mistakes of a policy file, or a summary of it.
func checkPolicy(path string, in io.Reader, out io.Writer) (*policy.Policy, error) {
	source, err := readPolicy(path, in)
	if err != nil {
		return nil, err
	}
	p, err := policy.Parse(source)
	if problems, ok := errors.AsType[policy.Problems](err); ok {
		for _, problem := range problems {
			fmt.Fprintf(out, "%s:%d:%d: %s\n", path, problem.Line, problem.Column, problem.Message())
		}
		return nil, fmt.Errorf("mistakes in %s: %d", path, len(problems))
	}
	if err == nil {
		all := executors(p)
		fmt.Fprintf(out, "%s is valid: charge %s, reserve %s, confirm %s\n", path, all["charge"], all["reserve"], all["confirm"])
	}
	return p, err
}

// explainHere prints what these settings do not allow, and that a remote reserve step ignores tracked stock.
func explainHere(out io.Writer, p *policy.Policy, bounds policy.Bounds) {
	for _, place := range p.Places() {
		if err := bounds.Usable(p, place); err != nil {
			fmt.Fprintf(out, "not usable with these settings: %v\n", err)
		}
	}
	if p.Reserve.Executor.Remote() {
		fmt.Fprintf(out, "reserve is done by %s: orders do not use stock that is tracked here (PUT /api/inventory/…)\n", p.Reserve.Executor)
	}
}

// maxPolicyFile limits how much of a file is read, which may be the wrong one. Parse rejects long policies.
const maxPolicyFile = 1 << 20

// readPolicy reads a policy file, or in for -.
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

// triedOrder is an order as in a request: what the policy looks at, its time limits, and the other fields, so that a
// whole request can be pasted.
type triedOrder struct {
	policy.Order
	Amount         *decimal.Decimal // a pointer, to detect a missing one
	Item           string
	Lines          []orders.Line
	CompleteBy     *time.Time
	ReservationTTL int64 // seconds; 0: by the policy

	OrderID, Quantity, StartAt json.RawMessage
	PaymentMethod              string
	Metadata                   json.RawMessage
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
		return nil, errors.New("must be one JSON object")
	case o.Amount == nil || o.Amount.IsNeg():
		return nil, errors.New("amount must be a number of at least 0")
	case (o.Item == "") == (o.Lines == nil):
		return nil, errors.New("either item or lines must be given")
	case !iso4217.Known(o.Currency):
		return nil, errors.New("currency must be an ISO 4217 code")
	case o.ReservationTTL < 0:
		return nil, errors.New("reservationTtl must be a number of seconds")
	}
	o.Order.PaymentMethod, o.Order.Metadata = o.PaymentMethod, o.Metadata
	o.Order.Amount, o.Order.Items = *o.Amount, []string{o.Item}
	if o.Lines != nil {
		o.Order.Items = orders.ItemsOf("", []byte(orders.FormatLines(o.Lines)))
	}
	return &o, nil
}

func explainOrder(out io.Writer, p *policy.Policy, o *triedOrder) error {
	rows, route := output.NewRows(out), p.RouteOf(o.Order)
	for _, s := range fsm.Steps() {
		rows.Add(p.Place(s, route), explainStep(p.Step(s, route)))
	}
	if codes := p.FallbackOf(route); codes != nil {
		rows.Add("fallback", fmt.Sprintf("the next route, after a refusal with %s", strings.Join(codes, " or ")))
	}
	rows.Add("approval", explainApproval(p.ApprovalOf(o.Order)))
	concurrency, deadline, reservation := "no limit", "none", "no limit for the confirmation"
	if key := p.Key(o.Order); key != "" {
		concurrency = fmt.Sprintf("at most %d orders at a time with %q", p.Concurrency.Limit, key)
	}
	switch {
	case o.CompleteBy != nil:
		deadline = o.CompleteBy.Format(time.RFC3339)
	case p.CompleteWithin > 0:
		deadline = fmt.Sprintf("%s after it is submitted", p.CompleteWithin)
	}
	if ttl := cmp.Or(time.Duration(o.ReservationTTL)*time.Second, p.ReservationTTL); ttl > 0 {
		reservation = fmt.Sprintf("must be confirmed within %s", ttl)
	}
	rows.Add("concurrency", concurrency)
	rows.Add("deadline", deadline)
	rows.Add("reservation", reservation)
	return rows.Flush()
}

func explainStep(how *policy.Step) string {
	if !how.Executor.Remote() {
		return "ledger, in the database"
	}
	text := fmt.Sprintf("%s at %s; timeout %s; held for attention after %d retries and %s",
		how.Executor, cmp.Or(how.URL, "its own address"), how.Timeout, how.Retry.MaxRetries, how.Retry.Budget)
	if how.Capture != "" {
		text += "; captured " + how.Capture
	}
	return text
}

func explainApproval(rule *policy.Approval, i int) string {
	if rule == nil {
		return "not needed"
	}
	text := fmt.Sprintf("needed by rule %d, before the charge", i+1)
	if rule.ByAnother {
		text += ", by another person than the submitter"
	}
	if rule.Timeout > 0 {
		text += fmt.Sprintf("; after %s: %s", rule.Timeout, rule.OnTimeout)
	}
	return text
}

// loadPolicy reads the policy file of a service; nil if path is empty.
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

// newPolicy is the policy file of a service, and what it may use.
type newPolicy struct {
	source []byte // nil: no file
	bounds policy.Bounds
}

// usePolicy stores the policy of a service, and activates it if it is new. It logs what the operator may not expect.
func usePolicy(ctx context.Context, query *db.Queries, of newPolicy, log *slog.Logger) error {
	if of.source == nil {
		return nil
	}
	use := func(ctx context.Context, source []byte) (store.Used, error) {
		return store.Use(ctx, query, source, "serve")
	}
	used, err := orders.Read(ctx, orders.NewReader(ctx, query), use, of.source) // safe to repeat
	if err != nil {
		return databaseError(err)
	}
	if used.Activated {
		log.Info("the policy is active", "version", used.Version)
	}
	if used.Version != used.Active {
		log.Warn("the policy file is an earlier version, and another one is active", "version", used.Version, "active", used.Active,
			"to_activate", fmt.Sprintf("pawl policy activate %d", used.Version))
	}
	p, err := policy.Parse(of.source)
	if err != nil {
		return err
	}
	for _, place := range p.Places() {
		if err := of.bounds.Usable(p, place); err != nil {
			log.Warn("orders will be held at a step that is not usable", "step", place.Step, "error", err)
		}
	}
	if err := store.CheckStock(ctx, query, p); errors.Is(err, store.ErrStockIgnored) {
		log.Warn("tracked stock is ignored", "error", err)
	} else if err != nil {
		return databaseError(err)
	}
	return nil
}
