package output_test

import (
	"os"

	"pawl/internal/cli/output"
)

func ExampleRows() {
	rows := output.NewRows(os.Stdout, "order", "status")
	rows.Add("order-1", "completed")
	rows.Add("two\x1b[2J\nlines", "failed")
	_ = rows.Flush()
	_ = output.Line(os.Stdout, map[string]string{"order": "a&b"})
	// Output:
	// order          status
	// order-1        completed
	// two [2J lines  failed
	// {"order":"a&b"}
}
