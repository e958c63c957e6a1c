package main

import (
	"context"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"

	"pawl/db"
	"pawl/internal/pgembed"
	"pawl/migrations"
)

// variant is one database, and the one connection that its orders are made on.
type variant struct {
	name    string
	conn    *pgx.Conn
	query   *db.Queries
	items   int
	made    int // orders so far
	figures map[int][]figures
}

// open makes the database of a variant: migrations, then its files.
func open(ctx context.Context, server *pgembed.Server, number int, o options) (*variant, error) {
	admin, err := pgx.Connect(ctx, server.URL("postgres"))
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	defer admin.Close(ctx)
	url := server.URL(fmt.Sprintf("variant%d", number))
	if _, err := admin.Exec(ctx, fmt.Sprintf("CREATE DATABASE variant%d", number)); err != nil {
		return nil, fmt.Errorf("create database: %w", err)
	}
	if _, err := migrations.Up(ctx, url); err != nil {
		return nil, err
	}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	r := &replacing{Conn: conn, texts: map[string]string{}}
	for _, file := range o.files[number] {
		if err := r.read(ctx, file); err != nil {
			return nil, err
		}
	}
	return &variant{name: o.names[number], conn: conn, query: db.New(r), items: o.items, figures: map[int][]figures{}}, nil
}

// replacing is a connection that sends other statements in the place of some.
type replacing struct {
	*pgx.Conn
	texts map[string]string // by name
}

var named = regexp.MustCompile(`(?m)^-- name: (\w+).*$`)

// read takes a file of a variant.
func (r *replacing) read(ctx context.Context, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	starts := named.FindAllSubmatchIndex(text, -1)
	if starts == nil {
		if _, err := r.Conn.Exec(ctx, string(text)); err != nil {
			return fmt.Errorf("run %s: %w", file, err)
		}
	}
	for i, at := range starts {
		end := len(text)
		if i+1 < len(starts) {
			end = starts[i+1][0]
		}
		r.texts[string(text[at[2]:at[3]])] = strings.TrimRight(string(text[at[0]:end]), "; \n")
	}
	return nil
}

// Query sends a statement, or the one that takes its place.
func (r *replacing) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	name := named.FindStringSubmatch(sql)[1]
	if other, ok := r.texts[name+"One"]; ok {
		if elements, ok := single(args); ok {
			return r.Conn.Query(ctx, other, elements...) //nolint:rowserrcheck // whoever reads them does
		}
	}
	if other, ok := r.texts[name]; ok {
		sql = other
	}
	return r.Conn.Query(ctx, sql, args...) //nolint:rowserrcheck // whoever reads them does
}

// single returns the arguments of a set of one with its element in the place of each array.
func single(args []any) ([]any, bool) {
	out := make([]any, len(args))
	for i, arg := range args {
		out[i] = arg
		if v := reflect.ValueOf(arg); v.Kind() == reflect.Slice {
			if v.Len() != 1 {
				return nil, false
			}
			out[i] = v.Index(0).Interface()
		}
	}
	return out, true
}
