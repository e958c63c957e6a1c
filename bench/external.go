package main

import (
	"fmt"
	"net/url"
)

// externalCluster is a running PostgreSQL, of which the user may create databases.
func externalCluster(text string) (*cluster, error) {
	base, err := url.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("parse database url: %w", err)
	}
	return &cluster{url: func(database string) string {
		u := *base
		u.Path = "/" + database
		return u.String()
	}}, nil
}
