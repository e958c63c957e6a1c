// Package doctor looks at what a service finds where it runs: PostgreSQL and its settings, roles, clock, schema. It says
// what is wrong and what to do about it, and changes nothing.
package doctor

import "fmt"

// State is how a finding is.
type State string

// A warning is something that a service runs with, though somebody may be sorry for it later.
const (
	Good    State = "ok"
	Warning State = "warning"
	Wrong   State = "wrong"
)

// Finding is what was found where one looked.
type Finding struct {
	Subject string `json:"subject"` // one word, such as durability
	State   State  `json:"state"`
	Found   string `json:"found"`
	Advice  string `json:"advice,omitempty"` // what to do; empty if nothing has to be done
}

// Report is all findings, in the order in which they were made. The zero value is empty.
type Report struct {
	Findings []Finding `json:"findings"`
}

// Wrong counts the findings that keep a service from running, or from keeping its promises.
func (r *Report) Wrong() (n int) {
	for _, f := range r.Findings {
		if f.State == Wrong {
			n++
		}
	}
	return n
}

// Add appends findings.
func (r *Report) Add(findings ...Finding) { r.Findings = append(r.Findings, findings...) }

// summarize is findings, or if there is none the one that all is well.
func summarize(subject, well string, findings []Finding) []Finding {
	if len(findings) == 0 {
		return []Finding{good(subject, "%s", well)}
	}
	return findings
}

func good(subject, format string, args ...any) Finding {
	return Finding{Subject: subject, State: Good, Found: fmt.Sprintf(format, args...)}
}
