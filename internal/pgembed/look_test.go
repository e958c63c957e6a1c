package pgembed

import (
	"os"
	"path/filepath"
	"testing"
)

func TestLook(t *testing.T) {
	t.Parallel()
	_, planted, ran := plantedServer(t)
	if err := os.Chmod(planted, 0o777); err != nil {
		t.Fatal(err)
	}
	fifteen := fakeServer(t, "15.20")
	dir := filepath.Join(folder(t), "none-yet")

	choice, err := Look(deadline(t), Config{Dir: dir, binDirs: listing(planted, fifteen)})
	if err != nil || choice.Dir != fifteen || choice.Major != 15 || len(choice.PassedOver) != 1 || choice.PassedOver[0].Dir != planted || ran() {
		t.Errorf("%+v: %v", choice, err)
	}
	if exists(dir) {
		t.Error("it makes the folder")
	}
	_, err = Look(deadline(t), Config{Dir: dir, BinDir: "/nonexistent"})
	wantError(t, err, ErrSetting.Error(), "/nonexistent")

	if err := os.MkdirAll(filepath.Join(dir, "data"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "data", "PG_VERSION"), []byte("16\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err = Look(deadline(t), Config{Dir: dir, binDirs: listing(fifteen)})
	wantError(t, err, "no PostgreSQL 16 server was found", "was made by that major")
}
