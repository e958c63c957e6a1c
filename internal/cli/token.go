package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/user"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pawl/db"
	"pawl/httpapi"
	"pawl/internal/access"
	"pawl/internal/cli/output"
)

func tokenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Create, list, rotate, revoke and test API tokens",
		Long: "A service without a token is open: to this machine for everything, to others for processing and reading orders.\n" +
			"The first token closes it. These commands work on the database. See docs/security.md.",
		Example: "  pawl token create shop-web --roles submit\n" +
			"  pawl token create maria --roles read,operate,approve\n" +
			"  pawl token rotate shop-web --grace 24h\n" +
			"  pawl token revoke shop-web",
	}
	cmd.AddCommand(tokenCreateCommand(), tokenListCommand(), tokenRotateCommand(), tokenRevokeCommand(),
		tokenTestCommand(), tokenLinkCommand())
	return cmd
}

const lifetimeMost = 10 * 365 * 24 * time.Hour

// tokenFlags adds the flags of commands that create a token.
func tokenFlags(f *pflag.FlagSet, t *access.Template) {
	f.DurationVar(&t.Lifetime, "expires", 90*24*time.Hour, "lifetime of the token")
	actorFlag(f, &t.Actor)
}

func actorFlag(f *pflag.FlagSet, actor *string) {
	*actor = operatingUser()
	f.Var((*nonEmpty)(actor), "actor", "name to record in the history")
}

// operatingUser is the name of the user of the operating system who runs the command.
func operatingUser() string {
	if current, err := user.Current(); err == nil && current.Username != "" {
		return current.Username
	}
	return "uid " + strconv.Itoa(os.Getuid())
}

type nonEmpty string

func (n *nonEmpty) String() string { return string(*n) }
func (n *nonEmpty) Type() string   { return "string" }
func (n *nonEmpty) Set(text string) error {
	if text == "" {
		return errors.New("must not be empty")
	}
	*n = nonEmpty(text)
	return nil
}

func tokenCreateCommand() *cobra.Command {
	var t access.Template
	var roles []string
	cmd := onDatabase("create NAME --roles ROLES", "Create a token and print it once", cobra.ExactArgs(1),
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
				return fmt.Errorf("%w: rotate or revoke it", err)
			}
			return printIssued(cmd, issued, err)
		})
	f := cmd.Flags()
	f.StringSliceVar(&roles, "roles", nil, "roles of the token: "+access.AllRoles.String())
	f.Int32Var(&t.Limits.Rate, "rate", 0, "maximum requests per second; 0: no limit")
	f.Int32Var(&t.Limits.InFlight, "in-flight", 0, "maximum concurrent requests; 0: no limit")
	f.Int64Var(&t.Limits.Bytes, "bytes", 0, "maximum body bytes per second, requests and responses together; 0: no limit")
	tokenFlags(f, &t)
	return cmd
}

func checkTemplate(t *access.Template) error {
	switch {
	case !access.ValidName(t.Name):
		return usageError{fmt.Errorf("NAME must be up to 63 lowercase letters, digits, dots, hyphens and underscores, not %q", t.Name)}
	case t.Lifetime <= 0 || t.Lifetime > lifetimeMost:
		return usageError{errors.New("--expires must be more than 0s and at most 87600h")}
	case t.Limits.Rate < 0 || t.Limits.InFlight < 0 || t.Limits.Bytes < 0:
		return usageError{errors.New("--rate, --in-flight and --bytes must not be negative")}
	}
	return nil
}

func printIssued(cmd *cobra.Command, issued access.Issued, err error) error {
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "id %s, expires %s; the token is not shown again\n",
		issued.ID, issued.ExpiresAt.UTC().Format(time.RFC3339))
	_, err = fmt.Fprintln(cmd.OutOrStdout(), issued.Token)
	return err
}

