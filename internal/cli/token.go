package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pawl/db"
	"pawl/httpapi"
	"pawl/internal/access"
	"pawl/internal/cli/output"
	"pawl/internal/pg"
)

func tokenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Create, list, rotate, revoke and test API tokens",
		Long: "A service without a token is open: to this machine for everything, to others for processing and reading orders.\n" +
			"The first token closes it for good. These commands go straight to the database. See docs/security.md.",
		Example: "  pawl token create shop-web --roles submit\n" +
			"  pawl token create maria --roles read,operate,approve\n" +
			"  pawl token rotate shop-web --grace 24h\n" +
			"  pawl token revoke shop-web",
		RunE: func(*cobra.Command, []string) error {
			return usageError{errors.New("token: create, list, rotate, revoke, test or link")}
		},
	}
	cmd.AddCommand(tokenCreateCommand(), tokenListCommand(), tokenRotateCommand(), tokenRevokeCommand(), tokenTestCommand(), tokenLinkCommand())
	return cmd
}

// lifetimeMost is how long a token can be good for.
const lifetimeMost = 10 * 365 * 24 * time.Hour

// tokenFlags are those of commands that make a token.
func tokenFlags(f *pflag.FlagSet, t *access.Template) {
	f.DurationVar(&t.Lifetime, "expires", 90*24*time.Hour, "lifetime of the token")
	actorFlag(f, &t.Actor)
}

func actorFlag(f *pflag.FlagSet, actor *string) {
	f.StringVar(actor, "actor", userName(), "name to record in the access log")
}

func tokenCreateCommand() *cobra.Command {
	var t access.Template
	var roles []string
	cmd := tokenCommandOn("create NAME --roles ROLES", "Create a token and print it once", cobra.ExactArgs(1),
		func(cmd *cobra.Command, args []string, query *db.Queries) (err error) {
			t.Name = args[0]
			if t.Roles, err = access.ParseRoles(roles); err != nil {
				return usageError{fmt.Errorf("roles: %w", err)}
			}
			if err := checkTemplate(&t); err != nil {
				return err
			}
			issued, err := access.Create(cmd.Context(), query, t)
			if errors.Is(err, access.ErrExists) {
				return fmt.Errorf("%w: rotate it, or revoke it first", err)
			}
			return printIssued(cmd, issued, err)
		})
	f := cmd.Flags()
	f.StringSliceVar(&roles, "roles", nil, "what it may do: "+access.AllRoles.String())
	f.Int32Var(&t.Limits.Rate, "rate", 0, "maximum requests per second; 0: no limit")
	f.Int32Var(&t.Limits.InFlight, "in-flight", 0, "maximum concurrent requests; 0: no limit")
	f.Int64Var(&t.Limits.Bytes, "bytes", 0, "maximum body bytes per second, requests and responses together; 0: no limit")
	tokenFlags(f, &t)
	return cmd
}

func checkTemplate(t *access.Template) error {
	switch {
	case !access.ValidName(t.Name):
		return usageError{fmt.Errorf("name %q: want small letters, digits, dots, hyphens and underscores, 63 at most", t.Name)}
	case t.Actor == "":
		return usageError{errors.New("actor: want a name")}
	case t.Lifetime <= 0 || t.Lifetime > lifetimeMost:
		return usageError{errors.New("expires: want a duration up to 87600h")}
	case t.Limits.Rate < 0 || t.Limits.InFlight < 0 || t.Limits.Bytes < 0:
		return usageError{errors.New("limits: want numbers of at least 0")}
	}
	return nil
}

func printIssued(cmd *cobra.Command, issued access.Issued, err error) error {
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "id %s, expires %s; this is the only time that the token is shown\n", issued.ID, issued.ExpiresAt.UTC().Format(time.RFC3339))
	_, err = fmt.Fprintln(cmd.OutOrStdout(), issued.Token)
	return err
}

