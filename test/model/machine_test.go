package model_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"pawl/fsm"
	"pawl/test/assert"
)

var update = flag.Bool("update", false, "write machine.pml")

// machineFile is what the models know of the machine.
const machineFile = "machine.pml"

func TestMachineIsGenerated(t *testing.T) {
	t.Parallel()
	if *update {
		assert.NoError(t, os.WriteFile(machineFile, []byte(machine()), 0o644))
	}
	stored, err := os.ReadFile(machineFile)
	assert.NoError(t, err)
	assert.Equal(t, string(stored), machine(),
		machineFile, "is not the machine's any more: go test ./model -run Generated -update")
}

// machine renders states and edges for the preprocessor that Spin uses.
func machine() string {
	var b strings.Builder
	b.WriteString("/* The machine of fsm/, written by go test ./model -run Generated -update. Do not edit. */\n\n")
	var finals, edges []string
	for i, s := range fsm.States() {
		fmt.Fprintf(&b, "#define %-10s %d\n", constant(s), i+1)
		if s.Final() {
			finals = append(finals, fmt.Sprintf("(s) == %s", constant(s)))
		}
	}
	for _, e := range fsm.Edges() {
		edges = append(edges, fmt.Sprintf("(from) == %s && (to) == %s", constant(e.From), constant(e.To)))
	}
	fmt.Fprintf(&b, "\n#define final(s) (%s)\n", strings.Join(finals, " || "))
	fmt.Fprintf(&b, "\n#define legal(from, to) ( \\\n  %s)\n", strings.Join(edges, " || \\\n  "))
	return b.String()
}

func constant(s fsm.State) string { return strings.ToUpper(string(s)) }

// numbered is the edge as a model prints it.
func numbered(e fsm.Edge) string {
	number := map[fsm.State]int{}
	for i, s := range fsm.States() {
		number[s] = i + 1
	}
	return fmt.Sprintf("%d %d", number[e.From], number[e.To])
}
