package engine

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestReadingOrder: the comment of the package lists its files, each once.
func TestReadingOrder(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(doc), "The order in which to read the files.")
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	listed := strings.Fields(list)
	for _, file := range files {
		name := strings.TrimSuffix(file, ".go")
		if strings.HasSuffix(name, "_test") || name == "doc" {
			continue
		}
		if !slices.Contains(listed, name) {
			t.Errorf("%s is not in the reading order of doc.go", file)
		}
	}
	for line := range strings.Lines(list) {
		names, isList := strings.CutPrefix(line, "//\t")
		if !isList || strings.HasPrefix(names, " ") {
			continue
		}
		for _, name := range strings.Fields(strings.SplitN(names, "   ", 2)[0]) {
			if !slices.Contains(files, name+".go") {
				t.Errorf("doc.go lists %s, which is no file", name)
			}
		}
	}
}
