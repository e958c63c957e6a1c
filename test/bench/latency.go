package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// A commit waits for fdatasync. This one is as far away as a network disk.
const slowSync = `
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

int fdatasync(int fd) {
	static int (*next)(int);
	struct timespec wait = {0, NANOSECONDS};
	if (!next) next = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
	nanosleep(&wait, 0);
	return next(fd);
}
`

// slowPrograms makes a folder with the programs of PostgreSQL in bin, of which the server's fdatasync takes longer. It needs gcc.
// LD_PRELOAD comes by a script: pgembed passes no such variable on.
func slowPrograms(ctx context.Context, folder, bin string, latency time.Duration) (string, error) {
	source, library, slow := filepath.Join(folder, "sync.c"), filepath.Join(folder, "sync.so"), filepath.Join(folder, "slow")
	if err := os.WriteFile(source, []byte(slowSync), 0o644); err != nil {
		return "", err
	}
	said, err := exec.CommandContext(ctx, "gcc", fmt.Sprintf("-DNANOSECONDS=%d", latency.Nanoseconds()), "-shared", "-fPIC", "-o", library, source, "-ldl").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("compile: %w: %s", err, said)
	}
	if err := os.Mkdir(slow, 0o755); err != nil {
		return "", err
	}
	for _, program := range []string{"initdb", "pg_ctl", "psql", "pg_controldata"} {
		if err := os.Symlink(filepath.Join(bin, program), filepath.Join(slow, program)); err != nil {
			return "", err
		}
	}
	script := fmt.Sprintf("#!/bin/sh\nLD_PRELOAD='%s' exec '%s' \"$@\"\n", library, filepath.Join(bin, "postgres"))
	return slow, os.WriteFile(filepath.Join(slow, "postgres"), []byte(script), 0o755)
}
