package cli

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v4"

	"pawl/httpapi"
	"pawl/internal/access"
	"pawl/internal/cell"
	"pawl/internal/iso4217"
	"pawl/internal/pg"
	"pawl/internal/policy"
)

// config has the settings of the service. A flag overrides its environment variable (PAWL_ and the name of the flag in
// capitals; also PORT and DATABASE_URL), which overrides the file named by --config.
type config struct {
	File          string
	DatabaseURL   string
	DataDir       string
	PostgresBin   string
	PostgresUser  string
	AllowDataLoss bool

	Listen          string
	Port            int
	everywhere      bool // PORT is set in the environment
	OpsListen       string
	AllowedHosts    string
	BehindProxy     string
	proxies         []netip.Prefix // of BehindProxy, set by validate
	TLSCert         string
	TLSKey          string
	MaxConnections  int
	Currency        string
	ResponseTimeout time.Duration
	Policy          string

	Installation string
	Cell         cell.Cell // zero: not given
	cellText     string

	PublicURL string
	Auth      string
	Bounds    policy.Bounds // what policies may use; load sets AllowPrivate
	OIDC      oidcConfig

	Lease            time.Duration
	RecoveryInterval time.Duration
	MaxBatch         int
	MaxInFlight      int
	MaxConns         int
	Grace            time.Duration
	EventRetention   time.Duration
	OrderRetention   time.Duration

	LogFormat string
	LogLevel  string

	settings      []any // of the command, for the log
	makesDatabase bool  // the command may create a database of our own
}

// addTo adds the flags of the database to a command, which then loads its settings.
func (c *config) addTo(cmd *cobra.Command) {
	c.databaseFlags(cmd.Flags())
	cmd.PreRunE = c.loadFirst
}

func (c *config) loadFirst(cmd *cobra.Command, _ []string) error {
	if err := c.load(cmd); err != nil {
		return configError{err}
	}
	return nil
}

// databaseFlags adds the flags of every command that opens the database.
func (c *config) databaseFlags(f *pflag.FlagSet) {
	f.StringVar(&c.DatabaseURL, "database-url", "", "URL of the PostgreSQL to use; empty: start one in --data-dir (also DATABASE_URL)")
	f.StringVar(&c.DataDir, "data-dir", "", "data directory of Pawl's own PostgreSQL; empty: the default directory for this user")
	f.StringVar(&c.PostgresBin, "pg-bin", "", "directory of the postgres and initdb to run; empty: search for one")
	f.StringVar(&c.PostgresUser, "pg-user", "",
		"user to run Pawl's own PostgreSQL as when started by root; empty: the owner of its data, else pawl")
	f.StringVar(&c.LogFormat, "log-format", "auto", "text, json or auto (text on a terminal, otherwise json)")
	f.StringVar(&c.LogLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&c.File, "config", "", "YAML file of settings, with flag names as keys")
}

func (c *config) serveFlags(f *pflag.FlagSet) {
	f.StringVar(&c.Listen, "listen", "",
		"address to listen on; empty: this machine only, or all interfaces if PORT is set in the environment")
	f.IntVar(&c.Port, "port", 3000, "port to listen on; 0 picks one (also PORT)")
	f.StringVar(&c.OpsListen, "ops-listen", "",
		"host:port of a second address; only this one then serves metrics, health details and admin operations")
	f.StringVar(&c.AllowedHosts, "allowed-hosts", "",
		"comma-separated names to accept in the Host header, besides localhost and the host of --public-url")
	f.StringVar(&c.BehindProxy, "behind-proxy", "", "comma-separated networks (CIDR) of reverse proxies whose forwarding headers are trusted")
	f.StringVar(&c.TLSCert, "tls-cert", "", "certificate file (PEM, with its chain) for HTTPS; reloaded when it changes")
	f.StringVar(&c.TLSKey, "tls-key", "", "private key file (PEM)")
	f.IntVar(&c.MaxConnections, "max-connections", httpapi.DefaultConnections,
		"maximum number of client connections; lowered if the open file limit is too small")
	f.StringVar(&c.Currency, "currency", "USD", "default currency of orders (ISO 4217)")
	f.DurationVar(&c.ResponseTimeout, "response-timeout", 30*time.Second, "how long a request waits for its order to finish")
	f.StringVar(&c.Policy, "policy", "", "policy file (YAML); empty: the active version")
	c.boundsFlags(f)
	f.StringVar(&c.Auth, "auth", authOnceThereIsAToken, "auto: open until the first token is created; required: do not start without one")
	c.installationFlag(f)
	f.StringVar(&c.cellText, "cell", "", "which orders this installation has, such as 0/4 for the first of four cells; stored in the database at first start")
	f.StringVar(&c.PublicURL, "public-url", "", "base URL at which providers reach this service, for callbacks; empty: http://localhost and the port")
	c.OIDC.addTo(f)
	f.DurationVar(&c.Lease, "lease", 10*time.Second, "how long an order stays with a replica that has stopped responding")
	f.DurationVar(&c.RecoveryInterval, "recovery-interval", 500*time.Millisecond, "how often to look for abandoned orders, with 20% jitter")
	f.IntVar(&c.MaxBatch, "max-batch", 512, "maximum number of orders in one statement")
	f.IntVar(&c.MaxInFlight, "max-in-flight", 20_000, "maximum number of orders in memory; further requests get 503")
	f.IntVar(&c.MaxConns, "max-conns", 12, "maximum number of connections to the database")
	f.DurationVar(&c.Grace, "grace", 20*time.Second, "how long shutdown may take after SIGTERM; unfinished orders are then released")
	f.DurationVar(&c.EventRetention, "event-retention", 30*24*time.Hour, "how long events are kept in the feed")
	f.DurationVar(&c.OrderRetention, "order-retention", 0, "how long ended orders are kept, at least 744h; 0: forever")
	f.BoolVar(&c.AllowDataLoss, "allow-data-loss", false, "serve on a database that may lose committed data")
}

