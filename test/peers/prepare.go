package main

import (
	"context"
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

//go:embed restate
var restatePackage embed.FS

const temporalVersion = "v1.32.1"

// prepare downloads and builds what the peers run. It needs Go, npm and a network, and 2 GB of disk, most of it for the
// caches of Go.
func prepare(ctx context.Context, folder string) error {
	if err := os.MkdirAll(filepath.Join(folder, "restate"), 0o755); err != nil {
		return err
	}
	for _, name := range []string{"package.json", "package-lock.json"} {
		text, err := restatePackage.ReadFile("restate/" + name)
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, "restate", name), text, 0o644)
		}
		if err != nil {
			return err
		}
	}
	npm := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	npm.Dir = filepath.Join(folder, "restate")
	install := exec.CommandContext(ctx, "go", "install", temporalModule+"/cmd/"+temporalServer+"@"+temporalVersion,
		temporalModule+"/cmd/tools/"+temporalTool+"@"+temporalVersion)
	install.Env = append(os.Environ(), "GOBIN="+folder)
	for _, command := range []*exec.Cmd{npm, install} {
		if out, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", command.Path, err, out)
		}
	}
	return nil
}

// build builds Pawl and the service by hand from this repository.
func build(ctx context.Context, folder string) error {
	for name, source := range map[string]string{"pawl": "../..", "baseline": "../bench/baseline"} {
		command := exec.CommandContext(ctx, "go", "build", "-o", filepath.Join(folder, name), ".")
		command.Dir = source
		if out, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w: %s", name, err, out)
		}
	}
	return nil
}
