package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"pawl/test/assert"
)

func TestSimulate(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "simulator.jsonl")
	run := func(keys string, args ...string) (string, error) {
		t.Helper()
		return simulated(t, append(args, "--file", file), func(url string) {
			for key := range strings.FieldsSeq(keys) {
				charge(t, url, key)
			}
		})
	}
	text, err := run("a a b", "--fault", "decline1:no,order=b")
	for _, want := range []string{
		`, books in ` + file, `charge +1 +1 +0 +1 +0 +0\n`, `reserve +0 +0`, `refund +0 +0`, `"USD": charged 1.50, refunded 0.00, kept 1.50\n`, `3 requests, 1 duplicates suppressed, 0 rejected`,
	} {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("does not say %s:\n%s", want, text)
		}
	}
	if err != nil {
		t.Error(err)
	}
	if text, err = run("a"); err != nil || !strings.Contains(text, "1 requests, 1 duplicates suppressed") {
		t.Errorf("after a restart: %v\n%s", err, text)
	}
	for _, args := range [][]string{{"--port", "70000"}, {"--latency", "-1s"}, {"--fault", "explode"}, {"--secret-env", "PAWL_NOT_SET"},
		{"--stripe-webhook", "http://127.0.0.1:1"}, {"--stripe-webhook", "http://127.0.0.1:1", "--stripe-webhook-secret-env", "PAWL_NOT_SET"}, {"word"}} {
		if _, err := execute(t, append([]string{"simulate", "--file", ""}, args...)...); exitCode(err) != exitUsage || err == nil {
			t.Errorf("%v: exit code %d, want %d: %v", args, exitCode(err), exitUsage, err)
		}
	}
	if _, err := execute(t, "simulate", "--file", filepath.Join(file, "none")); exitCode(err) != exitFailure || err == nil {
		t.Errorf("a file that can't be made: %v", err)
	}
}

func TestSimulateEndsWhileARequestHangs(t *testing.T) {
	t.Parallel()
	text, err := simulated(t, []string{"--file", "", "--fault", "hang"}, func(url string) {
		ctx, leave := context.WithCancel(t.Context())
		t.Cleanup(leave)
		hung := make(chan struct{})
		t.Cleanup(func() { <-hung })
		go func() {
			defer close(hung)
			response, err := http.DefaultClient.Do(chargeRequest(ctx, url, "a"))
			if err == nil {
				response.Body.Close()
				t.Error("answered")
			}
		}()
		for !strings.Contains(lookUpKey(t, url, "a"), "in_progress") {
			continue
		}
	})
	if err != nil || !strings.Contains(text, "1 requests") {
		t.Errorf("%v\n%s", err, text)
	}
}

// simulated runs the command while do runs, and returns what it printed.
func simulated(t *testing.T, args []string, do func(url string)) (string, error) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	reader, out := io.Pipe()
	cmd := command()
	cmd.SetArgs(append([]string{"simulate", "--port", "0"}, args...))
	cmd.SetOut(out)
	cmd.SetErr(&bytes.Buffer{})
	var failed error
	go func() {
		failed = cmd.ExecuteContext(ctx)
		_ = out.Close()
	}()
	lines := bufio.NewReader(reader)
	first, err := lines.ReadString('\n')
	url := regexp.MustCompile(`http://\S+:\d+`).FindString(first)
	if url != "" {
		do(url)
	}
	stop()
	rest, readErr := io.ReadAll(lines)
	return first + string(rest), errors.Join(err, readErr, failed)
}

func chargeRequest(ctx context.Context, url, key string) *http.Request {
	body := `{"orderId":"` + key + `","step":"charge","operation":"do","generation":0,"amount":"1.50","currency":"USD","item":"w","quantity":1}`
	r, _ := http.NewRequestWithContext(ctx, http.MethodPost, url+"/charge", strings.NewReader(body))
	r.Header.Set("Idempotency-Key", key)
	return r
}

func charge(t *testing.T, url, key string) {
	t.Helper()
	response, err := http.DefaultClient.Do(chargeRequest(t.Context(), url, key))
	assert.NoError(t, err)
	response.Body.Close()
}

func lookUpKey(t *testing.T, url, key string) string {
	t.Helper()
	response, err := http.Get(url + "/lookup?key=" + key)
	assert.NoError(t, err)
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	return string(text)
}
