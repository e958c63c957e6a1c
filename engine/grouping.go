package engine

import (
	"iter"
	"maps"
	"slices"
)

// divide keeps the order on both sides.
func divide(runs []*run, first func(*run) bool) (yes, no []*run) {
	for _, r := range runs {
		if first(r) {
			yes = append(yes, r)
		} else {
			no = append(no, r)
		}
	}
	return yes, no
}

// groupBy groups runs by what one statement can take. A group may be the batch itself, whose array its queue uses again: a
// group that outlives the flush has to be cloned.
func groupBy[K comparable](runs []*run, key func(*run) K) iter.Seq2[K, []*run] {
	return func(yield func(K, []*run) bool) {
		if len(runs) == 0 {
			return
		}
		first := key(runs[0])
		if !slices.ContainsFunc(runs[1:], func(r *run) bool { return key(r) != first }) {
			yield(first, runs) // nearly always
			return
		}
		groups := map[K][]*run{}
		for _, r := range runs {
			k := key(r)
			groups[k] = append(groups[k], r)
		}
		maps.All(groups)(yield)
	}
}

func numbersOf(runs []*run) []int64 {
	out := make([]int64, 0, len(runs))
	for _, r := range runs {
		if r.no() != 0 {
			out = append(out, r.no())
		}
	}
	return out
}
