package main

import (
	"os/exec"
	"testing"
)

func TestStoredOrdersAreAsTheServiceLeavesThem(t *testing.T) {
	t.Parallel()
	d := testDatabase(t)
	service := testTarget(t, "pawl")
	start := func() *server {
		s, err := service.start(t.Context(), d.url, t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if err := start().stop(); err != nil { // it has made its schema
		t.Fatal(err)
	}
	for range 2 { // the second time, some events have numbers
		if err := d.fill(t.Context(), 1000, 10, false); err != nil {
			t.Fatal(err)
		}
	}
	if mismatch, err := d.check(t.Context(), 0, 2000); mismatch != "" || err != nil {
		t.Error(mismatch, err)
	}
	var events, numbered int
	if err := d.conn.QueryRow(t.Context(), "SELECT count(*), max(event_no) FROM events").Scan(&events, &numbered); err != nil || events != 4*2000 || numbered != events {
		t.Errorf("%d events, the last is number %d (%v)", events, numbered, err)
	}
	s := start()
	t.Cleanup(func() { _ = s.stop() })
	// The service works on them, and its own proof of the books holds.
	load := exec.CommandContext(t.Context(), service.binary, "load", "--url", "http://"+s.address, "--orders", "200", "--items", "10", "--database-url", d.url)
	if out, err := load.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