func (c *config) installationFlag(f *pflag.FlagSet) {
	f.StringVar(&c.Installation, "installation", "", "name of this installation, such as prod, "+
		"stored in the database at first start; a service with another name only reads the database")
}

// boundsFlags adds the flags that limit what a policy may use.
func (c *config) boundsFlags(f *pflag.FlagSet) {
	f.StringVar(&c.Bounds.SecretEnvPrefix, "secret-env-prefix", policy.SecretEnvPrefix,
		"required prefix of the environment variables that a policy may use as secrets")
	f.StringVar(&c.Bounds.SecretsDir, "secrets-dir", "", "directory of the files that a policy may use as secrets; empty: none")
	f.BoolVar(&c.Bounds.AllowPrivate, "allow-private", false,
		"let policies call this machine and private networks; by default allowed only while listening on loopback")
}

// load sets the flags that were not given from the environment and the settings file, and validates all.
func (c *config) load(cmd *cobra.Command) error {
	file, err := readFile(cmd.Flags())
	if err != nil {
		return err
	}
	var errs []error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Changed || f.Name == "help" || f.Name == "version" {
			return
		}
		name, value, ok := lookUp(f.Name, file)
		if !ok {
			return
		}
		if err := cmd.Flags().Set(f.Name, value); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	})
	errs = append(errs, unknown(file, cmd.Flags())...)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	_, c.everywhere = variable("PORT")
	if flag := cmd.Flags().Lookup("allow-private"); flag != nil && !flag.Changed {
		c.Bounds.AllowPrivate = isLoopback(c.hosts()[0])
	}
	c.settings = shown(cmd.Flags())
	return c.validate(cmd.Flags())
}

// shown returns the settings that were given, without passwords.
func shown(flags *pflag.FlagSet) (settings []any) {
	flags.VisitAll(func(f *pflag.Flag) {
		value := f.Value.String()
		if f.Name == "database-url" && value != "" { // no other setting has a password
			value = masked(value)
		}
		if everyFlag[f.Name] && f.Changed {
			settings = append(settings, slog.String(f.Name, value))
		}
	})
	return settings
}

// lookUp finds a setting outside the command line.
func lookUp(flag string, file map[string]string) (name, value string, ok bool) {
	for _, name := range variables(flag) {
		if value, ok := variable(name); ok {
			return name, value, true
		}
	}
	value, ok = file[flag]
	return flag, value, ok
}

// variable reads an environment variable. Kubernetes sets PAWL_PORT=tcp://… in every pod beside a service named pawl.
func variable(name string) (value string, ok bool) {
	value = os.Getenv(name)
	return value, value != "" && !strings.HasPrefix(value, "tcp://")
}

// variables returns the environment variables of a flag. The first one that is set wins.
func variables(flag string) []string {
	names := []string{"PAWL_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))}
	switch flag {
	case "port":
		names = append(names, "PORT")
	case "database-url":
		names = append(names, "DATABASE_URL")
	}
	return names
}

func readFile(flags *pflag.FlagSet) (map[string]string, error) {
	named, _ := flags.GetString("config")
	path := cmp.Or(named, os.Getenv("PAWL_CONFIG"))
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read settings: %w", err)
	}
	values := map[string]string{}
	if err := yaml.Unmarshal(text, &values); err != nil {
		return nil, fmt.Errorf("read settings: %s: %w", path, err)
	}
	return values, nil
}

