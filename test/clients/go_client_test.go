package clients

import (
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"pawl/client"
	"pawl/test/assert"
)

// TestGoClient uses the operations of the Go client on a running service, each with every kind of parameter that it has.
// What clients do when something is in their way is in clients/cases.json.
func TestGoClient(t *testing.T) {
	t.Parallel()
	s := serve(t)
	api, err := client.New(s.url, client.Options{})
	must(t, err == nil, err)
	t.Run("program of the README", func(t *testing.T) {
		t.Parallel()
		runProgram(t, s.url)
	})
	for name, use := range map[string]func(*testing.T, *client.Client){
		"money": useMoney, "stock": useStock, "refunds": useRefunds, "verbs": useVerbs, "bulk": useBulk,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			use(t, api)
		})
	}
}

// useMoney reads back what was sent, to the last digit.
func useMoney(t *testing.T, api *client.Client) {
	t.Helper()
	ctx := t.Context()
	for _, sent := range []string{"16777217.25", "999999999999999.99", "99.90"} {
		done, err := api.Process(ctx, client.ProcessBody{Amount: sent, Item: "gold", CustomerID: "rich"})
		must(t, err == nil && done.Amount == sent && done.Status == client.StatusCompleted, err, done)
		read, err := api.GetOrder(ctx, done.OrderID)
		must(t, err == nil && read.Amount == sent, err, read)
		page, err := api.ListOrders(ctx, client.ListOrdersParams{CustomerID: "rich", Limit: 1, Status: []client.Status{client.StatusCompleted, client.StatusFailed}, CreatedFrom: done.CreatedAt})
		must(t, err == nil && page.Orders[0].Amount == sent, err, page)
	}
}

// useStock sells what there is, and starts the order again that got none.
func useStock(t *testing.T, api *client.Client) {
	t.Helper()
	ctx := t.Context()
	var answer http.Response
	set, err := api.SetInventory(ctx, "go-boat", client.SetInventoryBody{Reason: "count"}, client.WithResponse(&answer), client.SetInventoryParams{IfNoneMatch: "*"})
	must(t, err == nil && set.Tracked && *set.Available == 0, err, set)
	_, err = api.SetInventory(ctx, "go-boat", client.SetInventoryBody{OnHand: 5})
	must(t, problem(err).Code == client.ProblemCodePreconditionRequired, err)
	failed := process(t, api, client.ProcessBody{OrderID: "go-none", Item: "go-boat"})
	must(t, failed.Status == client.StatusFailed && failed.Failure.Code == "out_of_stock" && failed.Steps.Charge.Undone, failed)
	set, err = api.SetInventory(ctx, "go-boat", client.SetInventoryBody{OnHand: 1}, client.SetInventoryParams{IfMatch: answer.Header.Get("ETag")})
	must(t, err == nil && *set.Available == 1, err, set)
	retried, err := api.RetryOrder(ctx, "go-none", client.RetryBody{OnBehalfOf: "ann", Generation: new(int)}, client.RetryOrderParams{IdempotencyKey: "go-retry"})
	must(t, err == nil && retried.Status == client.StatusCompleted, err, retried)
	for range 2 {
		found, err := api.AdjustInventory(ctx, "go-boat", client.AdjustInventoryBody{Change: 2, Reason: "found"}, client.AdjustInventoryParams{IdempotencyKey: "go-found"})
		must(t, err == nil && found.OnHand == 2, err, found)
	}
	item, err := api.GetInventory(ctx, "go-boat")
	must(t, err == nil && item.OnHand == 2, err, item)
	listed := 0
	for item, err := range api.Items(ctx) {
		must(t, err == nil, err)
		if item.Item == "go-boat" {
			listed++
		}
	}
	must(t, listed == 1, listed)
	moved, err := api.ListStockMovements(ctx, "go-boat", client.ListStockMovementsParams{Limit: 9})
	must(t, err == nil && len(moved.Movements) == 3 && moved.Movements[2].Change == 2, err, moved)
	calls, err := api.ListCalls(ctx, "go-none")
	must(t, err == nil && len(calls.Calls) == 0, err, calls)
}

// useRefunds gives back a part of an order, and then the rest.
func useRefunds(t *testing.T, api *client.Client) {
	t.Helper()
	ctx := t.Context()
	process(t, api, client.ProcessBody{OrderID: "go-broken", Item: "gold"})
	for range 2 {
		once, err := api.RefundOrder(ctx, "go-broken", client.RefundBody{Amount: new("0.40"), Reason: "scratched", RequestID: "go-first"})
		must(t, err == nil && once.Refunded == "0.40" && len(once.Refunds) == 1, err, once)
	}
	rest, err := api.RefundOrder(ctx, "go-broken", client.RefundBody{Reason: "broken"}, client.RefundOrderParams{IdempotencyKey: "go-second"})
	must(t, err == nil && rest.Refunded == "1.50" && rest.Status == client.StatusCompleted, err, rest)
	must(t, rest.Refunds[1].Amount == "1.10" && rest.Refunds[1].State == client.RefundStateDone, rest)
	var sum []string
	for move, err := range api.MoneyMovements(ctx, client.ListMoneyMovementsParams{From: rest.CreatedAt}) {
		must(t, err == nil, err)
		if move.OrderID == "go-broken" {
			sum = append(sum, move.Amount)
		}
	}
	must(t, strings.Join(sum, " ") == "-1.10 -0.40 1.50", sum)
	_, err = api.RefundOrder(ctx, "go-broken", client.RefundBody{Amount: new("0.40"), Reason: "more"})
	must(t, problem(err).Code == client.ProblemCodeRefundTooLarge, err)
}

