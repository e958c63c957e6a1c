package console

import (
	"strconv"
	"strings"

	"github.com/aymanbagabas/go-udiff"

	"pawl/client"
)

// diffLine is a line of a comparison. Its first character says what becomes of it, so that nobody needs colours.
type diffLine struct {
	Kind string // added, removed, place or same
	Text string
}

// diff compares the texts of two policies. There are no lines where nothing has changed.
func diff(before, after *client.PolicyVersion) (lines []diffLine) {
	text := udiff.Unified(policyName(before), policyName(after), before.Source, after.Source)
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		kind := "same"
		switch {
		case len(lines) < 2, strings.HasPrefix(line, "@"), strings.HasPrefix(line, `\`): // the first two name the texts
			kind = "place"
		case strings.HasPrefix(line, "+"):
			kind = "added"
		case strings.HasPrefix(line, "-"):
			kind = "removed"
		}
		lines = append(lines, diffLine{kind, line})
	}
	return lines
}

func policyName(p *client.PolicyVersion) string {
	if p.Version == 0 {
		return "policy"
	}
	return "policy " + strconv.Itoa(p.Version)
}
