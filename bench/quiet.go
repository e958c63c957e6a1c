package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"time"
)

// On a machine that others use too, a figure says as much about them as about the
// service. With --others the program waits for quiet, and does a run again that was
// disturbed; what is reported is then the least disturbed of its tries, and the column
// others says how much.
const (
	quietTries = 6
	quietLook  = 3 * time.Second
	quietWait  = 10 * time.Minute
)

// quiet waits until others use no more than the share of the machine, and goes on when
// that takes too long.
func (p *plan) quiet(ctx context.Context) error {
	for began := time.Now(); p.others < 1 && time.Since(began) < quietWait; {
		before, err := busyTime()
		if err != nil {
			return err
		}
		if err := pause(ctx, quietLook); err != nil {
			return err
		}
		after, err := busyTime()
		if err != nil {
			return err
		}
		if (after - before).Seconds() <= p.others*quietLook.Seconds()*float64(runtime.NumCPU()) {
			return nil
		}
	}
	return nil
}

// undisturbed does the run until others let it.
func (p *plan) undisturbed(ctx context.Context, do func(context.Context) (result, error)) (result, error) {
	var best result
	for try := range quietTries {
		if err := p.quiet(ctx); err != nil {
			return best, err
		}
		out, err := do(ctx)
		if err != nil {
			return out, err
		}
		fmt.Fprintf(os.Stderr, "%.0f orders/s, others %.0f %%\n", out.OrdersPerSec, 100*out.OtherCPU)
		if try == 0 || out.OtherCPU < best.OtherCPU {
			best = out
		}
		if out.OtherCPU <= p.others {
			break
		}
	}
	return best, nil
}
