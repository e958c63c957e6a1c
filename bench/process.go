package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// The kernel counts processor time in ticks of 1/100 s on every platform Linux
// runs Go on (USER_HZ, proc(5)).
const tick = 10 * time.Millisecond

// stat is what /proc/<pid>/stat says of one process.
type stat struct {
	name     string
	parent   int
	own      time.Duration // user and system time of all its threads
	children time.Duration // the same of its children that have ended
}

func readStat(pid int) (stat, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	return parseStat(text)
}

// parseStat reads fields 2, 4 and 14 to 17. The name stands in parentheses and may
// itself hold blanks and parentheses, so the last one ends it.
func parseStat(text []byte) (stat, error) {
	begin, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if begin < 0 || end < begin {
		return stat{}, errors.New("no process name in stat")
	}
	fields := strings.Fields(string(text[end+1:]))
	if len(fields) < 15 {
		return stat{}, errors.New("stat is too short")
	}
	var n [15]int64
	for _, i := range []int{1, 11, 12, 13, 14} {
		v, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return stat{}, fmt.Errorf("parse stat: %w", err)
		}
		n[i] = v
	}
	return stat{
		name: string(text[begin+1 : end]), parent: int(n[1]),
		own: time.Duration(n[11]+n[12]) * tick, children: time.Duration(n[13]+n[14]) * tick,
	}, nil
}

// treeTime is the processor time of a process and of all its descendants, those that
// have ended included: PostgreSQL starts a process per connection.
func treeTime(root int) (time.Duration, error) {
	top, err := readStat(root)
	if err != nil {
		return 0, err
	}
	all, err := allStats()
	if err != nil {
		return 0, err
	}
	all[root] = top
	var sum time.Duration
	for pid, s := range all {
		if under(all, pid, root) {
			sum += s.own + s.children
		}
	}
	return sum, nil
}

func under(all map[int]stat, pid, root int) bool {
	for pid > 1 {
		if pid == root {
			return true
		}
		pid = all[pid].parent
	}
	return false
}

func allStats() (map[int]stat, error) {
	folders, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	all := map[int]stat{}
	for _, folder := range folders {
		pid, err := strconv.Atoi(filepath.Base(folder))
		if err != nil {
			continue
		}
		if s, err := readStat(pid); err == nil { // else it has just ended
			all[pid] = s
		}
	}
	return all, nil
}

// peakMemory is the most resident memory a process ever had, in bytes.
func peakMemory(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.Fields(value)[0], 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("no VmHWM in status")
}

// busyTime is the processor time the whole machine has spent on anything but idling,
// what its host took from it included (proc(5), "steal").
func busyTime() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(line) // cpu user nice system idle iowait irq softirq steal guest…
	if len(fields) < 9 {
		return 0, errors.New("no cpu line in /proc/stat")
	}
	var sum time.Duration
	for _, i := range []int{1, 2, 3, 6, 7, 8} {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("parse /proc/stat: %w", err)
		}
		sum += time.Duration(n) * tick
	}
	return sum, nil
}
