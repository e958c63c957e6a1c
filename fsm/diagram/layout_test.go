package diagram

import (
	"math"
	"testing"

	"pawl/fsm"
	"pawl/test/assert"
)

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
		if len(places) != len(fsm.States()) || len(routes) != len(fsm.Edges()) {
			t.Errorf("%d places for %d states, %d routes for %d edges", len(places), len(fsm.States()), len(routes), len(fsm.Edges()))
		}
		for _, e := range fsm.Edges() {
			if _, ok := routes[[2]fsm.State{e.From, e.To}]; !ok {
				t.Errorf("%s to %s has no route", e.From, e.To)
			}
		}
	})
	t.Run("no edge runs through a box", func(t *testing.T) {
		t.Parallel()
		for _, e := range fsm.Edges() {
			for _, p := range along(routeOf(e).way) {
				for _, box := range boxes() {
					if box.holds(p) {
						t.Fatalf("%s to %s runs through %s at %v", e.From, e.To, box.name, p)
					}
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
				if rate.touches(other) {
					t.Errorf("%s touches %s", rate.name, other.name)
				}
			}
			for k, e := range fsm.Edges() {
				for _, p := range along(routeOf(e).way) {
					if k != i && rate.holds(p) {
						t.Fatalf("%s lies on %s to %s", rate.name, e.From, e.To)
					}
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
				if label.touches(other) {
					t.Errorf("label of %s touches %s", label.name, other.name)
				}
			}
			for k, e := range fsm.Edges() {
				for _, p := range along(routeOf(e).way) {
					if k != i && label.holds(p) {
						t.Fatalf("label of %s lies on %s to %s", label.name, e.From, e.To)
					}
				}
			}
			if !paper.holds(point{label.left, label.top}) || !paper.holds(point{label.right, label.bottom}) {
				t.Errorf("label of %s is not on the paper", label.name)
			}
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
