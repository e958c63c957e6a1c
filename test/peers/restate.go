package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/jackc/pgx/v5/pgxpool"
	restate "github.com/restatedev/sdk-go"
	"github.com/restatedev/sdk-go/server"

	"pawl/test/bench/machine"
)

// Restate is a server with a log of its own, which calls the code. An order is a workflow
// (https://docs.restate.dev/tour/workflows); an effect is committed before Restate logs the step, and may be repeated.
var restatePeer = peer{
	name: "Restate", engine: startRestate, code: runRestate, joined: registerRestate, effects: true, patience: atOnce,
	path:   func(orderID string) string { return "/Order/" + orderID + "/Run" },
	attach: func(orderID string) string { return "/restate/workflow/Order/" + orderID + "/attach" },
}

// restateServer is where npm installs the server, in the folder of prepare.
const restateServer = "restate/node_modules/@restatedev/restate-server-linux-x64/bin/restate-server"

// partitions are 24 by default. Fewer serve two cores better (https://docs.restate.dev/references/server_config).
const partitions = 2

func startRestate(ctx context.Context, s *site) (*machine.Process, error) {
	ports := freePorts(3)
	s.engineAddress, s.front = at(ports[0]), at(ports[1])
	config := filepath.Join(s.folder, "restate.toml")
	text := fmt.Sprintf(`disable-telemetry = true
default-num-partitions = %d
bind-ip = "127.0.0.1"
bind-port = %d
advertised-address = "http://127.0.0.1:%d"
base-dir = %q
node-name = "one"
log-filter = "warn"
[admin]
bind-address = %q
[ingress]
bind-address = %q
`, partitions, ports[2], ports[2], s.folder, s.engineAddress, s.front)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	command := []string{filepath.Join(s.tools, restateServer), "--config-file", config}
	if s.latency > 0 {
		// The server is linked statically, so nothing can be preloaded. Only these calls of it stop; strace runs beside it.
		late := ":delay_enter=" + strconv.FormatInt(s.latency.Microseconds(), 10)
		command = append([]string{"strace", "-D", "-f", "--seccomp-bpf", "-qqq", "-o", os.DevNull,
			"-e", "trace=fdatasync,fsync", "-e", "inject=fdatasync,fsync" + late}, command...)
	}
	return s.run(ctx, exec.Command(command[0], command[1:]...), machine.Answers("http://"+s.engineAddress+"/health"))
}

// registerRestate tells the server where the code is.
func registerRestate(ctx context.Context, s *site) error {
	body := fmt.Appendf(nil, `{"uri":"http://%s"}`, at(s.port))
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.engineAddress+"/deployments", bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("register code: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode/100 != 2 {
		return fmt.Errorf("register code: %s", response.Status)
	}
	return nil
}

// Order is the name of the workflow in URLs, and Run that of its handler.
type Order struct{ pool *pgxpool.Pool }

// Run does the steps of an order that Restate has not logged yet.
func (w Order) Run(ctx restate.WorkflowContext, o order) (string, error) {
	for _, step := range steps {
		err := restate.RunVoid(ctx, func(ctx restate.RunContext) error {
			_, err := w.pool.Exec(ctx, step.sql, step.args(o)...)
			return err
		}, restate.WithName(step.name))
		if err != nil {
			return "", err
		}
	}
	return "completed", nil
}

func runRestate(ctx context.Context) error {
	pool, err := openPool(ctx)
	if err != nil {
		return err
	}
	logs := slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})
	return server.NewRestate().WithLogger(logs, true).Bind(restate.Reflect(Order{pool})).Start(ctx, address())
}
