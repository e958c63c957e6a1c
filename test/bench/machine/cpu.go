// Package machine is what measurements share: a PostgreSQL with settings that matter, and what processes cost. It reads
// proc(5), so it needs Linux.
package machine

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"time"

	"github.com/prometheus/procfs"
)

// Tick is the unit in which the kernel counts processor time, on every platform on which Linux runs Go (USER_HZ,
// proc(5)).
const Tick = 10 * time.Millisecond

// TreeTime is the processor time of a process and of all its descendants, including those that have ended: PostgreSQL
// starts a process per connection.
func TreeTime(root int) (time.Duration, error) {
	processes, err := procfs.AllProcs()
	if err != nil {
		return 0, err
	}
	all := map[int]procfs.ProcStat{}
	for _, p := range processes {
		if s, err := p.Stat(); err == nil { // otherwise it has just ended
			all[p.PID] = s
		}
	}
	if _, there := all[root]; !there {
		return 0, fmt.Errorf("process %d has ended", root)
	}
	var sum time.Duration
	for pid, s := range all {
		if under(all, pid, root) {
			sum += time.Duration(int(s.UTime+s.STime)+s.CUTime+s.CSTime) * Tick
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

// BusyTime is the processor time of the whole machine except idle time, including the time that its host took (proc(5),
// "steal").
func BusyTime() (time.Duration, error) {
	machine, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, err
	}
	stat, err := machine.Stat()
	cpu := stat.CPUTotal
	return time.Duration((cpu.User + cpu.Nice + cpu.System + cpu.IRQ + cpu.SoftIRQ + cpu.Steal) * float64(time.Second)), err
}

// FreePort returns a TCP port of the loopback interface that is free. It is below those that the system gives to
// connections, so none of them takes it before a server starts, and under 32,768: Temporal stores its own as int2.
func FreePort() int {
	for {
		port := 20_000 + rand.IntN(12_000)
		listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			listener.Close()
			return port
		}
	}
}
