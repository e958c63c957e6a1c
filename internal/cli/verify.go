package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"
	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"pawl/db"
	"pawl/fsm"
	"pawl/internal/books"
	"pawl/internal/cli/output"
	"pawl/internal/pg"
	"pawl/internal/policy"
	"pawl/internal/policy/store"
	"pawl/internal/provider"
	"pawl/internal/provider/stripe"
)

func verifyCommand() *cobra.Command {
	var cfg config
	var how proving
	var format output.Format
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Verify the books by reading the whole database",
		Long: "Reads the whole database, also while it is in use, and checks that every completed order was charged, reserved and\n" +
			"confirmed once, that nothing is left of the others, and that money and stock add up. Exits with 1 if something is\n" +
			"wrong, and with 69 if the books could not be read.\n\n" +
			"With --provider it also compares the books with those of providers, for the steps that the URLs name, or all steps.",
		Example: "  pawl verify --provider https://payments.example.com --store\n" +
			"  pawl verify --provider charge=https://payments.example.com --provider reserve=https://warehouse.example.com\n" +
			"  pawl verify --all --database-url \"postgres://cell0/pawl postgres://cell1/pawl\"",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cfg.eachCell(cmd, format, func(one *config) error {
				report, err := proveBooks(cmd, one, how)
				if err != nil && report.OK() { // without a verdict, nothing is printed; what was read is stored
					return err
				}
				wrong := printReport(cmd.OutOrStdout(), report, format)
				if err != nil { // not wrapped, because our books are wrong in any case
					return fmt.Errorf("%w; %s", wrong, err.Error())
				}
				return wrong
			})
		},
	}
	cfg.addTo(cmd)
	format.AddTo(cmd.Flags())
	cmd.Flags().StringArrayVar(&how.providers, "provider", nil, "compare with the books of a provider at `[STEP[/ROUTE]=]URL` (GET URL/books); can be repeated")
	cmd.Flags().BoolVar(&how.store, "store", false, "store the report, for the console and GET /api/verifications")
	cmd.Flags().Int32Var(&how.MaxOffenders, "offenders", 20, "how many offenders to print for each check")
	cmd.Flags().DurationVar(&how.StuckAfter, "stuck-after", 5*time.Minute, "warn about orders that no replica has picked up for this long")
	return allFlag(cmd)
}

// errNoVerdict means that the books could not be read completely. It has its own exit code, because the books may be
// right. So has books.ErrProvider.
var errNoVerdict = errors.New("no verdict on the books")

// proving is how to verify the books.
type proving struct {
	books.Options
	providers []string
	store     bool
}

// proveBooks verifies the configured database. Its errors wrap errNoVerdict or books.ErrProvider.
func proveBooks(cmd *cobra.Command, cfg *config, how proving) (report books.Report, err error) {
	err = withDatabase(cmd, cfg, func(pool *pg.Pool, place string) error {
		if how.Provider, err = providerAt(cmd.Context(), db.New(pool), how.providers); err != nil {
			return err
		}
		bar := output.Progress(-1, "books", cmd.ErrOrStderr())
		defer bar.Exit()
		how.Progress = moving(bar)
		if how.store {
			report, err = books.VerifyAndStore(cmd.Context(), pool, "shell:"+operatingUser(), how.Options)
		} else {
			report, err = books.Verify(cmd.Context(), pool, how.Options)
		}
		report.Database = place
		for i := range report.Checks {
			check := &report.Checks[i]
			check.Offenders = check.Offenders[:min(len(check.Offenders), int(how.MaxOffenders))]
		}
		return err
	})
	switch providerAway := errors.Is(err, books.ErrProvider); {
	case providerAway && report.OK():
		err = fmt.Errorf("not all was compared: Pawl's own books agree, but %w", err)
	case err != nil && !providerAway:
		err = fmt.Errorf("%w: %w", errNoVerdict, err)
	}
	return report, err
}

// moving moves a bar.
func moving(bar *progressbar.ProgressBar) func(done, total int64) {
	return func(done, total int64) {
		if total != bar.GetMax64() { // a change redraws the bar unchanged, and blocks the next drawing for 100 ms
			bar.ChangeMax64(total)
		}
		_ = bar.Set64(done)
	}
}

