package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/user"
	"slices"
	"strconv"
	"time"

	"github.com/aymanbagabas/go-udiff"
	"github.com/spf13/cobra"

	"pawl/db"
	"pawl/fsm"
	"pawl/internal/cli/output"
	"pawl/internal/pg"
	"pawl/internal/policy"
	"pawl/internal/policy/store"
)

func policyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "List, compare, check and activate policies: how orders are done",
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
	activate := policyQuery("activate N", "Make version N the one that new orders start with", cobra.ExactArgs(1),
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
	activate.Flags().StringVar(&actor, "actor", userName(), "who does it, for the history")
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
