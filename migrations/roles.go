package migrations

import (
	"context"
	_ "embed" // the text of the roles
	"errors"
	"fmt"
	"regexp"

	"github.com/jackc/pgx/v5"

	"pawl/internal/pg"
)

//go:embed roles/roles.sql
var rolesSQL string

// ErrPrefix is the error of an invalid prefix for role names.
var ErrPrefix = errors.New("the prefix must be a lowercase letter followed by up to 39 lowercase letters, digits and _")

var rolePrefix = regexp.MustCompile(`^[a-z][a-z0-9_]{0,39}$`)

// RolesSQL is the SQL that Roles runs. Errors: ErrPrefix.
func RolesSQL(prefix string) (string, error) {
	if !rolePrefix.MatchString(prefix) {
		return "", ErrPrefix
	}
	return regexp.MustCompile(`\bpawl_(owner|serve|read)\b`).ReplaceAllString(rolesSQL, prefix+"_$1"), nil
}

// Roles creates the roles of a migrated database, PREFIX_owner, PREFIX_serve and PREFIX_read, and grants them their
// privileges. Existing roles keep their members. Roles can be called again.
func Roles(ctx context.Context, url, prefix string) error {
	text, err := RolesSQL(prefix)
	if err != nil {
		return err
	}
	conn, err := connect(ctx, url, pgx.QueryExecModeCacheStatement)
	if err != nil {
		return fmt.Errorf("connect to create roles: %w", err)
	}
	defer conn.Close(ctx)
	if err := pg.FindSchema(ctx, conn); err != nil {
		return err
	}
	return runRoles(ctx, conn, prefix, text)
}

// grantAnew grants the roles of the service what migrations have added, if the roles exist and this role is the owner.
// It also does so after the goose command, which grants nothing.
func grantAnew(ctx context.Context, conn *pgx.Conn, migrated bool) error {
	type roles struct {
		Prefix string
		Lack   bool
	}
	rows, _ := conn.Query(ctx, statement("roles/granted")) // CollectRows returns its error
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[roles])
	if err != nil {
		return fmt.Errorf("look for roles to grant: %w", err)
	}
	for _, r := range found {
		text, err := RolesSQL(r.Prefix)
		if err != nil || !migrated && !r.Lack { // the roles have other names, or nothing is missing
			continue
		}
		if err := runRoles(ctx, conn, r.Prefix, text); err != nil {
			return err
		}
	}
	return nil
}

func runRoles(ctx context.Context, conn *pgx.Conn, prefix, text string) error {
	if _, err := conn.Exec(ctx, text, pgx.QueryExecModeSimpleProtocol); err != nil {
		return fmt.Errorf("create the roles %s_owner, %[1]s_serve and %[1]s_read: %w", prefix, err)
	}
	return nil
}
