package demo

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"pawl/internal/console"
	"pawl/internal/pgembed"
	"pawl/test/assert"
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
		assert.NoError(t, err)
		s := &stage{Options: Options{Program: program, Dir: t.TempDir()}, database: &pgembed.Server{}, provider: &process{}}
		proof := s.prove(t.Context())
		assert.True(t, proof.Checks == 0 && strings.Contains(proof.Wrong, c.says), c.program, proof)
	}
}

// TestStalled: the lab says why no order ends and what to press, and nothing while orders end.
func TestStalled(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		states [2]string
		rules  []string
		since  time.Duration
		says   string
	}{
		{[2]string{console.LabServes, console.LabDead}, away.Rules, time.Second, ""},
		{[2]string{console.LabServes, console.LabDead}, away.Rules, time.Minute, "Press Works"},
		{[2]string{console.LabServes, console.LabServes}, []string{"hang"}, time.Minute, "your own rules"},
		{[2]string{console.LabServes, console.LabServes}, nil, time.Minute, "until one succeeds"},
		{[2]string{console.LabDead, console.LabStopped}, nil, time.Second, "Press Start or Continue"},
		{[2]string{console.LabDead, console.LabStarting}, nil, time.Second, "One is starting"},
	} {
		now := &console.LabState{Rules: c.rules, Books: console.LabBooks{UnderWay: 16}}
		for _, state := range c.states {
			now.Replicas = append(now.Replicas, console.LabReplica{State: state})
		}
		says := stalled(now, c.since)
		assert.True(t, (c.says != "" || says == "") && strings.Contains(says, c.says), c, says)
	}
	assert.Contains(t, fmt.Sprint(checkRules([]string{"hang", "nonsense"})), `rule "nonsense": there is no fault "nonsense"; there are approve, decline, `)
}

// TestReplicaThatDoesNotStart: it is not reported as serving, and the demonstration ends.
func TestReplicaThatDoesNotStart(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("false")
	assert.NoError(t, err)
	front, err := console.ListenLocal(0)
	assert.NoError(t, err)
	t.Cleanup(func() { _ = front.Close() })
	var out bytes.Buffer
	s := &stage{Options: Options{Program: program, Dir: t.TempDir()}, database: &pgembed.Server{}, front: front}
	s.table = table{out: &out, tally: &s.tally}
	ctx, stop := context.WithCancel(t.Context())
	s.stop = stop
	exited := make(chan struct{})
	close(exited)
	s.replicas[0].process = &process{exited: exited}
	s.restart(0)
	s.restarts.Wait()
	assert.True(t, ctx.Err() != nil && s.failed != nil && strings.Contains(s.failed.Error(), "pawl serve has ended: exit status 1") && out.Len() == 0,
		ctx.Err(), s.failed, &out)
}
