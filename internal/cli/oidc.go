package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"pawl/internal/access"
)

// oidcConfig are the settings of the OpenID Connect issuer whose tokens count.
type oidcConfig struct {
	Issuer    string
	Audience  string
	Clients   string
	RoleClaim string
	Roles     string
	Limits    access.Limits

	checked access.Issuer // what they say, once check has found them good; zero: there is no issuer
}

func (o *oidcConfig) addTo(f *pflag.FlagSet) {
	f.StringVar(&o.Issuer, "oidc-issuer", "", "OpenID Connect issuer whose tokens count, as they name it; empty: none")
	f.StringVar(&o.Audience, "oidc-audience", "", "what these tokens must be for (aud)")
	f.StringVar(&o.Clients, "oidc-clients", "", "clients, with commas, that these tokens may be issued to (azp), besides the audience")
	f.StringVar(&o.RoleClaim, "oidc-role-claim", "roles", "claim of these tokens that says what the caller is; dots lead into objects")
	f.StringVar(&o.Roles, "oidc-roles", "", "what each value of the claim may do, such as 'shop=submit; support=read,operate'")
	f.Int32Var(&o.Limits.Rate, "oidc-rate", 200, "most requests in a second of a caller with such a token; 0: no limit")
	f.Int32Var(&o.Limits.InFlight, "oidc-in-flight", 200, "most requests at one time of a caller with such a token; 0: no limit")
	f.Int64Var(&o.Limits.Bytes, "oidc-bytes", 16<<20, "most bytes of bodies in a second of a caller with such a token, in and out; 0: no limit")
}

// check reads the settings.
func (o *oidcConfig) check() error {
	if o.Issuer == "" && o.Audience+o.Clients+o.Roles != "" {
		return errors.New("oidc-issuer: missing: without it the other settings of OpenID Connect have no effect")
	}
	if o.Issuer == "" {
		return nil
	}
	roles, err := parseRoles(o.Roles)
	if err != nil {
		return fmt.Errorf("oidc-roles: %w", err)
	}
	clients := strings.FieldsFunc(o.Clients, func(r rune) bool { return r == ',' || r == ' ' })
	o.checked = access.Issuer{URL: o.Issuer, Audience: o.Audience, Clients: clients, RoleClaim: o.RoleClaim, Roles: roles, Limits: o.Limits}
	if err := o.checked.Check(); err != nil {
		return fmt.Errorf("oidc-%w", err)
	}
	return nil
}

// parseRoles reads what each value of a claim may do: value=role,role; value=role. A value may hold commas and equal
// signs, as names in directories do.
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
			return nil, fmt.Errorf("%q has no form like support=read,operate", entry)
		}
		roles, err := access.ParseRoles(strings.FieldsFunc(entry[at+1:], func(r rune) bool { return r == ',' || r == ' ' }))
		if err != nil {
			return nil, err
		}
		byValue[value] = append(byValue[value], roles...)
	}
	return byValue, nil
}
