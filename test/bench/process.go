package main

import (
	"fmt"
	"time"

	"github.com/prometheus/procfs"
)

// The kernel counts processor time in ticks of 1/100 s on every platform Linux
// runs Go on (USER_HZ, proc(5)).
const tick = 10 * time.Millisecond

// treeTime is the processor time of a process and of all its descendants, those that
// have ended included: PostgreSQL starts a process per connection.
func treeTime(root int) (time.Duration, error) {
	processes, err := procfs.AllProcs()
	if err != nil {
		return 0, err
	}
	all := map[int]procfs.ProcStat{}
	for _, p := range processes {
		if s, err := p.Stat(); err == nil { // else it has just ended
			all[p.PID] = s
		}
	}
	if _, there := all[root]; !there {
		return 0, fmt.Errorf("process %d has ended", root)
	}
	var sum time.Duration
	for pid, s := range all {
		if under(all, pid, root) {
			sum += time.Duration(int(s.UTime+s.STime)+s.CUTime+s.CSTime) * tick
		}
	}
	return sum, nil
}

func under(all map[int]procfs.ProcStat, pid, root int) bool {
	for pid > 1 {
		if pid == root {
			return true
		}
		pid = all[pid].PPID
	}
	return false
}

// peakMemory is the most resident memory a process ever had, in bytes.
func peakMemory(pid int) (uint64, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	status, err := p.NewStatus()
	return status.VmHWM, err
}

// busyTime is the processor time the whole machine has spent on anything but idling,
// what its host took from it included (proc(5), "steal").
func busyTime() (time.Duration, error) {
	machine, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, err
	}
	stat, err := machine.Stat()
	cpu := stat.CPUTotal
	return time.Duration((cpu.User + cpu.Nice + cpu.System + cpu.IRQ + cpu.SoftIRQ + cpu.Steal) * float64(time.Second)), err
}
