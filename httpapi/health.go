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
)

var healthOperation = failing(huma.Operation{
	OperationID: "health", Method: http.MethodGet, Path: "/health", Tags: []string{"service"},
	Summary:     "Is the service ready?",
	Description: "Whether the database belongs here, is migrated and answers, and the service is not shutting down. For load balancers.",
}, "invalid_parameter", "stopping", "quarantined", "unavailable", "internal")

var livezOperation = failing(huma.Operation{
	OperationID: "livez", Method: http.MethodGet, Path: "/livez", Tags: []string{"service"},
	Summary:     "Is the process up?",
	Description: "Never asks the database. For supervisors.",
}, "invalid_parameter", "internal")

type health struct {
	Status  string `json:"status" enum:"ok"`
	Warning string `json:"warning,omitempty" doc:"That the service is open, as long as no token was made."`
}

// health gives the database the time that every read has, for all that has to be known: guarded has begun to count it. A machine that
// is busy for some seconds is no reason to take a replica out; a balancer that can't wait so long has a limit of its own. Anybody may ask,
// so those who ask at the same time cost the database one check.
func (s *server) health(ctx context.Context, _ *struct{}) (health, error) {
	if s.Quarantine != "" {
		return health{}, newProblem("quarantined", s.forReaders(ctx, "The service processes no orders and sends no webhooks, because the database was restored or copied: "+s.Quarantine+". As the database's owner, run pawl adopt or pawl adopt --as-copy."))
	}
	checked := s.checks.DoChan("", func() (any, error) {
		check, cancel := context.WithTimeout(context.WithoutCancel(ctx), readLimit) // others wait for it, too
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
	case unmade: // then nobody can be identified as one who may read
		return health{}, newProblem("unavailable", s.forOperations(ctx, strings.ToUpper(missing.Found[:1])+missing.Error()[1:]+"."))
	case errors.Is(err, engine.ErrNotMigrated):
		return health{}, newProblem("unavailable", s.forReaders(ctx, "The database is not migrated to this version, was changed since, or the role lacks privileges on it. As the database's owner, run pawl migrate up. The log has the details."))
	case err != nil:
		return health{}, orders.ErrUnavailable
	}
	out, err := s.livez(ctx, nil)
	if s.Access.Open(ctx) {
		out.Warning = s.forOperations(ctx, "The service is open: no token was made yet. To close it: "+HowToClose)
	}
	return out, err
}

// HowToClose is the command that makes a token, and so closes a service.
const HowToClose = "pawl token create NAME --roles ROLES"

// forOperations is a text for those who run the service: empty for others, where there is an address for operations.
func (s *server) forOperations(ctx context.Context, text string) string {
	if mux := recordOf(writerOf(ctx)).mux; mux != s.ops && mux != s.inside {
		return ""
	}
	return text
}

// forReaders is forOperations, and empty for those who may not read.
func (s *server) forReaders(ctx context.Context, text string) string {
	if !principalOf(writerOf(ctx)).Has(access.Read) {
		return ""
	}
	return s.forOperations(ctx, text)
}

func (s *server) livez(context.Context, *struct{}) (health, error) { return health{Status: "ok"}, nil }
