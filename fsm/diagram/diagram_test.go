package diagram

import (
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pawl/fsm"
	"pawl/test/assert"
)

var update = flag.Bool("update", false, "write the files of docs that are compared")

func TestDocs(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"state-machine.md": Markdown(), "state-machine.svg": SVG()} {
		t.Run(name+" is what the machine says", func(t *testing.T) {
			t.Parallel()
			path := filepath.Join("..", "..", "docs", name)
			if *update {
				assert.NoError(t, os.WriteFile(path, []byte(text), 0o644))
			}
			stored, err := os.ReadFile(path)
			assert.NoError(t, err)
			assert.Equal(t, string(stored), text, path, "is not the machine's any more: go generate ./")
		})
	}
}

func TestEveryEdgeIsInTheTableAndInTheDiagram(t *testing.T) {
	t.Parallel()
	for _, e := range fsm.Edges() {
		if row := "| `" + string(e.From) + "` | " + string(e.Event) + " | `" + string(e.To) + "` |\n"; strings.Count(Markdown(), row) != 1 {
			t.Errorf("the table does not have %q once", row)
		}
		if arrow := "    " + string(e.From) + " --> " + string(e.To) + ": " + string(e.Event) + "\n"; strings.Count(Mermaid(), arrow) != 1 {
			t.Errorf("the diagram does not have %q once", arrow)
		}
	}
	if !strings.Contains(Mermaid(), "    [*] --> pending\n") || strings.Count(Mermaid(), "--> [*]") != 3 {
		t.Error("the diagram does not begin at pending and end at three states")
	}
}

func TestSVG(t *testing.T) {
	t.Parallel()
	texts := map[string]int{}
	decoder := xml.NewDecoder(strings.NewReader(SVG()))
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		assert.NoError(t, err)
		if text, ok := token.(xml.CharData); ok {
			texts[string(text)]++
		}
	}
	for _, s := range fsm.States() {
		assert.Equal(t, texts[string(s)], 1, s, "is drawn times")
	}
	want := map[fsm.Event]int{}
	for _, e := range fsm.Edges() {
		want[e.Event]++
	}
	for event, n := range want {
		assert.Equal(t, texts[string(event)], n, event, "is drawn times")
	}
}

// groups are the drawn states and edges: their classes by the texts in them, and where they lead.
func groups(t *testing.T, picture string) (classes map[string][]string, links map[string]string) {
	t.Helper()
	classes, links = map[string][]string{}, map[string]string{}
	var class, link string
	decoder := xml.NewDecoder(strings.NewReader(picture))
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return classes, links
		}
		assert.NoError(t, err)
		switch token := token.(type) {
		case xml.StartElement:
			for _, a := range token.Attr {
				switch {
				case a.Name.Local == "style", token.Name.Local == "style", strings.HasPrefix(a.Name.Local, "on"):
					t.Errorf("%s has %s: the page's policy refuses it", token.Name.Local, a.Name.Local)
				case token.Name.Local == "a":
					link = a.Value
				case a.Name.Local == "class":
					class = a.Value
				}
			}
		case xml.EndElement:
			if token.Name.Local == "a" {
				link = ""
			}
		case xml.CharData:
			if text := strings.TrimSpace(string(token)); text != "" {
				classes[text] = append(classes[text], class)
				links[text] = link
			}
		}
	}
}

func TestPictureOfMany(t *testing.T) {
	t.Parallel()
	p := Picture{
		Label:  `<script>"`,
		States: map[fsm.State]Mark{fsm.Charging: {Text: "10,000+", Title: `</title><b>"`, Link: "/console/orders?q=status%3Acharging&x=1"}},
	}
	classes, links := groups(t, string(p.HTML()))
	for text, class := range map[string]string{"10,000+": "count", "charging": "name", `</title><b>"`: "ahead"} {
		assert.Equal(t, classes[text], []string{class}, text, "is drawn as")
	}
	if links["charging"] != p.States[fsm.Charging].Link || links["10,000+"] != links["charging"] || links["failed"] != "" {
		t.Errorf("links: %q", links)
	}
	for _, trick := range []string{"<script", "walked", "now", "path\""} {
		if strings.Contains(string(p.HTML()), trick) {
			t.Errorf("the picture of no order in particular has %s", trick)
		}
	}
}

func TestPictureOfOne(t *testing.T) {
	t.Parallel()
	p := Picture{At: fsm.Charging, Walked: map[[2]fsm.State]int{
		{fsm.Pending, fsm.Charging}: 3, {fsm.Charging, fsm.Failed}: 2, {fsm.Failed, fsm.Pending}: 2, {fsm.Reserving, fsm.Confirming}: 0,
	}}
	text := string(p.HTML())
	for want, times := range map[string]int{
		`<svg class="machine path"`:         1,
		`<g class="ahead walked now" trans`: 1, // charging
		`<g class="ahead walked" trans`:     1, // pending
		`<g class="final walked" trans`:     1, // failed
		`<g class="ahead" trans`:            2, // reserving and confirming
		`<g class="again walked"><path`:     1,
		`<g class="back walked"><path`:      1,
		`<g class="ahead walked"><path`:     1,
		`>×3</text>`:                        1,
		`>×2</text>`:                        2,
	} {
		assert.Equal(t, strings.Count(text, want), times, "times", want)
	}
}
