package main

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// options are the flags, checked.
type options struct {
	callers, items []int
	only           []string
	window         window
	rounds         int
	stored         int64
	stock          bool
	others         float64 // share of the cores
	databaseURL    string
	json           string
	targets        targets
}

const help = `Measures the service and a hand-written baseline on the same PostgreSQL: closed loop,
keep-alive connections, random order ids, each run from an empty database.

  go run . [flags]                          # everything, about 5 minutes
  go run . --callers 64 --items hot --only pawl --seconds 5
  go run . --stored 5000000                 # also with so many orders in the table

Targets: pawl, baseline, pipelined (the baseline sending the writes of a step in one
round trip), echo (no database: the ceiling of the load generator). Flags:
`

func parseOptions(args []string) (options, error) {
	o := options{targets: targets{source: ".."}}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.Usage = func() { fmt.Fprint(flags.Output(), help); flags.PrintDefaults() }
	callers := flags.String("callers", "1,16,64,256", "numbers of callers")
	items := flags.String("items", "hot,10000", "numbers of different items; hot is 1")
	only := flags.String("only", "baseline,pawl", "targets")
	seconds := flags.Float64("seconds", 10, "length of the measured window")
	flags.DurationVar(&o.window.warmUp, "warmup", 2*time.Second, "warm-up before it, 2s at most: the runs are to begin with an empty database")
	flags.IntVar(&o.rounds, "rounds", 1, "how often to do every run, targets in turn")
	flags.Int64Var(&o.stored, "stored", 0, "also measure the service with this many completed orders in the table; the window is then at least 90 s")
	flags.BoolVar(&o.stock, "stock", false, "give every item stock, so that stock is checked as well as counted")
	flags.Float64Var(&o.others, "others", 1, "wait until other processes use at most this share of the cores, and do disturbed runs again; 1: take the machine as it is")
	flags.StringVar(&o.databaseURL, "database-url", "", "a PostgreSQL to use (its user creates databases, and is superuser for --stored); default: a private one")
	flags.StringVar(&o.json, "json", "", "file to write the figures to as JSON")
	flags.StringVar(&o.targets.pawl, "pawl", "", "binary of the service; default: built from the parent folder")
	flags.IntVar(&o.targets.pool, "baseline-pool", 32, "connections of the baseline")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	o.only = strings.Split(*only, ",")
	o.window.length = time.Duration(*seconds * float64(time.Second))
	var err1, err2 error
	o.callers, err1 = numbers(*callers)
	o.items, err2 = numbers(*items)
	return o, errors.Join(err1, err2, o.check())
}

func (o options) check() error {
	for _, name := range o.only {
		if !slices.Contains(targetNames, name) {
			return fmt.Errorf("no target %q: %s", name, strings.Join(targetNames, ", "))
		}
	}
	if o.window.warmUp < 0 || o.window.warmUp > 2*time.Second {
		return errors.New("warm-up is 2s at most")
	}
	if o.window.length <= 0 || o.rounds < 1 {
		return errors.New("seconds and rounds are positive")
	}
	if slices.ContainsFunc(o.items, func(n int) bool { return n > maxItems }) {
		return fmt.Errorf("items are %d at most", maxItems)
	}
	return nil
}

func numbers(list string) ([]int, error) {
	var out []int
	for word := range strings.SplitSeq(list, ",") {
		if word == "hot" {
			word = "1"
		}
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is not a positive number", word)
		}
		out = append(out, n)
	}
	return out, nil
}
