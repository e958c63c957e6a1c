package diagram

import (
	"fmt"
	"math"
	"strings"

	"pawl/fsm"
)

const svgHead = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" role="img" aria-label="The machine of an order" font-family="ui-sans-serif, system-ui, 'Segoe UI', Helvetica, Arial, sans-serif">
<style>
  .paper { fill: #fff } text { text-anchor: middle; fill: #1f2933 }
  .box { fill: #eef4fb; stroke: #2b6cb0; stroke-width: 1.6 } .name { font-size: 15px; font-weight: 600 }
  .undo .box { fill: #fdf3e3; stroke: #b7791f } .final .box { fill: #f0f2f4; stroke: #52606d } .good .box { fill: #e8f6ec; stroke: #2f855a }
  .final .rim, .good .rim { fill: none; stroke: #52606d; stroke-width: 1 } .good .rim { stroke: #2f855a }
  .edge { fill: none; stroke: #2b6cb0; stroke-width: 1.6 } .back .edge { stroke: #b7791f } .again .edge { stroke: #52606d; stroke-dasharray: 5 4 }
  .tip { fill: #2b6cb0 } .back .tip { fill: #b7791f } .again .tip { fill: #52606d }
  .label { font-size: %gpx; fill: #3e4c59; paint-order: stroke; stroke: #fff; stroke-width: 5px; stroke-linejoin: round } .note { font-size: %gpx; text-anchor: start; fill: #3e4c59 }
</style>
<rect class="paper" width="%g" height="%g" rx="10"/>
`

// SVG draws the machine as a picture that needs no program to be shown, on paper of its
// own, so that it can be read on a dark page too.
func SVG() string {
	var b strings.Builder
	fmt.Fprintf(&b, svgHead, pictureWidth, pictureHeight, labelSize, labelSize, pictureWidth, pictureHeight)
	drawStart(&b)
	for _, e := range fsm.Edges() {
		drawEdge(&b, e)
	}
	for _, e := range fsm.Edges() { // above every line
		at := routeOf(e).label
		fmt.Fprintf(&b, `<text class="label" x="%g" y="%g">%s</text>`+"\n", at.x, at.y+4, e.Event)
	}
	for _, s := range fsm.States() {
		drawState(&b, s)
	}
	drawLegend(&b)
	b.WriteString("</svg>\n")
	return b.String()
}

func drawState(b *strings.Builder, s fsm.State) {
	at := places[s]
	drawBox(b, stateClass(s), at, point{boxWidth, boxHeight})
	fmt.Fprintf(b, `<text class="name" x="%g" y="%g">%s</text>`+"\n", at.x, at.y+5, s)
}

// drawBox draws a box around its middle; that of a final state has a second rim, as in
// every drawing of an automaton.
func drawBox(b *strings.Builder, class string, at, size point) {
	fmt.Fprintf(b, `<g class="%s"><rect class="box" x="%g" y="%g" width="%g" height="%g" rx="9"/>`,
		class, at.x-size.x/2, at.y-size.y/2, size.x, size.y)
	if class == "final" || class == "good" {
		fmt.Fprintf(b, `<rect class="rim" x="%g" y="%g" width="%g" height="%g" rx="6"/>`,
			at.x-size.x/2+3.5, at.y-size.y/2+3.5, size.x-7, size.y-7)
	}
	b.WriteString("</g>\n")
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

// edgeClass tells a step forward from one back, and from a new beginning.
func edgeClass(e fsm.Edge) string {
	switch {
	case e.From.Final():
		return "again"
	case e.To.Undoing() || e.To == fsm.Failed || e.To == fsm.Canceled:
		return "back"
	}
	return "ahead"
}

// routeOf is the way that was laid out for the edge, or the straight one.
func routeOf(e fsm.Edge) route {
	if r, ok := routes[[2]fsm.State{e.From, e.To}]; ok {
		return r
	}
	from, to := places[e.From], places[e.To]
	return route{[]point{from, to}, point{(from.x + to.x) / 2, (from.y + to.y) / 2}}
}

func drawEdge(b *strings.Builder, e fsm.Edge) {
	fmt.Fprintf(b, `<g class="%s"><path class="edge" d="%s"/>%s</g>`+"\n",
		edgeClass(e), pathOf(routeOf(e).way), tipOf(routeOf(e).way))
}

const (
	cornerRadius          = 14.0
	tipLength, tipBreadth = 10.0, 4.5
)

// pathOf goes along the points, with round corners, and ends where the tip begins.
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

// tipOf is the arrow's tip. It is drawn, not a marker: some viewers leave markers out.
func tipOf(way []point) string {
	end := way[len(way)-1]
	base := toward(end, way[len(way)-2], tipLength)
	dx, dy := (end.x-base.x)/tipLength*tipBreadth, (end.y-base.y)/tipLength*tipBreadth
	return fmt.Sprintf(`<path class="tip" d="M%.1f %.1f L%.1f %.1f L%.1f %.1f z"/>`,
		end.x, end.y, base.x-dy, base.y+dx, base.x+dy, base.y-dx)
}

// toward is the point at a distance from one point on the way to another.
func toward(from, to point, distance float64) point {
	share := distance / math.Hypot(to.x-from.x, to.y-from.y)
	return point{from.x + (to.x-from.x)*share, from.y + (to.y-from.y)*share}
}

// drawStart draws where an order comes in.
func drawStart(b *strings.Builder) {
	at := places[fsm.Pending]
	way := []point{{at.x, at.y - boxHeight/2 - 34}, {at.x, at.y - boxHeight/2}}
	fmt.Fprintf(b, `<g class="ahead"><circle class="tip" cx="%g" cy="%g" r="6"/><path class="edge" d="%s"/>%s</g>`+"\n",
		way[0].x, way[0].y, pathOf(way), tipOf(way))
}

func drawLegend(b *strings.Builder) {
	for i, line := range []struct{ class, text string }{
		{"ahead", "going forward"},
		{"undo", "taking back what was done"},
		{"good", "finished, everything done"},
		{"final", "finished, everything undone"},
	} {
		at := point{pictureWidth - 236, pictureHeight - 112 + 26*float64(i)}
		drawBox(b, line.class, at, point{30, 18})
		fmt.Fprintf(b, `<text class="note" x="%g" y="%g">%s</text>`+"\n", at.x+26, at.y+4.5, line.text)
	}
}
