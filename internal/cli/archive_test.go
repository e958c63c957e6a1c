package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pawl/db"
	"pawl/internal/pg"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

func runArchive(t *testing.T, database *dbtest.Database, dir string) (string, error) {
	t.Helper()
	return execute(t, "archive", "--database-url", database.URL, "--to", dir, "--older-than", "744h")
}

// archived is the text of all files, whose checksums must be right.
func archived(t *testing.T, dir string) (text string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.ndjson"))
	assert.NoError(t, err)
	for _, path := range files {
		a := archive{dir: dir}
		assert.True(t, a.has(filepath.Base(path)), path, "has no checksum, or another one")
		part, err := os.ReadFile(path)
		assert.NoError(t, err)
		text += string(part)
	}
	return text
}

// TestArchivesShareADirectory archives two databases, of which the batches have the same numbers.
func TestArchivesShareADirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i, orders := range []int{3, 2} {
		database := completedOrders(t, orders, "SELECT")
		database.Age(t, 40*24*time.Hour)
		out, err := runArchive(t, database, dir)
		assert.True(t, err == nil && strings.HasPrefix(out, []string{"3", "2"}[i]+" orders were archived"), out, err)
	}
	assert.Equal(t, strings.Count(archived(t, dir), "\n"), 5, "lines")
}

// TestArchiveGoesOn writes the file of a batch, as the API shows its orders. The archive then goes on with the file that
// is there.
func TestArchiveGoesOn(t *testing.T) {
	t.Parallel()
	database := completedOrders(t, 3, "SELECT")
	database.Age(t, 40*24*time.Hour)
	pool, err := pg.Open(t.Context(), database.URL, pg.Options{MaxConns: 2})
	assert.NoError(t, err)
	defer pool.Close()
	a := archive{pool: pool, query: db.New(pool), dir: t.TempDir()}
	assert.NoError(t, assert.Err(a.query.OrdersMarkForgotten(t.Context(), db.OrdersMarkForgottenParams{Looks: 9, OlderSeconds: 31 * 24 * 3600, Archive: true})))
	assert.NoError(t, assert.Err(a.write(t.Context())))
	text := archived(t, a.dir)
	for line := range strings.Lines(text) {
		var written struct {
			Order              struct{ OrderID, Status string }
			Transitions, Calls []any
		}
		assert.NoError(t, json.Unmarshal([]byte(line), &written))
		assert.True(t, written.Order.OrderID != "" && written.Order.Status == "completed" && len(written.Transitions) > 0 && written.Calls != nil, line)
	}
	out, err := runArchive(t, database, a.dir)
	assert.True(t, err == nil && strings.HasPrefix(out, "3 orders were archived"), out, err)
	assert.Equal(t, archived(t, a.dir), text, "after the removal")
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
	assert.ErrorIs(t, assert.Err(runArchive(t, database, other)), errArchiveRuns, "the second archive")
	assert.NoError(t, writer.Rollback(t.Context()))
	assert.NoError(t, <-first)
	assert.Equal(t, strings.Count(archived(t, dir), "\n"), 3, "lines")
	assert.Equal(t, archived(t, other), "", "the second archive")
}
