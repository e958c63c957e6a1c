package cli

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pawl/internal/access"
	"pawl/test/assert"
)

// settings loads the settings of serve from a command line and whatever the test has set up.
func settings(t *testing.T, args ...string) (*config, *pflag.FlagSet, error) {
	t.Helper()
	var cfg config
	cmd := &cobra.Command{Use: "serve"}
	cfg.databaseFlags(cmd.Flags())
	cfg.serveFlags(cmd.Flags())
	assert.NoError(t, cmd.ParseFlags(args))
	return &cfg, cmd.Flags(), cfg.load(cmd)
}

// bare takes the settings out of the environment for the time of a test.
func bare(t *testing.T) {
	t.Helper()
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, "PAWL_") || name == "PORT" || name == "DATABASE_URL" {
			t.Setenv(name, "")
		}
	}
}

func settingsFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pawl.yaml")
	assert.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestSettingsPrecedence(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		env  map[string]string
		file string
		port int
		url  string
	}{
		{name: "nothing is set", port: 3000},
		{name: "the file wins over the default", file: "port: 1\ndatabase-url: postgres://file", port: 1, url: "postgres://file"},
		{name: "PORT and DATABASE_URL win over the file", file: "port: 1\ndatabase-url: postgres://file",
			env: map[string]string{"PORT": "2", "DATABASE_URL": "postgres://env"}, port: 2, url: "postgres://env"},
		{name: "PAWL_ variables win over those", env: map[string]string{"PORT": "2", "DATABASE_URL": "postgres://env",
			"PAWL_PORT": "3", "PAWL_DATABASE_URL": "postgres://pawl"}, port: 3, url: "postgres://pawl"},
		{name: "flags win over all", args: []string{"--port", "4", "--database-url", "postgres://flag"}, file: "port: 1",
			env: map[string]string{"PAWL_PORT": "3", "PAWL_DATABASE_URL": "postgres://pawl"}, port: 4, url: "postgres://flag"},
		{name: "an empty variable is not set", env: map[string]string{"PAWL_PORT": "", "PORT": "2"}, port: 2},
		{name: "a flag that names the default wins too", args: []string{"--port", "3000"}, env: map[string]string{"PORT": "2"}, port: 3000},
		{name: "what Kubernetes says of a service named pawl is not for us", env: map[string]string{"PAWL_PORT": "tcp://10.0.0.1:80"}, port: 3000},
		{name: "nor are variables named like the flags of the command line itself",
			env: map[string]string{"PAWL_VERSION": "1.2", "PAWL_HELP": "me"}, port: 3000},
	} {
		t.Run(c.name, func(t *testing.T) {
			bare(t)
			for name, value := range c.env {
				t.Setenv(name, value)
			}
			if c.file != "" {
				t.Setenv("PAWL_CONFIG", settingsFile(t, c.file))
			}
			cfg, _, err := settings(t, c.args...)
			assert.True(t, err == nil && cfg.Port == c.port && cfg.DatabaseURL == c.url,
				"port", cfg.Port, "database", cfg.DatabaseURL, "error", err, "want", c.port, c.url)
		})
	}
}

// others are values that are not the default of any flag, by type.
var others = map[string]string{"string": "other", "int": "7", "int32": "7", "int64": "7", "duration": "7s", "bool": "true"}

// otherOf is a value of a flag that is good and not its default.
func otherOf(f *pflag.Flag) string {
	if value, special := map[string]string{"currency": "JPY", "public-url": "https://shop.example/pawl", "log-format": "json", "log-level": "debug",
		"ops-listen": "127.0.0.1:9090", "behind-proxy": "10.0.0.0/8", "secrets-dir": "/run/secrets", "auth": "required", "max-connections": "77", "event-retention": "9h0m0s", "order-retention": "9600h0m0s", "cell": "1/2"}[f.Name]; special {
		return value
	}
	return others[f.Value.Type()]
}

