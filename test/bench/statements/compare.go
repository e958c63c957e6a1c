package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"text/tabwriter"
)

// atOnce is how many sets of a variant come in a row. Few: the speed of a shared machine changes within seconds.
const atOnce = 5

// compare measures all variants in turn, so that what the machine does meanwhile comes to all of them, and prints medians.
func compare(ctx context.Context, o options, variants []*variant) error {
	for round := range o.rounds + 1 { // the first one makes the plans and is not counted
		for _, size := range o.sizes {
			sums, err := inTurn(ctx, o, variants, size)
			if err != nil {
				return err
			}
			for i, v := range variants {
				if round > 0 {
					v.figures[size] = append(v.figures[size], sums[i])
				}
			}
		}
	}
	return report(o, variants)
}

// inTurn is one round of all variants with one size.
func inTurn(ctx context.Context, o options, variants []*variant, size int) ([]figures, error) {
	sums := make([]figures, len(variants))
	turns := max(1, o.orders/size/atOnce)
	if size == 1 {
		turns = max(1, turns/4)
	}
	for range turns {
		for _, i := range rand.Perm(len(variants)) {
			if err := variants[i].add(ctx, &sums[i], size, atOnce); err != nil {
				return nil, err
			}
		}
	}
	for i := range sums {
		sums[i] = sums[i].each(turns * atOnce * size)
	}
	return sums, nil
}

// report prints a table for each size. The ratio is that to the first variant in the same round.
func report(o options, variants []*variant) error {
	for _, size := range o.sizes {
		fmt.Printf("\nsets of %d, µs of PostgreSQL for each order, medians of %d rounds\n", size, o.rounds)
		w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(w, "variant\tadmit\tcharge\treserve\tconfirm\tall\tratio\tof\tto\tWAL B\tHOT\twall µs\t")
		for _, v := range variants {
			of := func(figure func(figures) float64) float64 { return median(v.figures[size], figure) }
			fmt.Fprintf(w, "%s\t", v.name)
			for step := range steps {
				fmt.Fprintf(w, "%.1f\t", of(func(f figures) float64 { return f.cpu[step] }))
			}
			ratios := make([]float64, o.rounds)
			for i, f := range v.figures[size] {
				ratios[i] = f.total() / variants[0].figures[size][i].total()
			}
			slices.Sort(ratios)
			fmt.Fprintf(w, "%.1f\t%.3f\t%.2f\t%.2f\t%.0f\t%.2f\t%.0f\t\n", of(figures.total),
				ratios[len(ratios)/2], ratios[0], ratios[len(ratios)-1],
				of(func(f figures) float64 { return f.wal }), of(func(f figures) float64 { return f.hot }), of(func(f figures) float64 { return f.wall }))
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	return nil
}

func median(rounds []figures, figure func(figures) float64) float64 {
	values := make([]float64, len(rounds))
	for i, f := range rounds {
		values[i] = figure(f)
	}
	slices.Sort(values)
	return values[len(values)/2]
}
