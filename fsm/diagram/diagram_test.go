package diagram

import (
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pawl/fsm"
)

var update = flag.Bool("update", false, "write the files of docs that are compared")

func TestDocs(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"state-machine.md": Markdown(), "state-machine.svg": SVG()} {
		t.Run(name+" is what the machine says", func(t *testing.T) {
			t.Parallel()
			path := filepath.Join("..", "..", "docs", name)
			if *update {
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			stored, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if string(stored) != text {
				t.Errorf("%s is not the machine's any more: go generate ./...", path)
			}
		})
	}
}

func TestEveryEdgeIsInTheTableAndInTheDiagram(t *testing.T) {
	t.Parallel()
	for _, e := range fsm.Edges() {
		if row := "| `" + string(e.From) + "` | " + string(e.Event) + " | `" + string(e.To) + "` |\n"; strings.Count(Markdown(), row) != 1 {
			t.Errorf("the table does not have %q once", row)
		}
		if arrow := "    " + string(e.From) + " --> " + string(e.To) + ": " + string(e.Event) + "\n"; strings.Count(Mermaid(), arrow) != 1 {
			t.Errorf("the diagram does not have %q once", arrow)
		}
	}
	if !strings.Contains(Mermaid(), "    [*] --> pending\n") || strings.Count(Mermaid(), "--> [*]") != 3 {
		t.Error("the diagram does not begin at pending and end at three states")
	}
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
		if err != nil {
			t.Fatal(err)
		}
		if text, ok := token.(xml.CharData); ok {
			texts[string(text)]++
		}
	}
	for _, s := range fsm.States() {
		if texts[string(s)] != 1 {
			t.Errorf("%s is drawn %d times", s, texts[string(s)])
		}
	}
	want := map[fsm.Event]int{}
	for _, e := range fsm.Edges() {
		want[e.Event]++
	}
	for event, n := range want {
		if texts[string(event)] != n {
			t.Errorf("%s is drawn %d times, want %d", event, texts[string(event)], n)
		}
	}
}
