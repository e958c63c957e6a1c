package main

import (
	"os"
	"os/exec"
	"testing"
	"time"
)

func TestStatNameMayHoldParentheses(t *testing.T) {
	t.Parallel()
	s, err := parseStat([]byte("42 (a) (b c) S 7 1 1 0 -1 4194560 1 0 0 0 150 50 300 100 20 0 1 0 9 1 1"))
	if err != nil {
		t.Fatal(err)
	}
	if s.name != "a) (b c" || s.parent != 7 || s.own != 2*time.Second || s.children != 4*time.Second {
		t.Errorf("parsed %+v", s)
	}
}

func TestTreeTimeCountsChildrenThatHaveEnded(t *testing.T) {
	t.Parallel()
	before, err := treeTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command("sh", "-c", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done")
	if err := child.Run(); err != nil {
		t.Fatal(err)
	}
	used := child.ProcessState.UserTime() + child.ProcessState.SystemTime()
	after, err := treeTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if after-before < used-2*tick {
		t.Errorf("tree used %v more, the child alone %v", after-before, used)
	}
}

func TestPeakMemoryIsOfTheProcess(t *testing.T) {
	t.Parallel()
	if peak, err := peakMemory(os.Getpid()); err != nil || peak < 1<<20 {
		t.Errorf("peak %d, %v", peak, err)
	}
}