func tokenRotateCommand() *cobra.Command {
	var t access.Template
	var grace time.Duration
	cmd := onDatabase("rotate NAME", "Replace a token with a new one of the same name, roles and limits", cobra.ExactArgs(1),
		func(cmd *cobra.Command, args []string, query *db.Queries) error {
			if t.Name = args[0]; grace < 0 {
				return usageError{errors.New("--grace must not be negative")}
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
	cmd := onDatabase("revoke NAME|ID", "Revoke all tokens with a name, or the one with an ID", cobra.ExactArgs(1),
		func(cmd *cobra.Command, args []string, query *db.Queries) error {
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
	cmd := onDatabase("list", "List all tokens, without their secrets", cobra.NoArgs,
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
			titles := []any{"name", "id", "state", "roles", "created", "by", "expires", "last used"}
			return output.Columns[listedToken]{Titles: titles, Of: tokenRow}.Print(cmd.OutOrStdout(), format, output.All(list))
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

const tokenMost = 1 << 10

// readToken reads a token from the environment or standard input, because every user of the machine can see arguments.
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
		return "", usageError{errors.New("a token is required, in PAWL_TOKEN or on standard input")}
	}
	return token, nil
}

func tokenTestCommand() *cobra.Command {
	cmd := onDatabase("test", "Show what a token may do; exit 1 if it is not valid", cobra.NoArgs,
		func(cmd *cobra.Command, _ []string, query *db.Queries) error {
			token, err := readToken(cmd.InOrStdin(), os.Getenv)
			if err != nil {
				return err
			}
			p, expires, err := access.Test(cmd.Context(), query, token)
			if p != nil {
				err = errors.Join(explainToken(cmd.OutOrStdout(), p, expires), err)
			}
			return err
		})
	cmd.Long = "Reads a token from PAWL_TOKEN or standard input, and prints its name, expiry, limits and permitted operations.\n" +
		"Exits with 1 if the token is unknown, expired or revoked."
	cmd.Example = "  pawl token test < token.txt"
	return cmd
}

// explainToken prints what a token may do, or might if it were valid.
func explainToken(out io.Writer, p *access.Principal, expires time.Time) error {
	rows := output.NewRows(out)
	rows.Add("name", p.Name)
	rows.Add("roles", p.Roles)
	rows.Add("expires", expires.UTC().Format(time.RFC3339))
	for _, limit := range []struct {
		name, unit string
		most       int64
	}{
		{"rate", "requests per second", int64(p.Limits.Rate)},
		{"in flight", "requests at a time", int64(p.Limits.InFlight)},
		{"bytes", "body bytes per second", p.Limits.Bytes},
	} {
		if limit.most > 0 {
			rows.Add(limit.name, fmt.Sprintf("at most %d %s", limit.most, limit.unit))
		} else {
			rows.Add(limit.name, "no limit")
		}
	}
	for _, operation := range httpapi.AllowedTo(p) {
		rows.Add("may", operation)
	}
	return rows.Flush()
}

func tokenLinkCommand() *cobra.Command {
	var actor, service string
	cmd := onDatabase("link NAME", "Print a one-time link that signs a browser in", cobra.ExactArgs(1),
		func(cmd *cobra.Command, args []string, query *db.Queries) error {
			u, err := url.Parse(service)
			switch {
			case err != nil || !isWebAddress(service):
				return usageError{errors.New("--url must be an absolute http or https URL without query or fragment")}
			case u.Scheme != "https" && !isLoopback(u.Hostname()): // the cookie of a session is Secure
				return usageError{errors.New("--url must be https, unless it is on this machine")}
			}
			link, expires, err := access.MakeLink(cmd.Context(), query, args[0], actor)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "valid for one session, until %s\n", expires.UTC().Format(time.RFC3339))
			if !cmd.Flags().Changed("url") {
				fmt.Fprintf(cmd.ErrOrStderr(), "if the service is not at %s, replace that by its address, or use --url\n", service)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), strings.TrimSuffix(service, "/")+"/login/"+link)
			return err
		})
	cmd.Long = "The link is valid for ten minutes and opens one session of twelve hours in a browser, with the rights of the token.\n" +
		"The session ends earlier if the token does."
	cmd.Flags().StringVar(&service, "url", "http://localhost:3000", "URL of the service in the browser: https, or on this machine")
	actorFlag(cmd.Flags(), &actor)
	return cmd
}