func tokenRotateCommand() *cobra.Command {
	var t access.Template
	var grace time.Duration
	cmd := tokenCommandOn("rotate NAME", "Replace a token by a new one with the same name, roles and limits", cobra.ExactArgs(1),
		func(cmd *cobra.Command, args []string, query *db.Queries) error {
			if t.Name = args[0]; grace < 0 {
				return usageError{errors.New("grace: want a duration of at least 0s")}
			}
			if err := checkTemplate(&t); err != nil {
				return err
			}
			issued, err := access.Rotate(cmd.Context(), query, t, grace)
			return printIssued(cmd, issued, err)
		})
	cmd.Flags().DurationVar(&grace, "grace", 24*time.Hour, "how long the old token remains valid")
	tokenFlags(cmd.Flags(), &t)
	return cmd
}

func tokenRevokeCommand() *cobra.Command {
	var actor string
	cmd := tokenCommandOn("revoke NAME|ID", "Revoke all tokens with a name, or the one with an ID", cobra.ExactArgs(1),
		func(cmd *cobra.Command, args []string, query *db.Queries) error {
			if actor == "" {
				return usageError{errors.New("actor: want a name")}
			}
			ids, err := access.Revoke(cmd.Context(), query, args[0], actor)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "revoked %s; running services see it within seconds\n", strings.Join(ids, ", "))
			return err
		})
	actorFlag(cmd.Flags(), &actor)
	return cmd
}

// listedToken is a token as programs read of it.
type listedToken struct {
	Name      string    `json:"name"`
	ID        string    `json:"id"`
	State     string    `json:"state"`
	Roles     []string  `json:"roles"`
	CreatedAt time.Time `json:"createdAt"`
	CreatedBy string    `json:"createdBy"`
	ExpiresAt time.Time `json:"expiresAt"`
	UsedAt    time.Time `json:"usedAt,omitzero"` // zero: never
}

func tokenListCommand() *cobra.Command {
	var format output.Format
	cmd := tokenCommandOn("list", "List all tokens, without their secrets", cobra.NoArgs,
		func(cmd *cobra.Command, _ []string, query *db.Queries) error {
			rows, err := query.TokensList(cmd.Context())
			if err != nil {
				return fmt.Errorf("list tokens: %w", err)
			}
			list := make([]listedToken, len(rows))
			for i, t := range rows {
				list[i] = listedToken{t.Name, t.ID, t.State, t.Roles, t.CreatedAt.UTC(), t.CreatedBy, t.ExpiresAt.UTC(), time.Time{}}
				if t.UsedAt != nil {
					list[i].UsedAt = t.UsedAt.UTC()
				}
			}
			columns := output.Columns[listedToken]{Titles: []any{"name", "id", "state", "roles", "created", "by", "expires", "last used"}, Of: tokenRow}
			return columns.Print(cmd.OutOrStdout(), format, output.All(list))
		})
	format.AddTo(cmd.Flags())
	return cmd
}

func tokenRow(t *listedToken) []any {
	used := "never"
	if !t.UsedAt.IsZero() {
		used = t.UsedAt.Format(time.RFC3339)
	}
	return []any{
		t.Name, t.ID, t.State, cmp.Or(strings.Join(t.Roles, ","), "none"),
		t.CreatedAt.Format(time.RFC3339), fmt.Sprintf("%.40q", t.CreatedBy), t.ExpiresAt.Format(time.RFC3339), used,
	}
}

// tokenCommandOn is a command that works on the tokens of the database.
func tokenCommandOn(use, short string, args cobra.PositionalArgs,
	run func(cmd *cobra.Command, args []string, query *db.Queries) error,
) *cobra.Command {
	var cfg config
	cmd := &cobra.Command{
		Use: use, Short: short, Args: args,
		RunE: func(cmd *cobra.Command, args []string) error {
			return withDatabase(cmd, &cfg, func(pool *pg.Pool, _ string) error { return run(cmd, args, db.New(pool)) })
		},
	}
	cfg.addTo(cmd)
	return cmd
}

