package cli

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pawl/db"
	"pawl/internal/access"
)

func tokenLinkCommand() *cobra.Command {
	var actor, service string
	cmd := tokenCommandOn("link NAME", "Print a link that signs a browser in, once, as the holder of a token", cobra.ExactArgs(1),
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
