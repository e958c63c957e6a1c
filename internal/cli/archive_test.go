package cli

import (
	"encoding/csv"
	"encoding/json"
	"errors"
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

func runArchive(t *testing.T, database *dbtest.Database, dir string, flags ...string) (string, error) {
	t.Helper()
	return execute(t, append([]string{"archive", "--database-url", database.URL, "--to", dir, "--older-than", "744h"}, flags...)...)
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
		assert.True(t, err == nil && strings.HasPrefix(out, []string{"3", "2"}[i]+" orders were archived"), out, err)
	}
	assert.Equal(t, archived(t, dir), 5, "lines")
}

// TestArchiveInCSV writes a batch in both formats, and compares them. The archive then goes on with the file that is
// there.
func TestArchiveInCSV(t *testing.T) {
	t.Parallel()
	database := completedOrders(t, 3, `DO $$ BEGIN
		SET LOCAL session_replication_role = replica;
		UPDATE orders SET item = E'a "lamp",\nred', metadata = '{"a": "\"b\", c"}', customer_id = '=1+1' WHERE order_id = 'order 2';
		INSERT INTO charge_operations (order_no, generation, number, kind, currency, amount, state, reason, request_id)
		SELECT order_no, 0, 1, 'refund', 'EUR', 2, 'done', 'it broke, "again"', 'r' FROM orders WHERE order_id = 'order 3';
		UPDATE orders SET charge_operations = 1 WHERE order_id = 'order 3';
	END $$`)
	database.Age(t, 40*24*time.Hour)
	pool, err := pg.Open(t.Context(), database.URL, pg.Options{MaxConns: 2})
	assert.NoError(t, err)
	defer pool.Close()
	query := db.New(pool)
	assert.NoError(t, assert.Err(query.OrdersMarkForgotten(t.Context(), db.OrdersMarkForgottenParams{Looks: 9, OlderSeconds: 31 * 24 * 3600, Archive: true})))
	dir := map[string]string{}
	text := map[string]string{}
	for _, format := range archiveFormats {
		dir[format] = t.TempDir()
		a := archive{pool: pool, query: query, dir: dir[format], format: format}
		assert.NoError(t, assert.Err(a.write(t.Context())))
		text[format] = contents(t, dir[format], format)
	}
	records, err := csv.NewReader(strings.NewReader(text["csv"])).ReadAll()
	assert.NoError(t, err)
	columns := records[0]
	lines := strings.Split(strings.TrimSpace(text["ndjson"]), "\n")
	assert.Equal(t, []int{len(records) - 1, len(lines)}, []int{3, 3}, "orders")
	for i, line := range lines {
		var want map[string]json.RawMessage
		assert.NoError(t, json.Unmarshal([]byte(line), &want))
		fields := map[string]json.RawMessage{"transitions": want["transitions"], "callList": want["calls"]}
		assert.NoError(t, json.Unmarshal(want["order"], &fields))
		for n, name := range columns {
			cell := records[i+1][n]
			if strings.HasPrefix(string(fields[name]), `"`) {
				quoted, err := json.Marshal(cell)
				assert.NoError(t, err)
				cell = string(quoted)
			}
			assert.Equal(t, cell, string(fields[name]), name)
			delete(fields, name)
		}
		assert.Equal(t, len(fields), 0, "fields without a column")
	}
	for _, want := range []string{`""lamp""`, `=1+1`, `it broke`, `charging`} {
		assert.Contains(t, text["csv"], want, "is missing")
	}

	out, err := runArchive(t, database, dir["csv"], "--format", "ndjson")
	assert.True(t, err == nil && strings.HasPrefix(out, "3 orders were archived"), out, err)
	assert.Equal(t, []string{contents(t, dir["csv"], "csv"), contents(t, dir["csv"], "ndjson")}, []string{text["csv"], ""}, "after the removal")
	_, usage := errors.AsType[usageError](assert.Err(runArchive(t, database, dir["csv"], "--format", "xml")))
	assert.True(t, usage, "another format is not refused")
}

// contents is the text of the files in a format, whose checksums must be right.
func contents(t *testing.T, dir, format string) (text string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*."+format))
	assert.NoError(t, err)
	for _, path := range files {
		a := (archive{dir: dir})
		assert.True(t, a.has(filepath.Base(path)), path, "has no checksum, or another one")
		part, err := os.ReadFile(path)
		assert.NoError(t, err)
		text += string(part)
	}
	return text
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
	assert.Equal(t, archived(t, dir), 3, "lines")
	assert.Equal(t, archived(t, other), 0, "lines of the second archive")
}
