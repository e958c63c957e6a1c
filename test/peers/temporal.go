package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	"github.com/jackc/pgx/v5"
	"go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"google.golang.org/protobuf/types/known/durationpb"

	"pawl/test/bench/machine"
)

// Temporal is a server that keeps its histories in PostgreSQL, and a worker with the code. An order is a workflow of
// three activities, or of three local activities, which the worker runs itself and records together: the documentation
// recommends these, and that client and worker share a process, for the least latency
// (https://docs.temporal.io/design-patterns/performance-latency-patterns).
var (
	temporalPeer = peer{name: "Temporal", engine: startTemporal, code: runTemporal, effects: true, patience: 60 * time.Second}
	localPeer    = peer{name: "Temporal, local activities", engine: startTemporal, code: runLocalTemporal, effects: true, patience: 60 * time.Second}
)

// The version of the server that prepare builds, and the names of its programs.
const (
	temporalModule = "go.temporal.io/server"
	temporalServer = "server"
	temporalTool   = "sql"
	temporalStore  = "temporal" // also a database, as is its other one
	visibility     = "temporal_visibility"
)

// temporalConfig has the limits of requests raised, which would hold back one client of a small server. 16 shards were
// faster here than 4, the default; the documentation says how many a production server needs, which is more.
var temporalConfig = template.Must(template.New("").Parse(`
log: {stdout: true, level: error}
persistence:
  defaultStore: default
  visibilityStore: visibility
  numHistoryShards: 16
  datastores:
    default: {sql: {pluginName: postgres12_pgx, databaseName: temporal, connectAddr: "127.0.0.1:5432", connectProtocol: tcp, user: pawl,
      connectAttributes: {host: {{.Socket}}}, maxConns: 64, maxIdleConns: 64, maxConnLifetime: 1h}}
    visibility: {sql: {pluginName: postgres12_pgx, databaseName: temporal_visibility, connectAddr: "127.0.0.1:5432", connectProtocol: tcp, user: pawl,
      connectAttributes: {host: {{.Socket}}}, maxConns: 10, maxIdleConns: 10, maxConnLifetime: 1h}}
global: {membership: {maxJoinDuration: 30s, broadcastAddress: 127.0.0.1}}
services:
  frontend: {rpc: {grpcPort: {{index .Ports 0}}, membershipPort: {{index .Ports 1}}, bindOnIP: 127.0.0.1, httpPort: {{index .Ports 2}}}}
  matching: {rpc: {grpcPort: {{index .Ports 3}}, membershipPort: {{index .Ports 4}}, bindOnIP: 127.0.0.1}}
  history: {rpc: {grpcPort: {{index .Ports 5}}, membershipPort: {{index .Ports 6}}, bindOnIP: 127.0.0.1}}
  worker: {rpc: {grpcPort: {{index .Ports 7}}, membershipPort: {{index .Ports 8}}, bindOnIP: 127.0.0.1}}
clusterMetadata:
  failoverVersionIncrement: 10
  masterClusterName: active
  currentClusterName: active
  clusterInformation: {active: {enabled: true, initialFailoverVersion: 1, rpcName: frontend, rpcAddress: "127.0.0.1:{{index .Ports 0}}"}}
dcRedirectionPolicy: {policy: noop}
archival: {history: {state: disabled}, visibility: {state: disabled}}
dynamicConfigClient: {filepath: {{.Dynamic}}, pollInterval: 1h}
`))

var temporalLimits = []string{
	"frontend.rps", "frontend.namespaceRPS", "frontend.persistenceMaxQPS", "frontend.namespaceCount", "history.rps",
	"history.persistenceMaxQPS", "matching.rps", "matching.persistenceMaxQPS", "system.visibilityPersistenceMaxWriteQPS",
}

func startTemporal(ctx context.Context, s *site) (*machine.Process, error) {
	if err := s.temporalDatabases(ctx); err != nil {
		return nil, err
	}
	ports := freePorts(9)
	values := struct {
		Socket, Dynamic string
		Ports           []int
	}{s.socket(), filepath.Join(s.folder, "dynamic.yaml"), ports}
	s.engineAddress = at(ports[0])
	var text, limits strings.Builder
	if err := temporalConfig.Execute(&text, values); err != nil {
		return nil, err
	}
	for _, name := range temporalLimits {
		fmt.Fprintf(&limits, "%s: [{value: 100000}]\n", name)
	}
	fmt.Fprint(&limits, "frontend.enableServerVersionCheck: [{value: false}]\n")
	config := filepath.Join(s.folder, "temporal.yaml")
	if err := errors.Join(os.WriteFile(values.Dynamic, []byte(limits.String()), 0o600), os.WriteFile(config, []byte(text.String()), 0o600)); err != nil {
		return nil, err
	}
	return s.run(ctx, exec.Command(filepath.Join(s.tools, temporalServer), "--allow-no-auth", "--config-file", config, "start"), s.namespaceExists)
}

