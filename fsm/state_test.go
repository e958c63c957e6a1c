package fsm

import "testing"

// A state that comes from the database is the text that came; the memory of one that is known is that of the machine.
func TestScanBytes(t *testing.T) { //nolint:paralleltest // it counts what all goroutines allocate
	for _, text := range []string{"charging", "completed", "gone", ""} {
		var s State
		if err := s.ScanBytes([]byte(text)); err != nil || string(s) != text {
			t.Errorf("%q: %q, %v", text, s, err)
		}
	}
	s, completed := Pending, []byte("completed")
	if s.ScanBytes(nil) == nil || s != Pending {
		t.Errorf("NULL is %q", s)
	}
	if n := testing.AllocsPerRun(100, func() { _ = s.ScanBytes(completed) }); n > 0 {
		t.Errorf("%v pieces of memory", n)
	}
}