// printReport returns an error if the books are wrong, or could not be printed.
func printReport(out io.Writer, report books.Report, format output.Format) error {
	var text bytes.Buffer
	if format == output.JSON {
		_ = output.Indented(&text, report) // can't fail: it has only strings and numbers
	} else {
		printChecks(&text, report)
		printTotals(&text, report)
	}
	_, err := out.Write(text.Bytes())
	switch wrong := len(report.Wrong()); {
	case wrong > 0:
		return fmt.Errorf("the books are wrong: %d of %d checks failed", wrong, len(report.Checks))
	case err != nil:
		return fmt.Errorf("%w: print report: %w", errNoVerdict, err)
	}
	return nil
}

// printChecks prints a line for each check, and its offenders. Identifiers are quoted, because callers could put
// control sequences for terminals into them.
func printChecks(out io.Writer, report books.Report) {
	for _, check := range report.Checks {
		if check.Violations == 0 {
			fmt.Fprintf(out, "ok     %-18s %12d\n", check.Name, check.Checked)
			continue
		}
		verdict, found := "WRONG", "wrong"
		if check.Warning {
			verdict, found = "warn", "found"
		}
		fmt.Fprintf(out, "%-6s %-18s %12d  %d %s\n", verdict, check.Name, check.Checked, check.Violations, found)
		fmt.Fprintf(out, "       This should hold: %s\n", check.Proves)
		for _, offender := range check.Offenders {
			fmt.Fprintf(out, "       %q: %s\n", offender.ID, offender.Fault)
		}
		if more := check.Violations - int64(len(check.Offenders)); more > 0 {
			fmt.Fprintf(out, "       and %d more\n", more)
		}
	}
}

func printTotals(out io.Writer, report books.Report) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table)
	for _, status := range slices.Sorted(maps.Keys(report.Orders)) {
		fmt.Fprintf(table, "%s\t%d\t\n", status, report.Orders[status])
	}
	if len(report.Money) > 0 {
		fmt.Fprintf(table, "\t\t\t\t\t\n\tcharges\tcharged\trefunded\tvoided\tauthorized\tkept\tunder way\tdisputed\tlost\t\n")
	}
	for _, m := range report.Money {
		fmt.Fprintf(table, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n",
			m.Currency, m.Charges, m.Charged, m.Refunded, m.Voided, m.Authorized, m.Kept, m.UnderWay, m.Disputed, m.Lost)
	}
	if len(report.Steps) > 0 {
		fmt.Fprintf(table, "\t\t\t\t\t\t\t\n\tcompared\tdone\twrong\tnot compared\tin Pawl's books\tat the provider\t\n")
	}
	for _, s := range report.Steps {
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%d\t%s\t%s\t\n", strings.TrimSpace(s.Step+" "+s.Provider), s.Compared, s.Done, s.Wrong, s.NotCompared, s.Here, s.Money)
	}
	_ = table.Flush()
	fmt.Fprintf(out, "\n%d checks in %.1f s of %s\n", len(report.Checks), report.Seconds, report.Database)
}

// providerAt returns the provider with books at some addresses, each for all steps, one of them (STEP=URL), or one
// route of the charge (charge/ROUTE=URL); nil without addresses.
func providerAt(ctx context.Context, query *db.Queries, addresses []string) (*books.Provider, error) {
	if len(addresses) == 0 {
		return nil, nil
	}
	at, err := parseProviders(addresses)
	if err != nil {
		return nil, configError{err}
	}
	installation, err := query.InstallationID(ctx)
	if err != nil {
		return nil, fmt.Errorf("read installation: %w", err)
	}
	_, stored, err := store.Read(ctx, query, nil)
	if err != nil {
		return nil, err
	}
	versions := map[int32]*policy.Policy{}
	for _, v := range stored {
		versions[v.Number] = v.Policy
	}
	return at.provider(installation, versions), nil
}

// bookPlaces are where the books of steps are: every key is looked up in all of them, so a step can have several.
type bookPlaces []bookPlace

type bookPlace struct {
	policy.Place
	url, host, name string // the name is without secrets
}

