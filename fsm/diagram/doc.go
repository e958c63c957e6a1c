// Package diagram draws the machine of an order for the docs: as a picture (SVG), for Mermaid, and as the
// page that holds both. `pawl diagram` prints them. It reads the machine and decides nothing.
package diagram
