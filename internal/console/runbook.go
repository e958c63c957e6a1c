package console

import (
	"html/template"
	"strings"

	"pawl/docs"
)

func (v *visit) showRunbook() error {
	return v.show("runbook", page{Title: "Runbook", Data: runbook.whole})
}

var runbook = readRunbook()

type manual struct {
	whole    template.HTML
	sections map[string]template.HTML // by the anchor of the heading; without the heading
}

// readRunbook renders the runbook. Links to other pages become text, because the service does not serve those.
func readRunbook() manual {
	sections, err := docs.Sections(docs.Runbook, func(to string) string {
		if strings.HasPrefix(to, "#") {
			return "/console/runbook" + to
		}
		return ""
	})
	if err != nil {
		panic("console: runbook: " + err.Error()) // it is embedded
	}
	m := manual{sections: map[string]template.HTML{}}
	for _, section := range sections {
		m.whole += section.Heading + section.Body
		m.sections[section.Anchor] = section.Body
	}
	return m
}