func TestEverySettingCanBeSetOutsideTheCommandLine(t *testing.T) {
	_, all, _ := settings(t)
	all.VisitAll(func(f *pflag.Flag) {
		if f.Name == "config" {
			return
		}
		value := otherOf(f)
		t.Run(f.Name+" by its variable", func(t *testing.T) {
			bare(t)
			t.Setenv(variables(f.Name)[0], value)
			set(t, f.Name, value)
		})
		t.Run(f.Name+" in the file", func(t *testing.T) { //nolint:paralleltest // bare changes the environment
			bare(t)
			set(t, f.Name, value, "--config", settingsFile(t, f.Name+": "+value))
		})
	})
}

func set(t *testing.T, flag, want string, args ...string) {
	t.Helper()
	_, flags, err := settings(t, args...)
	got := flags.Lookup(flag).Value.String()
	assert.True(t, err == nil && got == want, flag, "is", got, "error", err, want)
}

func TestSettingsAreRefused(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		env  string
		file string
		says string
	}{
		{name: "an unknown key of the file", file: "leese: 5s", says: `unknown key "leese"`},
		{name: "a value of the file without sense", file: "lease: soon", says: "lease: "},
		{name: "a file that is no list of settings", file: "- lease", says: "pawl.yaml"},
		{name: "a file that is not there", args: []string{"--config", "/nonexistent"}, says: "/nonexistent"},
		{name: "a variable without sense, by its name", env: "PAWL_LEASE=soon", says: "PAWL_LEASE: "},
		{name: "all that is wrong, not only the first", args: []string{"--port=-1", "--lease=0s"}, says: "port must be from 0 to 65535\n"},
		{name: "a currency in small letters", args: []string{"--currency=usd"}, says: "currency must"},
		{name: "a withdrawn currency", args: []string{"--currency=DEM"}, says: "currency must"},
		{name: "no currency", args: []string{"--currency="}, says: "currency must"},
		{name: "a wait beyond a minute", args: []string{"--response-timeout=61s"}, says: "response-timeout must be from 0s to 60s"},
		{name: "a wait before it began", args: []string{"--response-timeout=-1s"}, says: "response-timeout must"},
		{name: "a lease that a pause outlasts", args: []string{"--lease=999ms"}, says: "lease must be at least 1s"},
		{name: "looking less often than leases end", args: []string{"--lease=2s", "--recovery-interval=3s"}, says: "recovery-interval must"},
		{name: "looking without a pause", args: []string{"--recovery-interval=0s"}, says: "recovery-interval must"},
		{name: "a port there is none of", args: []string{"--port=65536"}, says: "port must"},
		{name: "an address for operations without a port", args: []string{"--ops-listen=127.0.0.1"}, says: "ops-listen must"},
		{name: "a proxy without its network", args: []string{"--behind-proxy=proxy.example"}, says: "behind-proxy must"},
		{name: "hardly a caller", args: []string{"--max-connections=1"}, says: "max-connections must be at least 16"},
		{name: "empty sets", args: []string{"--max-batch=0"}, says: "max-batch must"},
		{name: "sets without end", args: []string{"--max-batch=10001"}, says: "max-batch must"},
		{name: "no orders in memory", args: []string{"--max-in-flight=0"}, says: "max-in-flight must"},
		{name: "too few connections, on any port", args: []string{"--max-conns=3", "--port=0"}, says: "max-conns must be from 4 "},
		{name: "events kept too short", args: []string{"--event-retention=1m"}, says: "event-retention must"},
		{name: "an end before it began", args: []string{"--grace=-1s"}, says: "grace must not"},
		{name: "a place that no callback can be sent to", args: []string{"--public-url=shop.example:3000"}, says: "public-url must"},
		{name: "a place with a query", args: []string{"--public-url=https://shop.example/?a"}, says: "public-url must"},
		{name: "an unknown log format", args: []string{"--log-format=xml"}, says: "log-format must"},
		{name: "a level there is none of", args: []string{"--log-level=loud"}, says: "log-level must"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bare(t)
			if name, value, found := strings.Cut(c.env, "="); found {
				t.Setenv(name, value)
			}
			if c.file != "" {
				c.args = append(c.args, "--config", settingsFile(t, c.file))
			}
			_, _, err := settings(t, c.args...)
			assert.True(t, err != nil && strings.Contains(err.Error()+"\n", c.says), "error", err, c.says)
		})
	}
}

