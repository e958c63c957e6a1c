package diagram

import (
	_ "embed"
	"fmt"
	"html/template"
	"math"
	"strings"

	"pawl/fsm"
)

//go:embed machine.svg.tmpl
var svgText string

var svgTemplate = template.Must(template.New("machine").Parse(svgText))

// What the template draws. A final state has a second rim, as is usual for automata.
type (
	drawing struct {
		Page   bool // for a page, which has the styles
		Label  string
		Walked bool // it shows the path of an order
		Edges  []drawnEdge
		States []drawnState
	}
	drawnEdge struct {
		Class, Path, Tip string
		Event            fsm.Event
		X, Y, TextY      float64 // of its label, and of the text below
		Text             string
		Walked           bool
	}
	drawnState struct {
		fsm.State
		Class string
		X, Y  float64
		Mark
	}
)

// SVG draws the machine as a file with its own styles and background, so that it is readable on a dark page, too.
func SVG() string { return string(draw(&Picture{}, false)) }

// draw draws a picture for a page, or for a file.
func draw(p *Picture, page bool) template.HTML {
	d := drawing{Page: page, Label: p.Label, Walked: len(p.Walked) > 0 || p.At != ""}
	for _, e := range fsm.Edges() {
		r, pair := routeOf(e), [2]fsm.State{e.From, e.To}
		d.Edges = append(d.Edges, drawnEdge{
			p.edgeClass(e), pathOf(r.way), tipOf(r.way), e.Event, r.label.x, r.label.y + 4, r.textY() + 4, p.edgeText(pair), p.Walked[pair] > 0,
		})
	}
	for _, s := range fsm.States() {
		d.States = append(d.States, drawnState{s, p.stateClass(s), places[s].x, places[s].y, p.States[s]})
	}
	var b strings.Builder
	if err := svgTemplate.Execute(&b, d); err != nil {
		panic("diagram: " + err.Error()) // all of it is text
	}
	return template.HTML(b.String()) //nolint:gosec // the template has escaped what is not the machine's
}

func stateClass(s fsm.State) string {
	switch {
	case s == fsm.Completed:
		return "good"
	case s.Final():
		return "final"
	case s.Undoing():
		return "undo"
	}
	return "ahead"
}

// edgeClass is the class of a step forward, of one back, or of a restart.
func edgeClass(e fsm.Edge) string {
	switch {
	case e.From.Final():
		return "again"
	case e.To.Undoing() || e.To == fsm.Failed || e.To == fsm.Canceled:
		return "back"
	}
	return "ahead"
}

// routeOf is the layout of the edge.
func routeOf(e fsm.Edge) route { return routes[[2]fsm.State{e.From, e.To}] }

const (
	cornerRadius          = 14.0
	tipLength, tipBreadth = 10.0, 4.5
)

// pathOf connects the points, with round corners, and ends where the tip begins.
func pathOf(way []point) string {
	var b strings.Builder
	fmt.Fprintf(&b, "M%.1f %.1f", way[0].x, way[0].y)
	for i := 1; i < len(way)-1; i++ {
		before, after := toward(way[i], way[i-1], cornerRadius), toward(way[i], way[i+1], cornerRadius)
		fmt.Fprintf(&b, " L%.1f %.1f Q%.1f %.1f %.1f %.1f", before.x, before.y, way[i].x, way[i].y, after.x, after.y)
	}
	end := toward(way[len(way)-1], way[len(way)-2], tipLength-1)
	fmt.Fprintf(&b, " L%.1f %.1f", end.x, end.y)
	return b.String()
}

// tipOf is the arrow's tip. It is drawn without a marker, because some viewers don't show markers.
func tipOf(way []point) string {
	end := way[len(way)-1]
	base := toward(end, way[len(way)-2], tipLength)
	dx, dy := (end.x-base.x)/tipLength*tipBreadth, (end.y-base.y)/tipLength*tipBreadth
	return fmt.Sprintf("M%.1f %.1f L%.1f %.1f L%.1f %.1f z",
		end.x, end.y, base.x-dy, base.y+dx, base.x+dy, base.y-dx)
}

// toward is the point at a distance from one point in the direction of another.
func toward(from, to point, distance float64) point {
	share := distance / math.Hypot(to.x-from.x, to.y-from.y)
	return point{from.x + (to.x-from.x)*share, from.y + (to.y-from.y)*share}
}
