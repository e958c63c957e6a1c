package cell_test

import (
	"strings"
	"testing"

	"pawl/internal/cell"
	"pawl/test/assert"
)

// TestOf has literal values: another hash would put every order into two cells.
func TestOf(t *testing.T) {
	t.Parallel()
	for id, first := range map[string]int{
		"order-123": 0x3b, "a": 0xca, "Zürich 1": 0x0b, "00000000-0000-7000-8000-000000000000": 0x1e,
	} {
		for of := 1; of <= cell.Most; of *= 2 {
			c := cell.Cell{Number: first * of / 256, Of: of}
			assert.Equal(t, cell.Of(id, of), c, id)
			assert.True(t, c.Has(id) && cell.OfHash(byte(first), of) == c && (of <= 1 || !(cell.Cell{Number: c.Number ^ 1, Of: of}).Has(id)),
				id, "belongs to", c, "only")
		}
	}
}

func TestTogether(t *testing.T) {
	t.Parallel()
	for texts, says := range map[string]string{
		"0/1": "", "1/2 0/2": "", "0/4 1/4 1/2": "", "0/2 2/4": "3/4 are in none", "0/2 0/2": "0/2 are in 2", "0/1 3/4": "3/4 are in 2", "": "0/1 are in none",
	} {
		var cells []cell.Cell
		for _, text := range strings.Fields(texts) {
			c, err := cell.Parse(text)
			assert.NoError(t, err)
			cells = append(cells, c)
		}
		err := cell.Together(cells)
		assert.True(t, (err == nil) == (says == "") && (err == nil || strings.Contains(err.Error(), says)), texts, err)
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"0/1", "1/2", "3/4", "255/256"} {
		c, err := cell.Parse(good)
		assert.NoError(t, err)
		assert.Equal(t, c.String(), good)
	}
	for _, bad := range []string{"", "1", "1/1", "2/2", "0/3", "-1/2", "0/512", "00/2", "0/0", "0/2/4", "a/b"} {
		c, err := cell.Parse(bad)
		assert.True(t, err != nil, bad, "is read as", c)
	}
}