// temporalDatabases creates the databases of the server. The first are also kept as templates, since its tool is slow.
func (s *site) temporalDatabases(ctx context.Context) error {
	for _, name := range []string{temporalStore, visibility} {
		kept := name + "_template"
		var there bool
		if err := s.admin.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`, kept).Scan(&there); err != nil {
			return fmt.Errorf("look for database: %w", err)
		}
		if there {
			if err := s.create(ctx, name, kept); err != nil {
				return err
			}
			continue
		}
		if err := s.create(ctx, name, "template1"); err != nil {
			return err
		}
		if err := s.temporalSchema(ctx, name); err != nil {
			return err
		}
		if err := s.create(ctx, kept, name); err != nil {
			return err
		}
	}
	return nil
}

func (s *site) temporalSchema(ctx context.Context, name string) error {
	for _, do := range [][]string{{"setup-schema", "-v", "0.0"}, {"update-schema", "--schema-name", "postgresql/v12/" + strings.TrimPrefix(name, "temporal_")}} {
		args := append([]string{"--plugin", "postgres12_pgx", "--ep", "127.0.0.1", "-p", "5432", "-u", "pawl", "--db", name,
			"--connect-attributes", "host=" + s.socket()}, do...)
		if out, err := exec.CommandContext(ctx, filepath.Join(s.tools, temporalTool), args...).CombinedOutput(); err != nil {
			return fmt.Errorf("create schema of Temporal: %w: %.2000s", err, out)
		}
	}
	return nil
}

// socket is the folder of the socket of PostgreSQL.
func (s *site) socket() string {
	config, err := pgx.ParseConfig(s.url)
	if err != nil {
		return ""
	}
	return config.Host
}

func (s *site) namespaceExists(ctx context.Context) error {
	c, err := client.NewNamespaceClient(client.Options{HostPort: s.engineAddress, Logger: quiet})
	if err != nil {
		return err
	}
	defer c.Close()
	err = c.Register(ctx, &workflowservice.RegisterNamespaceRequest{
		Namespace: client.DefaultNamespace, WorkflowExecutionRetentionPeriod: durationpb.New(24 * time.Hour),
	})
	if _, there := errors.AsType[*serviceerror.NamespaceAlreadyExists](err); there {
		return nil
	}
	return err
}

var quiet = log.NewStructuredLogger(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})))

func runTemporal(ctx context.Context) error {
	return temporalWorker(ctx, func(ctx workflow.Context, o order) error {
		ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: 10 * time.Second})
		for _, step := range steps {
			if err := workflow.ExecuteActivity(ctx, step.name, o).Get(ctx, nil); err != nil {
				return err
			}
		}
		return nil
	})
}

func runLocalTemporal(ctx context.Context) error {
	return temporalWorker(ctx, func(ctx workflow.Context, o order) error {
		ctx = workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{StartToCloseTimeout: 10 * time.Second})
		for _, step := range steps {
			if err := workflow.ExecuteLocalActivity(ctx, step.name, o).Get(ctx, nil); err != nil {
				return err
			}
		}
		return nil
	})
}

// temporalWorker scales its pollers, as https://docs.temporal.io/develop/worker-performance/configuration recommends.
func temporalWorker(ctx context.Context, process func(workflow.Context, order) error) error {
	pool, err := openPool(ctx)
	if err != nil {
		return err
	}
	c, err := client.Dial(client.Options{HostPort: os.Getenv("ENGINE"), Logger: quiet})
	if err != nil {
		return err
	}
	const queue = "orders"
	pollers := worker.NewPollerBehaviorAutoscaling(worker.PollerBehaviorAutoscalingOptions{})
	w := worker.New(c, queue, worker.Options{WorkflowTaskPollerBehavior: pollers, ActivityTaskPollerBehavior: pollers})
	w.RegisterWorkflowWithOptions(process, workflow.RegisterOptions{Name: "order"})
	for _, step := range steps {
		w.RegisterActivityWithOptions(func(ctx context.Context, o order) error {
			_, err := pool.Exec(ctx, step.sql, step.args(o)...)
			return err
		}, activity.RegisterOptions{Name: step.name})
	}
	if err := w.Start(); err != nil {
		return fmt.Errorf("start worker: %w", err)
	}
	return serve(func(ctx context.Context, o order) error {
		run, err := c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{
			ID: o.ID, TaskQueue: queue, EnableEagerStart: true, WorkflowIDReusePolicy: enums.WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE,
		}, "order", o)
		if err != nil {
			return err
		}
		return run.Get(ctx, nil)
	})
}
