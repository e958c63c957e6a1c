// Package assert has the comparisons that most tests make. What it compares is shown as a difference; what else a reader
// of a failure needs to know stands behind.
package assert

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// Equal fails the test unless got is want. Empty slices and maps are equal to nil.
func Equal[T any](t testing.TB, got, want T, of ...any) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%sgot %v, want %v\n%s", label(of), got, want, diff)
	}
}

// True fails the test, and prints what is said otherwise, unless something holds.
func True(t testing.TB, holds bool, otherwise ...any) {
	t.Helper()
	if !holds {
		t.Error(strings.TrimSuffix(label(otherwise), ": "))
	}
}

// Require is True for what the rest of a test needs: it ends the test.
func Require(t testing.TB, holds bool, otherwise ...any) {
	t.Helper()
	if !holds {
		t.Fatal(strings.TrimSuffix(label(otherwise), ": "))
	}
}

// NoError ends the test if there is an error.
func NoError(t testing.TB, err error, of ...any) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s%v", label(of), err)
	}
}

// Succeeds is NoError for what runs beside the test, or after it, from where it can't be ended: it goes on.
func Succeeds(t testing.TB, err error, of ...any) {
	t.Helper()
	if err != nil {
		t.Errorf("%s%v", label(of), err)
	}
}

// ErrorIs fails the test unless the error is, or wraps, the one that is wanted; with nil, unless there is none.
func ErrorIs(t testing.TB, err, want error, of ...any) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%sgot error %v, want %v", label(of), err, want)
	}
}

// Contains fails the test unless part is somewhere in text.
func Contains(t testing.TB, text, part string, of ...any) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Errorf("%s%q is not in\n%s", label(of), part, text)
	}
}

// patience is for what must come about, however busy the machine is. It is no measure of speed.
const patience = 2 * time.Minute

// Eventually waits until something holds. It looks at once, then less and less often: looking keeps the machine from what is
// waited for.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	until := time.Now().Add(patience)
	for pause := time.Millisecond; !holds(); pause = min(pause*5/4, 50*time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("in vain: ", what)
		}
		<-time.After(pause)
	}
}

// Err is the error of a call with one more result.
func Err[T any](_ T, err error) error { return err }

func label(of []any) string {
	if len(of) == 0 {
		return ""
	}
	texts := make([]string, len(of))
	for i, value := range of {
		if text, ok := value.([]byte); ok {
			value = string(text)
		}
		texts[i] = fmt.Sprintf("%+v", value)
	}
	return strings.Join(texts, " ") + ": "
}
