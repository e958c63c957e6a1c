package diagram

import (
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"math"
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
		row := "| `" + string(e.From) + "` | " + string(e.Event) + " | `" + string(e.To) + "` |\n"
		assert.Equal(t, strings.Count(Markdown(), row), 1, "the table does not have", row, "once")
		arrow := "    " + string(e.From) + " --> " + string(e.To) + ": " + string(e.Event) + "\n"
		assert.Equal(t, strings.Count(Mermaid(), arrow), 1, "the diagram does not have", arrow, "once")
	}
	assert.True(t, strings.Contains(Mermaid(), "    [*] --> pending\n") && strings.Count(Mermaid(), "--> [*]") == 3,
		"the diagram does not begin at pending and end at three states")
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
	assert.True(t, links["charging"] == p.States[fsm.Charging].Link && links["10,000+"] == links["charging"] && links["failed"] == "",
		"links", links)
	for _, trick := range []string{"<script", "walked", "now", "path\""} {
		assert.True(t, !strings.Contains(string(p.HTML()), trick), "the picture of no order in particular has", trick)
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

// The sizes are those of machine.svg.tmpl.
const (
	pictureWidth, pictureHeight = 1024.0, 440.0
	boxWidth, boxHeight         = 128.0, 48.0
	labelSize                   = 12.5
)

// area is a rectangle of the picture.
type area struct {
	name                     string
	left, top, right, bottom float64
}

func around(name string, middle point, width, height float64) area {
	return area{name, middle.x - width/2, middle.y - height/2, middle.x + width/2, middle.y + height/2}
}

func (a area) touches(b area) bool {
	return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom
}

func (a area) holds(p point) bool {
	return a.left < p.x && p.x < a.right && a.top < p.y && p.y < a.bottom
}

func boxes() (out []area) {
	for _, s := range fsm.States() {
		out = append(out, around(string(s), places[s], boxWidth, boxHeight))
	}
	return out
}

// labels are as wide as their letters are in the fonts named, generously.
func labels() (out []area) {
	for _, e := range fsm.Edges() {
		name := string(e.From) + " to " + string(e.To)
		out = append(out, around(name, routeOf(e).label, .58*labelSize*float64(len(e.Event)), labelSize+3))
	}
	return out
}

// rates are the texts below the labels, of eight letters.
func rates() (out []area) {
	for _, e := range fsm.Edges() {
		r := routeOf(e)
		out = append(out, around("rate of "+string(e.From)+" to "+string(e.To), point{r.label.x, r.textY()}, .58*labelSize*8, labelSize))
	}
	return out
}

func TestLayout(t *testing.T) {
	t.Parallel()
	t.Run("every state and every edge has its place, and nothing else has", func(t *testing.T) {
		t.Parallel()
		assert.True(t, len(places) == len(fsm.States()) && len(routes) == len(fsm.Edges()),
			len(places), "places for", len(fsm.States()), "states", len(routes), "routes for", len(fsm.Edges()), "edges")
		for _, e := range fsm.Edges() {
			_, ok := routes[[2]fsm.State{e.From, e.To}]
			assert.True(t, ok, e.From, "to", e.To, "has no route")
		}
	})
	t.Run("no edge runs through a box", func(t *testing.T) {
		t.Parallel()
		for _, e := range fsm.Edges() {
			for _, p := range along(routeOf(e).way) {
				for _, box := range boxes() {
					assert.True(t, !box.holds(p), e.From, "to", e.To, "runs through", box.name, "at", p)
				}
			}
		}
	})
	t.Run("edges begin and end at the rim of their boxes", func(t *testing.T) {
		t.Parallel()
		for _, e := range fsm.Edges() {
			way := routeOf(e).way
			for s, p := range map[fsm.State]point{e.From: way[0], e.To: way[len(way)-1]} {
				dx, dy := math.Abs(p.x-places[s].x)/(boxWidth/2), math.Abs(p.y-places[s].y)/(boxHeight/2)
				assert.Equal(t, max(dx, dy), 1, e.From, e.To, p, "is not at the rim of", s)
			}
		}
	})
	t.Run("rates touch no box, no label and no other edge", func(t *testing.T) {
		t.Parallel()
		for i, rate := range rates() {
			for _, other := range append(boxes(), labels()...) {
				assert.True(t, !rate.touches(other), rate.name, "touches", other.name)
			}
			for k, e := range fsm.Edges() {
				for _, p := range along(routeOf(e).way) {
					assert.Require(t, k == i || !rate.holds(p), rate.name, "lies on", e.From, "to", e.To)
				}
			}
		}
	})
	t.Run("labels touch no box, no other label and no other edge", func(t *testing.T) {
		t.Parallel()
		paper := area{"", 0, 0, pictureWidth, pictureHeight}
		all := labels()
		for i, label := range all {
			for _, other := range append(boxes(), all[i+1:]...) {
				assert.True(t, !label.touches(other), "label of", label.name, "touches", other.name)
			}
			for k, e := range fsm.Edges() {
				for _, p := range along(routeOf(e).way) {
					assert.Require(t, k == i || !label.holds(p), "label of", label.name, "lies on", e.From, "to", e.To)
				}
			}
			assert.True(t, paper.holds(point{label.left, label.top}) && paper.holds(point{label.right, label.bottom}),
				"label of", label.name, "is not on the paper")
		}
	})
}

// along is the way in steps of a point or less.
func along(way []point) (out []point) {
	for i := range len(way) - 1 {
		length := math.Hypot(way[i+1].x-way[i].x, way[i+1].y-way[i].y)
		for at := 0.0; at <= length; at++ {
			out = append(out, toward(way[i], way[i+1], at))
		}
	}
	return out
}