// has reports whether a step of an order is in the books. Those for all routes of a charge have the routes at their host,
// and every route if all of them are at one provider. (Where a route is, is not known of a policy that this release can't
// read. Without a route, its steps are compared: a false difference is better than a missed one.)
func (at bookPlace) has(p *policy.Policy, s books.Sent) bool {
	switch {
	case at.Step != s.Step || at.Route != "" && at.Route != s.Route:
		return false
	case at.Route == s.Route || p == nil:
		return at.Route == s.Route
	}
	host := p.Step(s.Step, s.Route).Host()
	return host == at.host || !slices.ContainsFunc(p.Places(), func(other policy.Place) bool {
		return other.Step == s.Step && p.Step(other.Step, other.Route).Host() != host
	})
}

// provider compares the steps of the places, under keys as their policies say; nil without places.
func (all bookPlaces) provider(installation uuid.UUID, versions map[int32]*policy.Policy) *books.Provider {
	if len(all) == 0 {
		return nil
	}
	found := &books.Provider{}
	for _, at := range all {
		found.Compared, found.URLs = append(found.Compared, at.name), append(found.URLs, at.url)
	}
	found.Key = func(s books.Sent) (key, at string) {
		p := versions[s.Policy]
		key, kept := keyAt(p, installation, s)
		i := slices.IndexFunc(all, func(at bookPlace) bool { return at.has(p, s) })
		if !kept || i < 0 {
			return key, ""
		}
		return key, all[i].name
	}
	found.Without = func(url string) *books.Provider {
		return slices.DeleteFunc(slices.Clone(all), func(left bookPlace) bool {
			return slices.ContainsFunc(all, func(lost bookPlace) bool { // what may be there can't be judged by the books of others
				return lost.url == url && lost.Step == left.Step && sameRoute(lost.Place, left.Place)
			})
		}).provider(installation, versions)
	}
	return found
}

// sameRoute reports whether charges of one place may be at the other. Without a route it has all.
func sameRoute(a, b policy.Place) bool { return a.Route == b.Route || a.Route == "" || b.Route == "" }

// simulatorsOf returns the books of the simulators that the active policy calls, as for --provider.
func simulatorsOf(ctx context.Context, query *db.Queries) (addresses []string, err error) {
	active, err := store.Active(ctx, query)
	if err != nil || active.Version == 0 {
		return nil, err
	}
	source, err := store.Source(ctx, query, active.Version)
	if err != nil {
		return nil, err
	}
	now, err := policy.Parse([]byte(source))
	if err != nil {
		return nil, nil //nolint:nilerr // it is of a newer release, which can be compared with from there
	}
	for _, place := range now.Places() {
		if step := now.Step(place.Step, place.Route); step.Executor == policy.Simulator {
			addresses = append(addresses, place.String()+"="+step.URL)
		}
	}
	return addresses, nil
}

// parseProviders parses --provider.
func parseProviders(addresses []string) (all bookPlaces, err error) {
	for _, address := range addresses {
		steps, route := fsm.Steps(), ""
		name, at, named := strings.Cut(address, "=")
		if step, routed, _ := strings.Cut(name, "/"); named && slices.Contains(steps, fsm.Step(step)) {
			steps, route, address = []fsm.Step{fsm.Step(step)}, routed, at
		}
		parsed, err := policy.ParseURL(address)
		if err != nil {
			return nil, fmt.Errorf("--provider must be a URL, or charge=URL, charge/ROUTE=URL, reserve=URL or confirm=URL: %w", err)
		}
		for _, step := range steps {
			place := policy.Place{Step: step, Route: route}
			all = append(all, bookPlace{place, address, parsed.Host, place.String() + "=" + (&url.URL{Scheme: parsed.Scheme, Host: parsed.Host, Path: parsed.Path}).String()})
		}
	}
	return all, nil
}

// keyAt is the key of a step in the books of its provider. Stripe has no such books, but a replacement at another URL
// does; it is not called for an amount of zero.
func keyAt(p *policy.Policy, installation uuid.UUID, s books.Sent) (key string, kept bool) {
	how := &policy.Step{}
	if p != nil {
		how = p.Step(s.Step, s.Route)
	}
	call := provider.Call{
		Installation: installation, OrderID: s.OrderID, Step: s.Step, Generation: s.Generation,
		OperationKind: provider.Operation(s.OperationKind), OperationID: s.OperationID,
	}
	switch {
	case how.Executor != policy.Stripe:
		return call.LookupKey(), true
	case how.URL == "" || s.Amount.IsZero():
		return "", false
	default:
		return stripe.EffectKey(&call), true
	}
}