// tokenMost is more than a token is long.
const tokenMost = 1 << 10

// readToken takes a token from the environment or standard input: arguments can be seen by everybody on the machine.
func readToken(in io.Reader, environment func(string) string) (string, error) {
	token := environment("PAWL_TOKEN")
	if token == "" {
		text, err := io.ReadAll(io.LimitReader(in, tokenMost))
		if err != nil {
			return "", fmt.Errorf("read token: %w", err)
		}
		token = string(text)
	}
	if token = strings.TrimSpace(token); token == "" {
		return "", usageError{errors.New("token: give it in PAWL_TOKEN or on standard input")}
	}
	return token, nil
}

func tokenTestCommand() *cobra.Command {
	cmd := tokenCommandOn("test", "Show what a token may do; exit 1 if it is not valid", cobra.NoArgs,
		func(cmd *cobra.Command, _ []string, query *db.Queries) error {
			token, err := readToken(cmd.InOrStdin(), os.Getenv)
			if err != nil {
				return err
			}
			p, expires, err := access.Test(cmd.Context(), query, token)
			if p != nil {
				explainToken(cmd.OutOrStdout(), p, expires)
			}
			return err
		})
	cmd.Long = "Reads a token from PAWL_TOKEN or standard input, and says whose it is, when it expires, its limits, and each operation\n" +
		"of the API that it may do. It exits with 1 if the token is not known, has expired or was revoked."
	cmd.Example = "  pawl token test < token.txt"
	return cmd
}

// explainToken prints what a token may do, or might if it were good.
func explainToken(out io.Writer, p *access.Principal, expires time.Time) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "name\t%s\nroles\t%s\nexpires\t%s\n", p.Name, p.Roles, expires.UTC().Format(time.RFC3339))
	limit := func(name, unit string, most int64) {
		if most > 0 {
			fmt.Fprintf(table, "%s\tat most %d %s\n", name, most, unit)
			return
		}
		fmt.Fprintf(table, "%s\tno limit\n", name)
	}
	limit("rate", "requests in a second", int64(p.Limits.Rate))
	limit("in flight", "requests at one time", int64(p.Limits.InFlight))
	limit("bytes", "bytes of bodies in a second", p.Limits.Bytes)
	for _, operation := range httpapi.AllowedTo(p) {
		fmt.Fprintf(table, "may\t%s\n", operation)
	}
	_ = table.Flush()
}

func tokenLinkCommand() *cobra.Command {
	var actor, service string
	cmd := tokenCommandOn("link NAME", "Print a one-time link that signs a browser in with a token's rights", cobra.ExactArgs(1),
		func(cmd *cobra.Command, args []string, query *db.Queries) error {
			if actor == "" {
				return usageError{errors.New("actor: want a name")}
			}
			if !isWebAddress(service) {
				return usageError{errors.New("url: want an absolute http or https URL without query or fragment")}
			}
			if !fromBrowser(service) {
				return usageError{errors.New("url: want https: a browser takes a session over http from localhost only")}
			}
			link, expires, err := access.MakeLink(cmd.Context(), query, args[0], actor)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "opens one session, until %s\n", expires.UTC().Format(time.RFC3339))
			_, err = fmt.Fprintln(cmd.OutOrStdout(), strings.TrimSuffix(service, "/")+"/login/"+link)
			return err
		})
	cmd.Long = "Whoever opens the link within ten minutes can use the service in the browser for twelve hours, with the rights of the token.\n" +
		"The session ends before that if the token does."
	cmd.Flags().StringVar(&service, "url", "http://localhost:3000", "where the browser reaches the service: over https, or on this machine")
	actorFlag(cmd.Flags(), &actor)
	return cmd
}

// fromBrowser says whether a browser takes the cookie of a session from there: it is marked as Secure.
func fromBrowser(service string) bool {
	u, err := url.Parse(service)
	return err == nil && (u.Scheme == "https" || isLoopback(u.Hostname()))
}
