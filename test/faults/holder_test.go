package faults

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"pawl/test/dbtest"
)

// fleet is two replicas, each with a wire of its own to the database. One of them holds what is looked at: it is the one that
// sends a certain statement, again and again.
type fleet struct {
	t         *testing.T
	database  *dbtest.Database
	statement string
	wires     [2]*dbtest.Proxy
	replicas  [2]*replicas

	mu     sync.Mutex
	sender int // of the last such statement
	times  int // that it has sent it since the other one did
}

func openFleet(t *testing.T, statement string, flags ...string) *fleet {
	t.Helper()
	f := &fleet{t: t, database: dbtest.New(t), statement: statement}
	for i := range f.wires {
		f.wires[i] = dbtest.NewProxy(t, f.database.URL)
		f.heal(i)
		f.replicas[i] = startReplicas(t, 1, f.wires[i].URL, append(slices.Clone(hasty), flags...)...)
	}
	stockUp(t, f.replicas[0].addresses()[0], scarce, stock)
	return f
}

func (f *fleet) any(random *rand.Rand) string {
	return f.replicas[random.IntN(len(f.replicas))].addresses()[0]
}

func (f *fleet) process(i int) *process { return f.replicas[i].all[0] }

// heal lets pass whatever a replica sends.
func (f *fleet) heal(i int) {
	f.wires[i].On(func(statement string) dbtest.Fate {
		if statement == f.statement {
			f.sent(i)
		}
		return dbtest.Passes
	})
}

func (f *fleet) sent(i int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sender != i {
		f.times = 0
	}
	f.sender = i
	f.times++
}

// holder waits until it is clear who holds: one statement may be a late one.
func (f *fleet) holder() (i int) {
	f.t.Helper()
	f.mu.Lock()
	f.times = 0
	f.mu.Unlock()
	eventually(f.t, patience, "one of them holds", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		i = f.sender
		return f.times >= 3
	})
	return i
}

// fleetFault is what becomes of the holder when it sends its statement. Afterwards it is as before, or replaced.
type fleetFault struct {
	name   string
	fate   dbtest.Fate
	signal syscall.Signal // for the process, where a request or a reply was lost
	late   bool           // the statement is on its way until another one holds
	rest   dbtest.Fate    // of all that it sends until then
}

var fleetFaults = []fleetFault{
	{name: "killed before the server has heard it", fate: dbtest.LoseRequest, signal: syscall.SIGKILL},
	{name: "killed before it has heard the server", fate: dbtest.LoseReply, signal: syscall.SIGKILL},
	{name: "stopped for longer than its lease", fate: dbtest.LoseReply, signal: syscall.SIGSTOP},
	{name: "heard by the server when another one holds", late: true, rest: dbtest.HushRequest},
	{name: "cut off from the database", fate: dbtest.HushRequest, rest: dbtest.HushRequest},
}

// strike does it to the holder, once, and waits until another one holds.
func (f *fleet) strike(fault fleetFault, taken func() bool) {
	f.t.Helper()
	i := f.holder()
	var struck atomic.Bool
	released := make(chan struct{})
	defer f.recover(i, fault)
	defer close(released)
	f.wires[i].OnLost(sync.OnceFunc(func() {
		if fault.signal != 0 {
			f.process(i).signal(fault.signal)
		}
	}))
	f.wires[i].On(func(statement string) dbtest.Fate {
		switch {
		case statement != f.statement && !struck.Load():
			return dbtest.Passes
		case statement != f.statement || struck.Swap(true):
			return fault.rest
		case fault.late:
			<-released
		}
		return fault.fate
	})
	eventually(f.t, patience, fault.name+": another one holds", func() bool { return struck.Load() && taken() })
}

// recover makes a replica as it was, or a new one in its place.
func (f *fleet) recover(i int, fault fleetFault) {
	f.t.Helper()
	f.wires[i].OnLost(func() {})
	f.heal(i)
	switch fault.signal {
	case syscall.SIGKILL:
		f.process(i).kill()
		f.replicas[i].replace(0)
	case syscall.SIGSTOP:
		f.process(i).signal(syscall.SIGCONT)
	default:
	}
}
