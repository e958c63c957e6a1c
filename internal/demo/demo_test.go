package demo

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"pawl/internal/pgembed"
)

// TestProofThatFails: a proof without a result does not count as a success.
func TestProofThatFails(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ program, says string }{
		{"false", "exit status 1"}, // and no word
		{"true", "exit status 0"},
		{"ls", "option"}, // complains of its arguments
	} {
		program, err := exec.LookPath(c.program)
		if err != nil {
			t.Fatal(err)
		}
		s := &stage{Options: Options{Program: program, Dir: t.TempDir()}, database: &pgembed.Server{}, provider: &child{}}
		if proof := s.proveOnce(t.Context()); proof.Checks != 0 || !strings.Contains(proof.Wrong, c.says) {
			t.Errorf("%s: %+v", c.program, proof)
		}
	}
}

// TestReplicaThatDoesNotStart: it is not reported as serving, and the demonstration ends.
func TestReplicaThatDoesNotStart(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := &stage{starting: 1, restarted: make(chan restart, 1), over: make(chan struct{})}
	s.table = table{out: &out, tally: &s.tally}
	wrong := errors.New("it has ended")
	s.restarted <- restart{1, wrong}
	err := s.disturb(context.WithoutCancel(t.Context()), func() {}, make(chan struct{}))
	if !errors.Is(err, wrong) || strings.Contains(out.String(), "serves again") {
		t.Errorf("%v\n%s", err, &out)
	}
}
