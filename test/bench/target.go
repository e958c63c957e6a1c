package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// target is a program to be measured.
type target struct {
	binary string
	args   []string
	ready  string // path of a GET that is answered 200 once it is; "" = /health
	token  bool   // its callers send a token
}

// targets are built from the sources beside this module.
type targets struct {
	source string // the module of the service
	folder string // where the binaries go
	pawl   string // a binary to use instead of building one; "" = build

	earlier string // binary of an earlier version of the service
}

var targetNames = []string{"pawl", "baseline", "earlier", "ledger-policy", "token", keyedName}

// keyedName is the service, whose callers send an Idempotency-Key with each order.
const keyedName = "keyed"

func (t targets) build(ctx context.Context, name string) (target, error) {
	switch name {
	case "pawl", keyedName:
		return t.service(ctx)
	case "earlier":
		return target{binary: t.earlier, args: []string{"serve"}}, nil
	case "ledger-policy":
		return t.ledgerPolicy(ctx)
	case "token":
		built, err := t.service(ctx)
		built.token = true
		return built, err
	}
	binary, err := t.compile(ctx, ".", "./baseline", name)
	return target{binary: binary}, err
}

func (t targets) service(ctx context.Context) (target, error) {
	binary, err := t.pawl, error(nil)
	if binary == "" {
		binary, err = t.compile(ctx, t.source, ".", "pawl")
	}
	return target{binary: binary, args: []string{"serve"}}, err
}

// ledgerPolicy is the service with a stored policy that leaves every step to the ledger:
// what it does for an order is the same as without, but for keeping the version.
func (t targets) ledgerPolicy(ctx context.Context) (target, error) {
	built, err := t.service(ctx)
	if err != nil {
		return built, err
	}
	file := filepath.Join(t.folder, "ledger.yaml")
	built.args = append(built.args, "--policy", file)
	return built, os.WriteFile(file, []byte("{}\n"), 0o644)
}

// makeToken makes a token that may send orders. From it on the service wants one.
func (t target) makeToken(ctx context.Context, databaseURL string) (string, error) {
	cmd := exec.CommandContext(ctx, t.binary, "token", "create", "bench", "--roles", "submit", "--database-url", databaseURL)
	cmd.Env = inherited()
	token, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("make token: %w", err)
	}
	return strings.TrimSpace(string(token)), nil
}

func (t targets) compile(ctx context.Context, folder, path, name string) (string, error) {
	binary := filepath.Join(t.folder, name)
	cmd := exec.CommandContext(ctx, "go", "build", "-o", binary, path)
	cmd.Dir = folder
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w: %s", name, err, out)
	}
	return binary, nil
}
