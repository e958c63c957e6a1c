// Package diagram draws the machine of an order: as a picture (SVG), for Mermaid, and as a page of the docs, which
// `pawl diagram` prints; for pages of the console, with the number of orders in each state, or with the path of one
// order.
package diagram
