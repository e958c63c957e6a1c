package cli

import (
	"cmp"
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
	"pawl/internal/version"
	"pawl/migrations"
)

func doctorCommand() *cobra.Command {
	var cfg config
	var format output.Format
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this environment for problems and suggest fixes",
		Long: "Checks everything that pawl serve needs, with the same flags, environment and settings file, and changes\n" +
			"nothing. Exits with 1 if something is wrong.",
		Example: "  pawl doctor\n" +
			"  pawl doctor --database-url \"$DATABASE_URL\"\n" +
			"  pawl doctor -o json | jq '.findings[] | select(.state != \"ok\")'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			badSettings := cfg.load(cmd)
			return cfg.eachCell(cmd, format, func(one *config) error {
				var report doctor.Report
				examine(cmd, one, badSettings, &report)
				if err := printFindings(cmd.OutOrStdout(), &report, format); err != nil {
					return err
				}
				if n := report.Wrong(); n > 0 {
					return fmt.Errorf("%d of %d findings are wrong", n, len(report.Findings))
				}
				return nil
			})
		},
	}
	f := cmd.Flags()
	cfg.databaseFlags(f)
	cfg.serveFlags(f)
	shown := strings.Fields("database-url data-dir pg-bin pg-user config max-conns allow-data-loss installation cell")
	for name := range everyFlag {
		if !slices.Contains(shown, name) {
			_ = f.MarkHidden(name)
		}
	}
	format.AddTo(f)
	return allFlag(cmd)
}

func examine(cmd *cobra.Command, cfg *config, badSettings error, r *doctor.Report) {
	checkSettings(cfg, badSettings, r)
	if possible := connections(cfg, slog.New(slog.DiscardHandler)); possible < cfg.MaxConnections {
		r.Warn("files", "raise the limit (ulimit -n), or lower --max-connections",
			"the open file limit allows %d client connections instead of %d", possible, cfg.MaxConnections)
	} else {
		r.OK("files", "the open file limit allows %d client connections", possible)
	}
	dir, err := dataDir(cfg)
	if cfg.DatabaseURL == "" && err == nil {
		r.Programs(cmd.Context(), pgembed.Config{Dir: dir, BinDir: cfg.PostgresBin, User: cfg.PostgresUser})
		r.Disk(dir)
	}
	database, err := openDatabase(cmd, cfg)
	switch {
	case errors.Is(err, pgembed.ErrNoData):
		r.Warn("database", "pawl serve creates one", "there is none yet, and --database-url is not set")
		return
	case err != nil:
		r.Fail("database", "", "%s", err)
		return
	}
	defer database.close()
	r.Database(cmd.Context(), database.url, doctor.Service{
		MaxConns: cfg.MaxConns, AllowDataLoss: cfg.AllowDataLoss, OwnServer: cfg.DatabaseURL == "",
		Version: migrations.Version(), Installation: cfg.Installation, Cell: cfg.Cell,
	})
}

// checkSettings looks for settings that serve would refuse, and for unknown variables.
func checkSettings(cfg *config, err error, r *doctor.Report) {
	_, policyErr := loadPolicy(cfg.Policy)
	err = errors.Join(err, cfg.OIDC.check(), policyErr)
	if cfg.TLSCert != "" {
		_, tlsErr := tlsConfig(cfg.TLSCert, cfg.TLSKey, slog.New(slog.DiscardHandler))
		err = errors.Join(err, tlsErr)
	}
	unknown := unknownVariables(os.Environ(), cfg.Bounds.SecretEnvPrefix)
	for _, name := range unknown {
		r.Warn("settings", "correct or remove it", "unknown environment variable %s", name)
	}
	switch {
	case err != nil:
		r.Fail("settings", "see pawl serve --help", "%s", err)
	case len(unknown) == 0:
		r.OK("settings", "valid for pawl %s", version.Build())
	}
}

// unknownVariables returns variables that look like settings of Pawl and are not. Kubernetes sets some for a service
// named pawl.
func unknownVariables(environment []string, secrets string) (names []string) {
	known := []string{"PAWL_CONFIG", "PAWL_TOKEN", "PAWL_URL"}
	for flag := range everyFlag {
		known = append(known, variables(flag)[0])
	}
	others := []string{cmp.Or(secrets, "PAWL_SECRET_"), "PAWL_SERVICE_", "PAWL_PORT_", "PAWL_TEST_", "PAWL_FAULT_"}
	for _, variable := range environment {
		name, _, _ := strings.Cut(variable, "=")
		if strings.HasPrefix(name, "PAWL_") && !slices.Contains(known, name) &&
			!slices.ContainsFunc(others, func(other string) bool { return strings.HasPrefix(name, other) }) {
			names = append(names, name)
		}
	}
	return names
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
