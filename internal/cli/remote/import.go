package remote

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"iter"
	"os"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"pawl/client"
	"pawl/internal/cli/output"
)

const (
	importRetryFor = time.Minute // longer than a restart of the service
	longestLine    = 1 << 20     // a longer line is not an order
)

func ordersImportCommand() *cobra.Command {
	return asking(&cobra.Command{
		Use: "import FILE", Short: "Process the orders of a file, one per line", Args: cobra.ExactArgs(1),
		Long: "Processes the orders of a file. Each line is the JSON of an order, as in the API; the file - is standard input.\n" +
			"Prints the orders that are not completed, with their line numbers; with -o json every order. It can be interrupted\n" +
			"and repeated safely: an order is processed once. Exits with 1 if an order failed, was canceled or rejected.",
		Example: "  pawl orders import orders.ndjson\n" +
			"  jq -c '.orders[]' export.json | pawl orders import -\n" +
			"  pawl orders import orders.ndjson -o json | jq -c 'select(.problem)'",
	}, func(ctx context.Context, s *session, args []string) (err error) {
		in, total := os.Stdin, int64(-1)
		if args[0] != "-" {
			if in, err = os.Open(args[0]); err != nil {
				return usage("%w", err)
			}
			defer in.Close()
			total = countLines(in)
		}
		if s.Client, err = s.connect(importRetryFor); err != nil {
			return err
		}
		i := importing{session: s, bar: output.Progress(total, "orders", os.Stderr), count: map[string]int{}}
		defer i.bar.Exit()
		return i.run(ctx, in)
	})
}

// countLines counts the lines of a file; -1: it can't be read twice.
func countLines(file *os.File) (lines int64) {
	for in := bufio.NewReader(file); ; lines++ {
		if _, err := in.ReadBytes('\n'); err != nil {
			break
		}
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return -1
	}
	return lines
}

type importing struct {
	*session
	bar    *progressbar.ProgressBar
	count  map[string]int // of orders, by outcome
	unread error          // why the file was not read completely
}

type importedLine struct {
	Line    int                 `json:"line"`
	Order   *client.Order       `json:"order,omitempty"`
	Problem *client.ProblemBody `json:"problem,omitempty"`
}

func (i *importing) run(ctx context.Context, in io.Reader) error {
	var failed error
	for p, err := range i.ProcessLines(ctx, i.lines(ctx, in)) {
		if err == nil {
			err = i.print(p)
		}
		if failed = err; err != nil {
			break
		}
		_ = i.bar.Add(1)
	}
	_ = i.bar.Clear()
	if i.format == output.Table {
		i.printTotals()
	}
	notDone := i.count["failed"] + i.count["canceled"] + i.count["rejected"]
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted: orders that were sent continue; repeat the command for the others: %w", ctx.Err())
	case failed != nil:
		return failed
	case i.unread != nil:
		return i.unread
	case notDone > 0:
		return fmt.Errorf("%d orders failed, were canceled or were rejected", notDone)
	}
	return nil
}

// lines yields the lines of a file. The goroutine that reads it may wait for standard input until the process ends.
func (i *importing) lines(ctx context.Context, in io.Reader) iter.Seq[[]byte] {
	lines, unread := make(chan []byte), make(chan error, 1)
	go func() {
		defer close(lines)
		scanner := bufio.NewScanner(in)
		scanner.Buffer(nil, longestLine)
		n := 0
		for ; scanner.Scan(); n++ {
			select {
			case lines <- []byte(scanner.Text()):
			case <-ctx.Done():
				return
			}
		}
		if err := scanner.Err(); err != nil {
			unread <- fmt.Errorf("read line %d: %w", n+1, err)
		}
	}()
	return func(yield func([]byte) bool) {
		for {
			select {
			case line, ok := <-lines:
				if ok && yield(line) {
					continue
				}
			case <-ctx.Done():
			}
			select {
			case i.unread = <-unread:
			default:
			}
			return
		}
	}
}

// print prints the outcome of an order, in a table only if it is not completed.
func (i *importing) print(p client.Processed) error {
	line, outcome := importedLine{Line: p.Index + 1, Order: p.Order}, "rejected"
	var why string
	switch o := p.Order; {
	case p.Problem != nil:
		line.Problem, why = &p.Problem.ProblemBody, p.Problem.Error()
	case o.Status.Final():
		outcome, why = string(o.Status), fmt.Sprintf("order %q is %s: %s", o.OrderID, o.Status, o.Failure.Code)
	default:
		outcome = inProgress
		why = fmt.Sprintf("order %q is %s: %s", o.OrderID, inProgress, cmp.Or(string(o.Hold), string(o.Status)))
	}
	i.count[outcome]++
	switch {
	case i.format == output.JSON:
		return output.Line(i.out, line)
	case outcome == string(client.StatusCompleted):
		return nil
	}
	_ = i.bar.Clear()
	_, err := fmt.Fprintf(i.out, "line %d: %s\n", line.Line, output.Clean(why))
	return err
}

const inProgress = "in progress"

func (i *importing) printTotals() {
	all := 0
	var parts []string
	for _, outcome := range []string{"completed", "failed", "canceled", "rejected", inProgress} {
		if n := i.count[outcome]; n > 0 {
			all += n
			parts = append(parts, fmt.Sprintf("%d %s", n, outcome))
		}
	}
	fmt.Fprintf(i.out, "%d orders: %s\n", all, dash(strings.Join(parts, ", ")))
}
