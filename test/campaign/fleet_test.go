package campaign

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pawl/internal/pgembed"
	"pawl/test/assert"
	"pawl/test/clocks"
	"pawl/test/dbtest"
)

// yard holds the programs of a run.
type yard struct {
	t      *testing.T
	folder string
	built  map[string]string
}

func newYard(t *testing.T) *yard {
	t.Helper()
	dbtest.ReadSources(t)
	return &yard{t: t, folder: t.TempDir(), built: map[string]string{}}
}

// once is the path of a program that is built when it is first asked for.
func (y *yard) once(name string, build func(path string)) string {
	y.t.Helper()
	if y.built[name] == "" {
		y.built[name] = filepath.Join(y.folder, name)
		build(y.built[name])
	}
	return y.built[name]
}

// present is the program of this work tree.
func (y *yard) present() string {
	return y.once("pawl", func(path string) { y.run("go", "build", "-C", root, "-ldflags=-s -w", "-o", path, ".") })
}

// stepping is the program with a wall clock that can be set.
func (y *yard) stepping() string {
	return y.once("pawl-stepping", func(path string) { clocks.Build(y.t, root, path) })
}

// run runs a command that must succeed.
func (y *yard) run(name string, arguments ...string) {
	y.t.Helper()
	said, err := exec.CommandContext(y.t.Context(), name, arguments...).CombinedOutput()
	assert.NoError(y.t, err, name, arguments, said)
}

// replica is a run of the program as a server.
type replica struct {
	cmd    *exec.Cmd
	folder string
	exited <-chan struct{}
	asked  bool // it was told to end
	served bool
}

// post is the place of a replica: what is started there when it ends, as a service manager does.
type post struct {
	program string
	flags   []string
	env     []string
}

// fleet is the replicas of a campaign. Callers know the last address of each, also while it is dead.
type fleet struct {
	t       *testing.T
	posts   []post
	folder  string
	keepers sync.WaitGroup

	mu        sync.Mutex
	all       []*replica
	urls      []string
	starts    int
	surprises []string // what no replica should do: end unasked, panic
	dismiss   func()   // ends the keepers
}

// startFleet starts a replica at each post and returns when all serve. Until the context ends, each is started again when
// it ends.
func startFleet(ctx context.Context, t *testing.T, posts []post) *fleet {
	t.Helper()
	f := &fleet{t: t, posts: posts, folder: t.TempDir(), all: make([]*replica, len(posts)), urls: make([]string, len(posts))}
	for i := range posts {
		f.launch(i)
		if !f.serves(ctx, i) {
			t.Fatalf("replica %d does not serve:\n%s", i, f.all[i].said("stderr"))
		}
	}
	keeping, dismiss := context.WithCancel(ctx)
	f.dismiss = dismiss
	for i := range posts {
		f.keepers.Go(func() { f.keep(keeping, i) })
	}
	t.Cleanup(f.close)
	return f
}

// launch starts the program at a post.
func (f *fleet) launch(i int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.starts++
	folder := filepath.Join(f.folder, strconv.Itoa(f.starts))
	r := &replica{folder: folder}
	assert.Succeeds(f.t, os.MkdirAll(folder, 0o755))
	p := f.posts[i]
	r.cmd = exec.Command(p.program, append([]string{"serve", "--listen", "127.0.0.1", "--port", "0", "--log-format", "json"}, p.flags...)...)
	r.cmd.Env = append(dbtest.Neutral(), p.env...)
	r.cmd.Dir = folder
	out, err := os.Create(filepath.Join(folder, "stdout"))
	log, err2 := os.Create(filepath.Join(folder, "stderr"))
	assert.True(f.t, err == nil && err2 == nil, err, err2)
	r.cmd.Stdout, r.cmd.Stderr = out, log
	if r.exited, err = pgembed.Launch(r.cmd); err != nil {
		panic(err) // the harness is broken, and this is not the test's goroutine
	}
	out.Close()
	log.Close()
	f.all[i] = r
}

// announcement is a line of the log in JSON. Earlier versions printed it to standard output.
var announcement = regexp.MustCompile(`pawl serves.*?(http://[^",\s]+)`)

// serves waits until the replica says where it serves. It is false when it ends before.
func (f *fleet) serves(ctx context.Context, i int) bool {
	f.mu.Lock()
	r := f.all[i]
	f.mu.Unlock()
	var found []string
	await(ctx, startLimit, func() bool {
		ended := r.ended()
		found = announcement.FindStringSubmatch(r.said("stdout") + r.said("stderr"))
		return found != nil || ended
	})
	if found == nil {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.urls[i], r.served = found[1], true
	return true
}

func (r *replica) said(where string) string {
	text, _ := os.ReadFile(filepath.Join(r.folder, where)) // nothing is said yet
	return string(text)
}

func (r *replica) ended() bool {
	select {
	case <-r.exited:
		return true
	default:
		return false
	}
}

// lastWords are where the log says why the process ended, or its end.
func (r *replica) lastWords() string {
	log := r.said("stderr")
	at := max(0, len(log)-1500)
	for _, words := range []string{"panic: ", "fatal error: "} {
		if i := strings.Index(log, words); i >= 0 {
			at = i
		}
	}
	return log[at:min(at+1500, len(log))]
}

// keep starts a replica again whenever it has ended. One that ended without a reason is remembered; that one can't start
// while the database is away is documented.
func (f *fleet) keep(ctx context.Context, i int) {
	for {
		f.mu.Lock()
		r := f.all[i]
		f.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-r.exited:
		}
		f.mu.Lock()
		if r.served && !r.asked {
			f.surprises = append(f.surprises, fmt.Sprintf("replica %d ended by itself: %s\n%s", i, r.cmd.ProcessState, r.lastWords()))
		}
		f.mu.Unlock()
		if !pause(ctx, 100*time.Millisecond) {
			return
		}
		f.launch(i)
		f.serves(ctx, i)
	}
}

// kill ends a replica as the out-of-memory killer does.
func (f *fleet) kill(i int) { f.signal(i, syscall.SIGKILL) }

// signal sends a signal to a replica.
func (f *fleet) signal(i int, signal syscall.Signal) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if signal == syscall.SIGKILL || signal == syscall.SIGTERM {
		f.all[i].asked = true
	}
	_ = f.all[i].cmd.Process.Signal(signal)
}

// addresses are what callers know.
func (f *fleet) addresses() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.urls)
}

// close ends all replicas.
func (f *fleet) close() {
	f.dismiss()
	f.keepers.Wait()
	for i := range f.posts {
		f.kill(i)
		<-f.all[i].exited
	}
}

// broken reads the logs of all replicas for words that no log may have.
func (f *fleet) broken() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	logs, _ := filepath.Glob(filepath.Join(f.folder, "*", "stderr"))
	for _, log := range logs {
		text, _ := os.ReadFile(log)
		for _, words := range []string{"panic: ", "DATA RACE", "fatal error: "} {
			if strings.Contains(string(text), words) {
				f.surprises = append(f.surprises, "a replica logged "+words)
			}
		}
	}
	return f.surprises
}
