package db

import "github.com/jackc/pgx/v5"

// BehindPooler is behindPooler.
var BehindPooler = behindPooler

// ConnConfig is what the connections of a pool are made with.
func (p *Pool) ConnConfig() *pgx.ConnConfig { return p.pool.Config().ConnConfig }
