package clients

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"pawl/client"
	"pawl/test/assert"
)

// TestGoClient runs the program of the README as it is printed, and asks for an order that has not changed. What clients do when
// something is in their way is in clients/cases.json; the console and the commands use the other operations in their tests.
func TestGoClient(t *testing.T) {
	t.Parallel()
	s := serve(t)
	readme, err := os.ReadFile("../../client/README.md")
	assert.NoError(t, err)
	program := regexp.MustCompile("(?s)```go\n(package main.*?)```").FindSubmatch(readme)
	assert.Require(t, program != nil, "no program in the README")
	file := filepath.Join(t.TempDir(), "main.go")
	write(t, file, program[1])
	command := exec.CommandContext(t.Context(), "go", "run", file)
	command.Env = append(os.Environ(), "PAWL_URL="+s.url)
	said, err := command.CombinedOutput()
	assert.True(t, err == nil && regexp.MustCompile(`^[0-9a-f-]{36} completed 29\.99\n$`).Match(said), err, string(said))

	api, err := client.New(s.url, client.Options{})
	assert.NoError(t, err)
	done, err := api.Process(t.Context(), client.ProcessBody{Amount: "1.50", Item: "gold"})
	assert.NoError(t, err)
	_, err = api.GetOrder(t.Context(), done.OrderID, client.GetOrderParams{IfNoneMatch: done.ETag()})
	assert.ErrorIs(t, err, client.ErrNotModified)
}
