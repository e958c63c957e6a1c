package browser

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"
)

var update = flag.Bool("update", false, "write the pictures of docs/console.md anew")

// pictures are those of docs/console.md that show what fill has stored. Others are made where there is more to see.
var pictures = []struct {
	file, path, shows string
	look              look
}{
	{"attention", "/console/attention", "stuck-1", look{"light", 1280}},
	{"orders", "/console/orders", "declined-1", look{"dark", 1280}},
	{"order", "/console/order?id=done-1", "12.50", look{"light", 1280}},
	{"telephone", "/console/order?id=stuck-1", "back on Monday", look{"light", 390}},
	{"action", "/console/order/cancel?id=stuck-2", "What will change", look{"light", 1280}},
}

// TestPictures writes the pictures, with -update. Otherwise they must only be there.
func TestPictures(t *testing.T) {
	t.Parallel()
	for _, picture := range pictures {
		t.Run(picture.file, func(t *testing.T) {
			t.Parallel()
			if !*update {
				if _, err := os.Stat(filepath.Join("../../docs/console", picture.file+".png")); err != nil {
					t.Error(err)
				}
				return
			}
			b := maria(t)
			b.look(picture.look)
			b.visit(picture.path)
			b.shows(picture.shows)
			b.picture(picture.file)
		})
	}
}

// picture writes what the window shows into docs/console, with -update.
func (b *tab) picture(name string) {
	b.t.Helper()
	if *update {
		if err := os.WriteFile(filepath.Join("../../docs/console", name+".png"), run(b, chromedp.CaptureScreenshot()), 0o644); err != nil {
			b.t.Fatal(err)
		}
	}
}