// useVerbs asks each verb but retry of an order that waits, with every parameter that it has.
func useVerbs(t *testing.T, api *client.Client) {
	t.Helper()
	ctx := t.Context()
	waits := process(t, api, client.ProcessBody{OrderID: "go-waits", Item: "car", StartAt: time.Now().Add(time.Hour)})
	must(t, waits.Hold == client.OrderHoldScheduled, waits)
	_, err := api.GetOrder(ctx, "go-waits", client.GetOrderParams{IfNoneMatch: waits.ETag()})
	must(t, errors.Is(err, client.ErrNotModified), err)
	dry, err := api.PauseOrder(ctx, "go-waits", client.VerbBody{}, client.PauseOrderParams{DryRun: true})
	must(t, err == nil && dry.Hold == client.OrderHoldPaused && dry.DryRun, err, dry)
	_, err = api.PauseOrder(ctx, "go-waits", client.VerbBody{}, client.PauseOrderParams{IfMatch: `"77"`})
	must(t, problem(err).Status == http.StatusPreconditionFailed, err)
	var answer http.Response
	paused, err := api.PauseOrder(ctx, "go-waits", client.VerbBody{}, client.WithResponse(&answer), client.PauseOrderParams{Prefer: "respond-async"})
	must(t, err == nil && answer.StatusCode == http.StatusAccepted && paused.Hold == client.OrderHoldPaused, err, paused)
	resumed, err := api.ResumeOrder(ctx, "go-waits", client.VerbBody{}, client.ResumeOrderParams{Prefer: "wait=1"})
	must(t, err == nil && resumed.Hold == client.OrderHoldScheduled, err, resumed)
	canceled, err := api.CancelOrder(ctx, "go-waits", client.VerbBody{Reason: "too late"})
	must(t, err == nil && canceled.Status == client.StatusCanceled && canceled.Status.Final(), err, canceled)
	_, err = api.SettleStepOfOrder(ctx, "go-waits", client.StepResultBody{Step: "charge", Outcome: "done", Reason: "seen"})
	must(t, problem(err).Order.Status == client.StatusCanceled, err)

	process(t, api, client.ProcessBody{OrderID: "go-large", Item: "yacht"})
	approved, err := api.ApproveOrder(ctx, "go-large", client.VerbBody{OnBehalfOf: "ann"})
	must(t, err == nil && approved.Status == client.StatusCompleted, err, approved)
	process(t, api, client.ProcessBody{OrderID: "go-larger", Item: "yacht"})
	rejected, err := api.RejectOrder(ctx, "go-larger", client.VerbBody{OnBehalfOf: "ann"})
	must(t, err == nil && rejected.Failure.Code == "rejected", err, rejected)
}

func useBulk(t *testing.T, api *client.Client) {
	t.Helper()
	ctx := t.Context()
	process(t, api, client.ProcessBody{OrderID: "go-many", Item: "yacht"})
	out, err := api.ApplyBulkVerb(ctx, client.BulkVerbReject, client.BulkBody{IDs: []string{"go-many", "go-nobody"}, OnBehalfOf: "ann"})
	must(t, err == nil && out.Applied == 1 && out.Results[1].Code == client.ProblemCodeNotFound, err, out)
	health, err := api.Health(ctx)
	must(t, err == nil && health.Status == client.HealthStatusOk, err, health)
}

// process sends an order and returns it as it is answered, final or not.
func process(t *testing.T, api *client.Client, body client.ProcessBody) *client.Order {
	t.Helper()
	body.Amount = "1.50"
	order, err := api.Process(t.Context(), body)
	must(t, err == nil, err)
	return order
}

// problem is the problem in an error, or none.
func problem(err error) *client.Problem {
	found := &client.Problem{}
	errors.As(err, &found)
	return found
}

func must(t *testing.T, ok bool, saw ...any) {
	t.Helper()
	assert.Require(t, ok, saw)
}

// runProgram runs the program of the README as it is printed.
func runProgram(t *testing.T, url string) {
	t.Helper()
	readme, err := os.ReadFile("../../client/README.md")
	must(t, err == nil, err)
	program := regexp.MustCompile("(?s)```go\n(package main.*?)```").FindSubmatch(readme)
	must(t, program != nil, "no program in the README")
	file := filepath.Join(t.TempDir(), "main.go")
	write(t, file, program[1])
	command := exec.CommandContext(t.Context(), "go", "run", file)
	command.Env = append(os.Environ(), "PAWL_URL="+url)
	said, err := command.CombinedOutput()
	must(t, err == nil && regexp.MustCompile(`^[0-9a-f-]{36} completed 29\.99\n$`).Match(said), err, string(said))
}
