// Package diagram draws the machine of an order: as a picture (SVG), for Mermaid, and as a page of the
// docs, which `pawl diagram` prints; for pages of the console with the orders in it, or with the way of one. It reads the
// machine and decides nothing.
package diagram