// unknown rejects unknown keys of the settings file, such as misspelled ones.
func unknown(file map[string]string, flags *pflag.FlagSet) []error {
	var errs []error
	for name := range file {
		if flags.Lookup(name) == nil && !everyFlag[name] {
			errs = append(errs, fmt.Errorf("the settings file has an unknown key %q", name))
		}
	}
	return errs
}

// everyFlag has the flags of all commands, which share one settings file.
var everyFlag = func() map[string]bool {
	set := pflag.NewFlagSet("all", pflag.ContinueOnError)
	var c config
	c.databaseFlags(set)
	c.serveFlags(set)
	names := map[string]bool{}
	set.VisitAll(func(f *pflag.Flag) { names[f.Name] = true })
	return names
}()

func (c *config) validate(flags *pflag.FlagSet) error {
	var errs []error
	var badCell, badNetwork error
	check := func(flag string, good bool, must string) {
		if !good && flags.Lookup(flag) != nil {
			errs = append(errs, fmt.Errorf("%s %s", flag, must))
		}
	}
	check("currency", iso4217.Known(c.Currency), "must be an ISO 4217 code")
	check("response-timeout", c.ResponseTimeout >= 0 && c.ResponseTimeout <= time.Minute, "must be from 0s to 60s")
	check("public-url", c.PublicURL == "" || isWebAddress(c.PublicURL), "must be an absolute http or https URL without query or fragment")
	check("secret-env-prefix", envName.MatchString(c.Bounds.SecretEnvPrefix), "must begin like a variable name, such as "+policy.SecretEnvPrefix)
	check("secrets-dir", c.Bounds.SecretsDir == "" || filepath.IsAbs(c.Bounds.SecretsDir), "must be an absolute path")
	check("auth", slices.Contains([]string{authOnceThereIsAToken, authRequired}, c.Auth), "must be auto or required")
	check("lease", c.Lease >= time.Second, "must be at least 1s")
	check("recovery-interval", c.RecoveryInterval > 0 && c.RecoveryInterval <= c.Lease, "must be more than 0s and at most the lease")
	check("port", c.Port >= 0 && c.Port <= 65535, "must be from 0 to 65535")
	check("ops-listen", c.OpsListen == "" || isHostPort(c.OpsListen), "must be a host and a port, such as 127.0.0.1:9090")
	c.proxies, badNetwork = networks(c.BehindProxy)
	check("behind-proxy", badNetwork == nil, "must be networks, such as 10.0.0.0/8,192.0.2.7/32")
	check("max-connections", c.MaxConnections >= fewestConnections, fmt.Sprint("must be at least ", fewestConnections))
	check("max-batch", c.MaxBatch >= 1 && c.MaxBatch <= 10_000, "must be from 1 to 10000")
	check("max-in-flight", c.MaxInFlight >= 1, "must be at least 1")
	check("max-conns", c.MaxConns >= 4 && c.MaxConns <= 10_000, "must be from 4 to 10000")
	c.Cell, badCell = cell.Parse(c.cellText)
	check("cell", c.cellText == "" || badCell == nil, fmt.Sprint(badCell))
	check("grace", c.Grace >= 0, "must not be negative")
	check("event-retention", c.EventRetention >= time.Hour, "must be at least 1h")
	check("order-retention", c.OrderRetention == 0 || c.OrderRetention >= leastOrderRetention, "must be 0s (forever) or at least 744h")
	check("log-format", slices.Contains([]string{"auto", "text", "json"}, c.LogFormat), "must be auto, text or json")
	check("log-level", new(slog.Level).UnmarshalText([]byte(c.LogLevel)) == nil, "must be debug, info, warn or error")
	return errors.Join(errs...)
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// isLoopback reports whether only this machine can reach a listener on host.
func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

// isWebAddress reports whether a text is a URL to which paths can be added.
func isWebAddress(text string) bool {
	_, err := policy.ParseURL(text)
	return err == nil && !strings.Contains(text, "?")
}

func isHostPort(text string) bool {
	_, port, err := net.SplitHostPort(text)
	_, badPort := strconv.ParseUint(port, 10, 16)
	return err == nil && badPort == nil
}

func networks(text string) (all []netip.Prefix, err error) {
	for _, one := range elements(text) {
		network, err := netip.ParsePrefix(one)
		if err != nil {
			return nil, err
		}
		all = append(all, network.Masked())
	}
	return all, nil
}

func elements(text string) []string {
	return strings.FieldsFunc(text, func(c rune) bool { return c == ',' || c == ' ' })
}

// allowedHosts returns the accepted names in the Host header, besides localhost.
func (c *config) allowedHosts() []string {
	hosts := elements(c.AllowedHosts)
	if public, err := url.Parse(c.PublicURL); err == nil && public.Host != "" {
		hosts = append(hosts, public.Host)
	}
	return hosts
}

// hosts returns the addresses to listen on: this machine only, unless --listen or PORT is set, as platforms do.
func (c *config) hosts() []string {
	if c.Listen == "localhost" || c.Listen == "" && !c.everywhere {
		return loopbackHosts
	}
	return []string{c.Listen}
}

func (c *config) publicURL(listening net.Addr) string {
	_, port, _ := net.SplitHostPort(listening.String())
	return cmp.Or(c.PublicURL, c.scheme()+"://localhost:"+port)
}

func (c *config) scheme() string {
	if c.TLSCert != "" {
		return "https"
	}
	return "http"
}

// masked returns the URL of a database without password and parameters.
func masked(databaseURL string) string {
	c, err := pg.ParseConfig(databaseURL)
	if err != nil {
		return "(set)" // the error comes when connecting
	}
	port := strconv.Itoa(int(c.Port))
	u := url.URL{
		Scheme: "postgres", User: url.User(c.User), Host: net.JoinHostPort(c.Host, port), Path: "/" + cmp.Or(c.Database, c.User),
	}
	for _, other := range c.Fallbacks { // other hosts, or the same one without TLS
		if host := net.JoinHostPort(other.Host, strconv.Itoa(int(other.Port))); !strings.Contains(u.Host, host) {
			u.Host += "," + host
		}
	}
	if strings.HasPrefix(c.Host, "/") { // the directory of a socket
		u.Host, u.RawQuery = "", "host="+c.Host+"&port="+port
	}
	return u.String()
}

// oidcConfig has the settings of the OpenID Connect issuer whose tokens are accepted.
type oidcConfig struct {
	Issuer         access.Issuer // without URL: none
	clients, roles string        // which check reads into Issuer
}

func (o *oidcConfig) addTo(f *pflag.FlagSet) {
	f.StringVar(&o.Issuer.URL, "oidc-issuer", "",
		"URL of the OpenID Connect issuer to accept tokens from, exactly as in their iss claim; empty: none")
	f.StringVar(&o.Issuer.Audience, "oidc-audience", "", "required audience of these tokens (aud)")
	f.StringVar(&o.clients, "oidc-clients", "", "comma-separated clients that these tokens may be issued to (azp), besides the audience")
	f.StringVar(&o.Issuer.RoleClaim, "oidc-role-claim", "roles", "claim of these tokens that --oidc-roles maps to roles; dots lead into objects")
	f.StringVar(&o.roles, "oidc-roles", "", "roles granted to each value of the claim, such as 'shop=submit; support=read,operate'")
	f.Int32Var(&o.Issuer.Limits.Rate, "oidc-rate", 200, "maximum requests per second for a caller with such a token; 0: no limit")
	f.Int32Var(&o.Issuer.Limits.InFlight, "oidc-in-flight", 200, "maximum concurrent requests for a caller with such a token; 0: no limit")
	f.Int64Var(&o.Issuer.Limits.Bytes, "oidc-bytes", 16<<20,
		"maximum body bytes per second for a caller with such a token, requests and responses together; 0: no limit")
}

func (o *oidcConfig) check() (err error) {
	switch {
	case o.Issuer.URL != "":
	case o.Issuer.Audience+o.clients+o.roles != "":
		return errors.New("oidc-issuer must be set for the other settings of OpenID Connect to have an effect")
	default:
		return nil
	}
	o.Issuer.Clients = elements(o.clients)
	if o.Issuer.Roles, err = parseRoles(o.roles); err != nil {
		return fmt.Errorf("oidc-roles: %w", err)
	}
	if err := o.Issuer.Check(); err != nil {
		return fmt.Errorf("oidc-%w", err)
	}
	return nil
}

// parseRoles reads the roles of each value of a claim: value=role,role; value=role. A value may contain commas and
// equal signs, as distinguished names do.
func parseRoles(text string) (map[string]access.Roles, error) {
	byValue := map[string]access.Roles{}
	for entry := range strings.SplitSeq(text, ";") {
		entry = strings.TrimSpace(entry)
		if entry == "" {
			continue
		}
		at := strings.LastIndexByte(entry, '=')
		value := strings.TrimSpace(entry[:max(at, 0)])
		if value == "" {
			return nil, fmt.Errorf("%q is not of the form support=read,operate", entry)
		}
		roles, err := access.ParseRoles(elements(entry[at+1:]))
		if err != nil {
			return nil, err
		}
		byValue[value] = append(byValue[value], roles...)
	}
	return byValue, nil
}
