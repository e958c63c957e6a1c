package faults

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"pawl/test/assert"
	"pawl/test/dbtest"
)

// newcomer types the commands of docs/tutorial.md into one shell.
type newcomer struct {
	t     *testing.T
	here  *strings.Replacer // from the names and ports of the page to those of the test
	shell *exec.Cmd
	keys  *os.File
	lines *bufio.Scanner
}

// TestTutorial runs all commands of docs/tutorial.md in order, and compares what they print with what the page shows.
// Its release is the program under test, and its Stripe the simulator.
func TestTutorial(t *testing.T) {
	build(t)
	t.Parallel()
	for _, name := range []string{"curl", "python3", "psql", "tar"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("NOT TESTED: there is no %s here", name)
		}
	}
	page, err := os.ReadFile("../../docs/tutorial.md")
	assert.NoError(t, err)
	n := openShell(t, string(page))
	for _, block := range regexp.MustCompile("(?ms)^```(sh|console)\n(.*?)^```$").FindAllStringSubmatch(string(page), -1) {
		if block[1] == "sh" {
			n.types(block[2])
			if strings.Contains(block[2], "receiver=$!") { // a webhook that comes before it listens is sent again after minutes
				eventually(t, patience, "the receiver listens", func() bool {
					conn, err := net.Dial("tcp", n.here.Replace("127.0.0.1:8080"))
					if err == nil {
						conn.Close()
					}
					return err == nil
				})
			}
			continue
		}
		for command := range strings.SplitSeq(strings.TrimPrefix(block[2], "$ "), "\n$ ") {
			n.sees(command)
		}
	}
	log, err := os.ReadFile(filepath.Join(n.shell.Dir, "pawl.log"))
	assert.NoError(t, err)
	for _, word := range never {
		assert.Equal(t, strings.Count(string(log), word), 0, word)
	}
}

func openShell(t *testing.T, page string) *newcomer {
	t.Helper()
	dir := dbtest.Folder(t)
	release := regexp.MustCompile(`(pawl_\S+)\.tar\.gz`).FindStringSubmatch(page)[1]
	assert.NoError(t, os.Mkdir(filepath.Join(dir, release), 0o755))
	assert.NoError(t, os.Symlink(program(), filepath.Join(dir, release, "pawl")))
	pack := exec.CommandContext(t.Context(), "tar", "-C", dir, "-chzf", filepath.Join(dir, release+".tar.gz"), release)
	pack.Env = append(os.Environ(), "GZIP=-1")
	assert.NoError(t, pack.Run())
	assert.NoError(t, os.RemoveAll(filepath.Join(dir, release)))

	ports := []string{dbtest.FreePort(t), dbtest.FreePort(t), dbtest.FreePort(t)}
	n := &newcomer{t: t, shell: exec.Command("sh")}
	n.here = strings.NewReplacer("localhost:3000", "localhost:"+ports[0], "127.0.0.1:4000", "127.0.0.1:"+ports[1], "localhost:4000", "localhost:"+ports[1],
		"pawl simulate", "pawl simulate --port "+ports[1], "8080", ports[2], "~/.local/share/pawl", dir+"/data",
		"executor: stripe\n", "executor: stripe\n  url: http://127.0.0.1:"+ports[1]+"\n")
	read, out, err := os.Pipe()
	assert.NoError(t, err)
	keys, write, err := os.Pipe()
	assert.NoError(t, err)
	n.shell.Dir, n.shell.Stdin, n.shell.Stdout, n.shell.Stderr = dir, keys, out, out
	n.shell.Env = append(dbtest.Neutral(), "HOME="+dir, "PAWL_DATA_DIR="+dir+"/data", "PAWL_PORT="+ports[0], "PAWL_URL=http://127.0.0.1:"+ports[0])
	n.shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	n.keys, n.lines = write, bufio.NewScanner(read)
	assert.NoError(t, n.shell.Start())
	assert.NoError(t, keys.Close())
	assert.NoError(t, out.Close())
	t.Cleanup(func() {
		logs, _ := filepath.Glob(filepath.Join(dir, "*.log"))
		for _, log := range logs {
			if text, _ := os.ReadFile(log); t.Failed() {
				t.Logf("%s:\n%s", filepath.Base(log), text)
			}
		}
		_ = syscall.Kill(-n.shell.Process.Pid, syscall.SIGKILL) // with all that it has started
		_ = n.shell.Wait()
		write.Close()
		read.Close()
	})
	return n
}

// types runs commands, which must succeed, and returns what they print.
func (n *newcomer) types(commands string) string {
	n.t.Helper()
	const end = "-- ended with "
	assert.NoError(n.t, assert.Err(fmt.Fprintf(n.keys, "%s\nstatus=$?; echo; echo '%s'$status\n", n.here.Replace(commands), end)))
	var said strings.Builder
	for n.lines.Scan() {
		if code, ok := strings.CutPrefix(n.lines.Text(), end); ok {
			assert.Equal(n.t, code, "0", commands, said.String())
			return said.String()
		}
		said.WriteString(n.lines.Text() + "\n")
	}
	n.t.Fatalf("%s\nthe shell has ended: %s", commands, said.String())
	return ""
}

var (
	differs = regexp.MustCompile(`\d{4}-\d\d-\d\dT[\d:.]+Z|pawl-[a-z2-7]{52}| +`) // each time
	leftOut = regexp.MustCompile(`\s*…\s*`)                                       // by the page
)

// sees runs a command and compares what it prints. tail is repeated, because the log that it shows still grows.
func (n *newcomer) sees(block string) {
	n.t.Helper()
	lines := strings.SplitAfter(block, "\n")
	command := lines[0]
	for lines = lines[1:]; strings.Count(command, "'")%2 == 1 || strings.HasSuffix(command, "\\\n"); lines = lines[1:] {
		command += lines[0]
	}
	same := func(text string) string { return strings.TrimSpace(differs.ReplaceAllString(text, " ")) }
	want := leftOut.ReplaceAllString(regexp.QuoteMeta(same(strings.Join(lines, ""))), ".*")
	pattern, said := regexp.MustCompile(`(?s)^`+want+`$`), n.types(command)
	if strings.HasPrefix(command, "tail ") {
		eventually(n.t, patience, "the log is complete", func() bool { said = n.types(command); return pattern.MatchString(same(said)) })
	}
	assert.True(n.t, pattern.MatchString(same(said)), command, "printed", said, "which is not", strings.Join(lines, ""))
}
