package httpapi

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"pawl/engine"
	"pawl/internal/access"
	"pawl/internal/orders"
	"pawl/internal/pg"
	"pawl/internal/version"
)

var healthOperation = failing(huma.Operation{
	OperationID: "health", Method: http.MethodGet, Path: "/health", Tags: []string{"service"},
	Summary: "Readiness",
	Description: "Checks that the database answers, is migrated and belongs to this installation, and that the service " +
		"is not shutting down. For load balancers.",
}, "invalid_parameter", "stopping", "quarantined", "unavailable", "internal")

var livezOperation = failing(huma.Operation{
	OperationID: "livez", Method: http.MethodGet, Path: "/livez", Tags: []string{"service"},
	Summary:     "Liveness",
	Description: "Does not use the database. For supervisors.",
}, "invalid_parameter", "internal")

type health struct {
	Status  string `json:"status" enum:"ok"`
	Version string `json:"version,omitempty" doc:"The release that answers. Only for callers with the role read."`
	Warning string `json:"warning,omitempty" doc:"Shown while the service is open because no token was created."`
}

// health waits for the database as long as any read does (guarded has set the deadline): a few busy seconds are no
// reason to take a replica out of service, and a balancer has its own timeout. Concurrent requests share one check,
// because the route is open to everyone.
func (s *server) health(ctx context.Context, _ *struct{}) (health, error) {
	if s.Quarantine != "" {
		return health{}, newProblem("quarantined", s.forReaders(ctx,
			"The service processes no orders and sends no webhooks, because the database was restored or copied: "+
				s.Quarantine+". As the database's owner, run pawl adopt or pawl adopt --as-copy."))
	}
	checked := s.checks.DoChan("", func() (any, error) {
		check, cancel := context.WithTimeout(context.WithoutCancel(ctx), readLimit) // other requests share it
		defer cancel()
		return nil, s.engine.Ready(check)
	})
	var err error
	select {
	case result := <-checked:
		err = result.Err
	case <-ctx.Done():
		err = orders.ErrUnavailable
	}
	missing, unmade := errors.AsType[*pg.NoSchema](err)
	switch {
	case errors.Is(err, orders.ErrStopping):
		return health{}, err
	case unmade: // so no caller can be identified as a reader
		return health{}, newProblem("unavailable", s.forOperations(ctx, strings.ToUpper(missing.Found[:1])+missing.Error()[1:]+"."))
	case errors.Is(err, engine.ErrNotMigrated):
		return health{}, newProblem("unavailable", s.forReaders(ctx,
			"The database is not migrated to this version, was changed since, or the role lacks privileges on it. As "+
				"the database's owner, run pawl migrate up. The log has the details."))
	case err != nil:
		return health{}, orders.ErrUnavailable
	}
	out := health{Status: "ok", Version: s.forReaders(ctx, version.Number)}
	if s.Access.Open(ctx) {
		out.Warning = s.forOperations(ctx, "The service is open: no token was made yet. To close it: "+HowToClose)
	}
	return out, nil
}

// HowToClose is the command that makes a token, which closes an open service.
const HowToClose = "pawl token create NAME --roles ROLES"

// forOperations is a text for people who run the service. If there is an address for operations, it is empty
// elsewhere.
func (s *server) forOperations(ctx context.Context, text string) string {
	if mux := recordOf(writerOf(ctx)).mux; mux != s.ops && mux != s.inside {
		return ""
	}
	return text
}

// forReaders is forOperations, and empty for callers without the role read.
func (s *server) forReaders(ctx context.Context, text string) string {
	if !principalOf(writerOf(ctx)).Has(access.Read) {
		return ""
	}
	return s.forOperations(ctx, text)
}

func (s *server) livez(context.Context, *struct{}) (health, error) { return health{Status: "ok"}, nil }
