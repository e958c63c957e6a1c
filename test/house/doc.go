// Package house holds the repository to its rules: what may import what, where SQL lives, what the documentation promises.
package house
