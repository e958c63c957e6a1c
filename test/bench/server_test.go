package main

import (
	"os"
	"os/exec"
	"testing"
)

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
