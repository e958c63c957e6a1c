package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"pawl/internal/cli/output"
	"pawl/internal/doctor"
	"pawl/internal/pgembed"
	"pawl/migrations"
)

func doctorCommand() *cobra.Command {
	var cfg config
	var format output.Format
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this environment for problems and suggest fixes",
		Long: "Looks at the settings, PostgreSQL, what may lose orders, connections, the clock, roles, the schema and the\n" +
			"disk, as `pawl serve` would find them, and changes nothing. It takes all flags of `pawl serve`, its\n" +
			"environment and its file of settings. Ends with 1 if something is wrong.",
		Example: "  pawl doctor\n" +
			"  pawl doctor --database-url \"$DATABASE_URL\"\n" +
			"  pawl doctor -o json | jq '.findings[] | select(.state != \"ok\")'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			report := examine(cmd, &cfg)
			if err := printFindings(cmd.OutOrStdout(), &report, format); err != nil {
				return err
			}
			if n := report.Wrong(); n > 0 {
				return fmt.Errorf("wrong: %d of %d findings", n, len(report.Findings))
			}
			return nil
		},
	}
	f := cmd.Flags()
	cfg.databaseFlags(f)
	cfg.serveFlags(f)
	for name := range everyFlag {
		if !slices.Contains([]string{"database-url", "data-dir", "pg-bin", "pg-user", "config", "max-conns", "allow-data-loss", "installation"}, name) {
			_ = f.MarkHidden(name)
		}
	}
	format.AddTo(f)
	return cmd
}

// examine looks at everything that can be looked at.
func examine(cmd *cobra.Command, cfg *config) (report doctor.Report) {
	ctx := cmd.Context()
	report.Add(settingsFindings(cmd, cfg)...)
	report.Add(filesFinding(cfg))
	dir, err := dataDir(cfg)
	if cfg.DatabaseURL == "" && err == nil {
		report.Add(doctor.Programs(ctx, pgembed.Config{Dir: dir, BinDir: cfg.PostgresBin, User: cfg.PostgresUser})...)
		report.Add(doctor.Disk(dir))
	}
	report.Add(databaseFindings(ctx, cmd, cfg)...)
	return report
}

func databaseFindings(ctx context.Context, cmd *cobra.Command, cfg *config) []doctor.Finding {
	database, err := openDatabase(cmd, cfg)
	switch {
	case errors.Is(err, pgembed.ErrNoData):
		return []doctor.Finding{{Subject: "database", State: doctor.Warning, Found: "there is none yet, and no --database-url", Advice: "pawl serve makes one"}}
	case err != nil:
		return []doctor.Finding{{Subject: "database", State: doctor.Wrong, Found: err.Error()}}
	}
	defer database.close()
	return doctor.Database(ctx, database.url, doctor.Service{
		MaxConns: cfg.MaxConns, AllowDataLoss: cfg.AllowDataLoss, OwnServer: cfg.DatabaseURL == "", Version: migrations.Version(), Installation: cfg.Installation,
	})
}

// settingsFindings are what serve would refuse, and variables that nobody reads.
func settingsFindings(cmd *cobra.Command, cfg *config) (findings []doctor.Finding) {
	silent := slog.New(slog.DiscardHandler)
	errs := []error{cfg.load(cmd), cfg.OIDC.check()}
	if _, err := loadPolicy(cfg.Policy); err != nil {
		errs = append(errs, err)
	}
	if cfg.TLSCert != "" {
		_, err := tlsConfig(cfg.TLSCert, cfg.TLSKey, silent)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		findings = append(findings, doctor.Finding{Subject: "settings", State: doctor.Wrong, Found: err.Error(), Advice: "see pawl serve --help"})
	}
	for _, name := range strangeVariables(os.Environ(), cfg.Bounds.SecretEnvPrefix) {
		findings = append(findings, doctor.Finding{Subject: "settings", State: doctor.Warning, Found: "unknown environment variable " + name, Advice: "correct or remove it"})
	}
	if len(findings) == 0 {
		findings = append(findings, doctor.Finding{Subject: "settings", State: doctor.Good, Found: "pawl " + version() + " can use them"})
	}
	return findings
}

// strangeVariables are those that look like settings of ours and are none. Kubernetes sets some for a service of the
// name pawl.
func strangeVariables(environment []string, secrets string) (names []string) {
	known := []string{"PAWL_CONFIG", "PAWL_TOKEN", "PAWL_URL"}
	for flag := range everyFlag {
		known = append(known, variables(flag)[0])
	}
	for _, variable := range environment {
		name, _, _ := strings.Cut(variable, "=")
		ours := strings.HasPrefix(name, "PAWL_") && !slices.Contains(known, name)
		for _, other := range []string{cmp.Or(secrets, "PAWL_SECRET_"), "PAWL_SERVICE_", "PAWL_PORT_", "PAWL_TEST_", "PAWL_FAULT_"} {
			ours = ours && !strings.HasPrefix(name, other)
		}
		if ours {
			names = append(names, name)
		}
	}
	return names
}

func filesFinding(cfg *config) doctor.Finding {
	possible := connections(cfg, slog.New(slog.DiscardHandler))
	if possible < cfg.MaxConnections {
		return doctor.Finding{Subject: "files", State: doctor.Warning, Advice: "raise the limit (ulimit -n), or lower --max-connections",
			Found: fmt.Sprintf("the process may open so few that %d callers can be connected instead of %d", possible, cfg.MaxConnections)}
	}
	return doctor.Finding{Subject: "files", State: doctor.Good, Found: fmt.Sprintf("enough for %d connections of callers", possible)}
}

func printFindings(out io.Writer, report *doctor.Report, format output.Format) error {
	if format == output.JSON {
		return output.Indented(out, report)
	}
	words := map[doctor.State]string{doctor.Good: "ok", doctor.Warning: "warn", doctor.Wrong: "WRONG"}
	for _, f := range report.Findings {
		fmt.Fprintf(out, "%-6s %-12s %s\n", words[f.State], f.Subject, output.Clean(f.Found))
		if f.Advice != "" {
			fmt.Fprintf(out, "%20s%s\n", "-> ", f.Advice)
		}
	}
	return nil
}
