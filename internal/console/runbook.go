package console

import (
	"html/template"
	"strings"

	"pawl/docs"
)

func (v *visit) showRunbook() error {
	return v.show("runbook", page{Title: "Runbook", Data: runbook})
}

// manualOf serves another document.
func manualOf(title string, document []byte) func(*visit) error {
	return func(v *visit) error {
		return v.show("runbook", page{Title: title, Data: readManual(document, v.r.URL.Path)})
	}
}

var runbook = readManual(docs.Runbook, "/console/runbook")

type manual struct {
	Whole    template.HTML
	Contents []docs.Section
	sections map[string]template.HTML // by the anchor of the heading; without the heading
}

// readManual renders a document that is shown at a path. Links to other pages become text, because the service does not
// serve those.
func readManual(document []byte, path string) manual {
	sections, err := docs.Sections(document, func(to string) string {
		if strings.HasPrefix(to, "#") {
			return path + to
		}
		return ""
	})
	if err != nil {
		panic("console: " + path + ": " + err.Error()) // it is embedded
	}
	m := manual{sections: map[string]template.HTML{}}
	for _, section := range sections {
		m.Whole += section.Heading + section.Body
		if section.Level == 2 {
			m.Contents = append(m.Contents, section)
		}
		m.sections[section.Anchor] = section.Body
	}
	return m
}