func TestSettingsAtTheirLimits(t *testing.T) { //nolint:paralleltest // bare changes the environment
	bare(t)
	cfg, _, err := settings(t, "--response-timeout=0s", "--lease=1s", "--recovery-interval=1s", "--port=0",
		"--max-batch=1", "--max-in-flight=1", "--max-conns=4", "--grace=0s")
	assert.NoError(t, err)
	assert.True(t, cfg.ResponseTimeout == 0 && cfg.Lease == time.Second && cfg.Port == 0, cfg)
}

func TestCommandsCheckTheirOwnSettingsOnly(t *testing.T) {
	bare(t)
	var cfg config
	cmd := &cobra.Command{Use: "verify"}
	cfg.databaseFlags(cmd.Flags())
	t.Setenv("PAWL_LEASE", "soon") // a setting of serve
	t.Setenv("PAWL_CONFIG", settingsFile(t, "port: many\ncurrency: none\n"))
	assert.NoError(t, cfg.load(cmd))
}

func TestMasked(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"postgres://pawl:secret@db:5433/pawl?sslmode=require":   "postgres://pawl@db:5433/pawl",
		"postgres://pawl@db:5432/shop?password=secret":          "postgres://pawl@db:5432/shop",
		"postgres://pawl@a:1,b:2/shop":                          "postgres://pawl@a:1,b:2/shop",
		"postgres://pawl:secret@/shop?host=/run/pg&port=5432":   "postgres://pawl@/shop?host=/run/pg&port=5432",
		"host=db port=5432 user=pawl password=secret":           "postgres://pawl@db:5432/pawl",
		"host=db port=5432 user=pawl dbname=a password='s p@c'": "postgres://pawl@db:5432/a",
		"postgres://pawl:sec%ret@db/pawl":                       "(set)",
	} {
		assert.Equal(t, masked(given), want, "masked", given, "=")
	}
}

// What is logged at the start is every setting that was given, and no password.
func TestSettingsThatAreLogged(t *testing.T) { //nolint:paralleltest // bare changes the environment
	bare(t)
	cfg, _, err := settings(t, "--database-url=postgres://pawl:hunter2@db/pawl?sslpassword=hunter2", "--lease=7s",
		"--public-url=https://pawl.shop.example")
	assert.NoError(t, err)
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("starting", slog.Group("settings", cfg.settings...))
	for _, want := range []string{"settings.lease=7s",
		"settings.public-url=https://pawl.shop.example", "settings.database-url=postgres://pawl@db:5432/pawl"} {
		assert.Contains(t, log.String(), want)
	}
	assert.True(t, !strings.Contains(log.String(), "hunter2") && !strings.Contains(log.String(), "settings.port="), &log)
}

// TestOIDCSettings: callers of the issuer have limits, unless they are removed.
func TestOIDCSettings(t *testing.T) {
	bare(t)
	t.Setenv("PAWL_OIDC_CLIENTS", "shop-app, shop-jobs")
	issuer := []string{"--oidc-issuer=https://id.example.com", "--oidc-audience=pawl", "--oidc-roles=shop=submit"}
	for _, c := range []struct {
		args []string
		good bool
		want access.Limits
	}{
		{issuer, true, access.Limits{Rate: 200, InFlight: 200, Bytes: 16 << 20}},
		{append([]string{"--oidc-rate=0", "--oidc-in-flight=7", "--oidc-bytes=1"}, issuer...), true, access.Limits{InFlight: 7, Bytes: 1}},
		{append([]string{"--oidc-rate=-1"}, issuer...), false, access.Limits{}},
		{nil, false, access.Limits{}}, // clients without an issuer
	} {
		cfg, _, err := settings(t, c.args...)
		err = errors.Join(err, cfg.OIDC.check())
		is := cfg.OIDC.Issuer
		assert.True(t, (err == nil) == c.good && (!c.good || is.Limits == c.want && slices.Equal(is.Clients, []string{"shop-app", "shop-jobs"})),
			c.args, is, err)
	}
}
