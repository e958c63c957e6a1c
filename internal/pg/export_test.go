package pg

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// BehindPooler is what fixSearchPath finds out.
var BehindPooler = fixSearchPath

// ConnConfig is what the connections of a pool are made with.
func (p *Pool) ConnConfig() *pgx.ConnConfig { return p.pool.Config().ConnConfig }

// LookAtEnded does what the watchdog does when a statement ends between being found overdue and being looked at.
func (p *Pool) LookAtEnded(ctx context.Context) error {
	conn, err := p.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("acquire connection: %w", err)
	}
	st := p.watchdog.begin(conn, "SELECT 1")
	if err := st.end(); err != nil {
		return err
	}
	p.watchdog.look(ctx, []*statement{st})
	return nil
}
