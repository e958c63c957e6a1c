package migrations_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"pawl/migrations"
	"pawl/test/dbtest"
)

// build is the files of a program that differs from this one.
func build(t *testing.T, edit func(files fstest.MapFS)) fs.FS {
	t.Helper()
	names, err := filepath.Glob("*.sql")
	if err != nil {
		t.Fatal(err)
	}
	files := fstest.MapFS{}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = &fstest.MapFile{Data: text}
	}
	edit(files)
	return files
}

// edited has one file of ours with a comment more.
func edited(t *testing.T) fs.FS {
	t.Helper()
	return build(t, func(files fstest.MapFS) {
		files["00002_guard.sql"].Data = append(files["00002_guard.sql"].Data, "-- edited\n"...)
	})
}

// newer has a migration more, which makes a table of this name.
func newer(t *testing.T, table string) fs.FS {
	t.Helper()
	return build(t, func(files fstest.MapFS) {
		files[fmt.Sprintf("%05d_newer.sql", migrations.Version()+1)] = &fstest.MapFile{
			Data: []byte("-- +goose Up\nCREATE TABLE public." + table + " ();\n-- +goose Down\nDROP TABLE public." + table + ";\n"),
		}
	})
}

// recorded are the checksums in the database, by version.
func recorded(t *testing.T, url string) string {
	t.Helper()
	return ask(t, url, `SELECT coalesce(string_agg(version || ' ' || sha256, E'\n' ORDER BY version), '') FROM pawl.migration_checksums`)
}

// sums are those of the files in the folder.
func sums(t *testing.T) string {
	t.Helper()
	var lines []string
	names, err := filepath.Glob("*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, fmt.Sprintf("%d %x", i+1, sha256.Sum256(text)))
	}
	return strings.Join(lines, "\n")
}

// refuses checks that Up refuses the files of another build with a sentence about one of them.
func refuses(t *testing.T, url string, files fs.FS, name string) {
	t.Helper()
	err := migrations.UpOf(t.Context(), url, files)
	if !errors.Is(err, migrations.ErrChanged) || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "00001") {
		t.Errorf("up with an edited %s: %v", name, err)
	}
}

func TestChecksums(t *testing.T) {
	t.Parallel()
	t.Run("of what the goose command applied are recorded by the next up", func(t *testing.T) {
		t.Parallel()
		url := dbtest.Empty(t)
		up(t, url)
		ask(t, url, `WITH gone AS (DELETE FROM pawl.migration_checksums WHERE version IN (2, 11) RETURNING 1) SELECT count(*)::text FROM gone`)
		up(t, url)
		if got, want := recorded(t, url), sums(t); got != want {
			t.Errorf("recorded\n%s\nwant\n%s", got, want)
		}
	})
	t.Run("of a newer release are left alone", func(t *testing.T) {
		t.Parallel()
		url := dbtest.Empty(t)
		if err := migrations.UpOf(t.Context(), url, newer(t, "added")); err != nil {
			t.Fatal(err)
		}
		before := recorded(t, url)
		up(t, url) // the release before it starts beside it
		if after := recorded(t, url); after != before || strings.Count(after, "\n") != files(t) {
			t.Errorf("recorded\n%s\nwas\n%s", after, before)
		}
	})
}

func TestChangedMigrationIsRefused(t *testing.T) {
	t.Parallel()
	url := dbtest.Empty(t)
	up(t, url)
	refuses(t, url, edited(t), "00002_guard.sql")
	list, err := migrations.StatusOf(t.Context(), url, edited(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list {
		if m.Changed != (m.Name == "00002_guard.sql") {
			t.Errorf("status: %+v", m)
		}
	}
	up(t, url) // the program the database was migrated with still starts
}

func TestNothingIsAppliedBesideAChangedMigration(t *testing.T) {
	t.Parallel()
	url := dbtest.Empty(t)
	if err := migrations.UpOf(t.Context(), url, edited(t)); err != nil {
		t.Fatal(err)
	}
	refuses(t, url, newer(t, "pending"), "00002_guard.sql")
	if found := ask(t, url, `SELECT coalesce(to_regclass('pending')::text, '')`); found != "" {
		t.Error("a pending migration was applied on a schema that this program does not know")
	}
}

func TestMigrationTakenBackMayChange(t *testing.T) {
	t.Parallel()
	for name, back := range map[string]func(t *testing.T, url string, files fs.FS){
		"by us": func(t *testing.T, url string, files fs.FS) {
			t.Helper()
			if err := migrations.DownOf(t.Context(), url, files); err != nil {
				t.Fatal(err)
			}
		},
		"by the goose command": func(t *testing.T, url string, _ fs.FS) {
			t.Helper()
			ask(t, url, `WITH gone AS (DELETE FROM goose_db_version WHERE version_id = (SELECT max(version_id) FROM goose_db_version) RETURNING 1)
				SELECT count(*)::text FROM gone`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := dbtest.Empty(t)
			if err := migrations.UpOf(t.Context(), url, newer(t, "first")); err != nil {
				t.Fatal(err)
			}
			back(t, url, newer(t, "first"))
			for range 2 {
				if err := migrations.UpOf(t.Context(), url, newer(t, "second")); err != nil {
					t.Error(err)
				}
			}
			refuses(t, url, newer(t, "first"), "newer.sql")
		})
	}
}

// TestChangedMigrationGoesDown has people take back what they edited, and what came after it: with the file as it is now.
func TestChangedMigrationGoesDown(t *testing.T) {
	t.Parallel()
	url := dbtest.Empty(t)
	up(t, url)
	changed := build(t, func(files fstest.MapFS) {
		files["00017_webhooks.sql"].Data = append(files["00017_webhooks.sql"].Data, "-- edited\n"...)
	})
	for applied(t, url) >= 17 {
		if err := migrations.DownOf(t.Context(), url, changed); err != nil {
			t.Fatal(err)
		}
	}
	if err := migrations.UpOf(t.Context(), url, changed); err != nil {
		t.Error(err)
	}
}

func TestTwoBuildsAtOnce(t *testing.T) {
	t.Parallel()
	url := dbtest.Empty(t)
	var replicas sync.WaitGroup
	for _, files := range []fs.FS{edited(t), build(t, func(fstest.MapFS) {})} {
		replicas.Go(func() {
			if err := migrations.UpOf(t.Context(), url, files); err != nil && !errors.Is(err, migrations.ErrChanged) {
				t.Error(err)
			}
		})
	}
	replicas.Wait()
	first := migrations.UpOf(t.Context(), url, edited(t))
	_, second := migrations.Up(t.Context(), url)
	if (first == nil) == (second == nil) {
		t.Errorf("one of two builds must be refused: %v, %v", first, second)
	}
}
