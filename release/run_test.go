package main

import (
	"bufio"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"pawl/test/assert"
	"pawl/test/dbtest"
)

// runImage runs a program in its root folder, and has it complete an order.
func runImage(t *testing.T, root string, arguments []string) {
	t.Helper()
	script := `mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec chroot --userspec=` + nobody + ` "$0" "$@"`
	command := exec.Command("unshare", append([]string{"--mount", "sh", "-c", script, root}, arguments...)...)
	command.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DATABASE_URL=" + dbtest.NewProxy(t, dbtest.New(t).URL).URL, "PORT=0"}
	var complaints strings.Builder
	command.Stderr = &complaints
	out, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	assert.NoError(t, err)
	defer func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		_, _ = io.Copy(io.Discard, out)
		err := command.Wait()
		assert.True(t, err == nil, "it ended with", err, complaints.String())
	}()
	var port string
	for lines := bufio.NewScanner(out); port == "" && lines.Scan(); {
		if found := regexp.MustCompile(`http://[^\s,"]+:(\d+)`).FindStringSubmatch(lines.Text()); found != nil {
			port = found[1]
		}
	}
	assert.Require(t, port != "", "it does not serve", complaints.String())
	body := strings.NewReader(`{"orderId":"order-1","amount":9.99,"item":"cup"}`)
	answer, err := http.Post("http://127.0.0.1:"+port+"/api/orders/process", "application/json", body)
	assert.NoError(t, err)
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	assert.Contains(t, string(text), `"status":"completed"`, answer.Status, text)
}

// TestModule puts the tree under an import path, and builds a program outside of it that imports the client.
func TestModule(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	source, outside := filepath.Join(dir, "pawl"), filepath.Join(dir, "outside")
	assert.NoError(t, commitTo(source))
	said(t, exec.Command("make", "-C", source, "module", "MODULE=example.com/pawl"))
	for _, module := range []string{".", "release", "test/bench", "test/clients"} {
		command := exec.Command("go", "list", "-test", "-deps", "./...") // every import leads somewhere
		command.Dir = filepath.Join(source, module)
		if text := said(t, command); regexp.MustCompile(`(?m)^pawl(/|$)`).MatchString(text) || !strings.Contains(text, "example.com/pawl") {
			t.Errorf("%s: something is not under the new path", module)
		}
	}
	said(t, exec.Command("mkdir", outside))
	write(t, filepath.Join(outside, "main.go"), []byte(`package main

import (
	"fmt"

	"example.com/pawl/client"
)

func main() {
	_, err := client.New("https://shop.example", client.Options{})
	fmt.Println(len(client.NewID()), err)
}
`))
	for _, arguments := range [][]string{
		{"mod", "init", "example.com/shop"},
		{"mod", "edit", "-require", "example.com/pawl@v" + number, "-replace", "example.com/pawl=../pawl"},
		{"mod", "tidy"},
	} {
		command := exec.Command("go", arguments...)
		command.Dir = outside
		said(t, command)
	}
	program := exec.Command("go", "run", ".")
	program.Dir = outside
	assert.Equal(t, said(t, program), "36 <nil>\n", "it printed")
}
