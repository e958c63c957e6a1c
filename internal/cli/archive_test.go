package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pawl/test/assert"
	"pawl/test/dbtest"
)

func runArchive(t *testing.T, database *dbtest.Database, dir string) (string, error) {
	t.Helper()
	return execute(t, "archive", "--database-url", database.URL, "--to", dir, "--older-than", "744h")
}

// archived counts the lines of all files.
func archived(t *testing.T, dir string) (lines int) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.ndjson"))
	assert.NoError(t, err)
	for _, name := range files {
		text, err := os.ReadFile(name)
		assert.NoError(t, err)
		lines += strings.Count(string(text), "\n")
	}
	return lines
}

// TestArchivesShareADirectory archives two databases, of which the batches have the same numbers.
func TestArchivesShareADirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i, orders := range []int{3, 2} {
		database := completedOrders(t, orders, "SELECT")
		database.Age(t, 40*24*time.Hour)
		out, err := runArchive(t, database, dir)
		if err != nil || !strings.HasPrefix(out, []string{"3", "2"}[i]+" orders were archived") {
			t.Errorf("%s: %v", out, err)
		}
	}
	assert.Equal(t, archived(t, dir), 5, "lines")
}

// TestSecondArchiveIsRefused starts an archive while another one waits to remove its batch.
func TestSecondArchiveIsRefused(t *testing.T) {
	t.Parallel()
	dir, other := t.TempDir(), t.TempDir()
	database := completedOrders(t, 3, "SELECT")
	database.Age(t, 40*24*time.Hour)
	writer, err := database.Pool.Begin(t.Context())
	assert.NoError(t, err)
	assert.NoError(t, assert.Err(writer.Exec(t.Context(), `LOCK TABLE orders IN ROW EXCLUSIVE MODE`)))
	first := make(chan error, 1)
	go func() {
		_, err := runArchive(t, database, dir)
		first <- err
	}()
	assert.Eventually(t, "the first archive has a batch", func() (open bool) {
		assert.NoError(t, database.Pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM forgotten_batches)`).Scan(&open))
		return open
	})
	if _, err := runArchive(t, database, other); !errors.Is(err, errArchiveRuns) {
		t.Errorf("the second archive: %v", err)
	}
	assert.NoError(t, writer.Rollback(t.Context()))
	assert.NoError(t, <-first)
	assert.Equal(t, archived(t, dir), 3, "lines")
	assert.Equal(t, archived(t, other), 0, "lines of the second archive")
}
