package diagram

import "pawl/fsm"

// The picture is laid out by hand, with its frame in machine.svg.tmpl: a successful run from left to right, and its
// undoing below and back to the left. A test checks that no edge runs through a box, that no two labels touch, and that
// every state and edge is there.

type point struct{ x, y float64 }

var places = map[fsm.State]point{
	fsm.Pending: {130, 90}, fsm.Charging: {330, 90}, fsm.Reserving: {530, 90}, fsm.Confirming: {730, 90}, fsm.Completed: {930, 90},
	fsm.Canceled: {130, 250}, fsm.Refunding: {530, 250}, fsm.Releasing: {730, 250},
	fsm.Failed: {330, 385},
}

// route is the path of an edge from box to box, and the middle of its label.
type route struct {
	way   []point
	label point
}

var routes = map[[2]fsm.State]route{
	{fsm.Pending, fsm.Charging}:     {[]point{{194, 90}, {266, 90}}, point{229, 78}},
	{fsm.Charging, fsm.Reserving}:   {[]point{{394, 90}, {466, 90}}, point{429, 78}},
	{fsm.Reserving, fsm.Confirming}: {[]point{{594, 90}, {666, 90}}, point{629, 78}},
	{fsm.Confirming, fsm.Completed}: {[]point{{794, 90}, {866, 90}}, point{829, 78}},

	{fsm.Pending, fsm.Canceled}:     {[]point{{130, 114}, {130, 226}}, point{130, 170}},
	{fsm.Charging, fsm.Canceled}:    {[]point{{290, 114}, {178, 226}}, point{234, 170}},
	{fsm.Charging, fsm.Failed}:      {[]point{{330, 114}, {330, 361}}, point{330, 170}},
	{fsm.Charging, fsm.Refunding}:   {[]point{{370, 114}, {482, 226}}, point{426, 170}},
	{fsm.Reserving, fsm.Refunding}:  {[]point{{530, 114}, {530, 226}}, point{530, 170}},
	{fsm.Reserving, fsm.Releasing}:  {[]point{{570, 114}, {682, 226}}, point{626, 170}},
	{fsm.Confirming, fsm.Releasing}: {[]point{{730, 114}, {730, 226}}, point{730, 170}},

	{fsm.Releasing, fsm.Refunding}: {[]point{{666, 250}, {594, 250}}, point{631, 238}},
	{fsm.Refunding, fsm.Canceled}:  {[]point{{466, 250}, {194, 250}}, point{262, 250}},
	{fsm.Refunding, fsm.Failed}:    {[]point{{530, 274}, {530, 385}, {394, 385}}, point{462, 385}},
	{fsm.Failed, fsm.Pending}:      {[]point{{266, 385}, {30, 385}, {30, 90}, {66, 90}}, point{148, 385}},
}
