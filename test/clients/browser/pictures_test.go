package browser

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/cdproto/page"
)

var update = flag.Bool("update", false, "write the pictures in docs/console, with -run 'TestPictures|TestLab' alone")

// pictures are those in docs/console that show what fill has stored. Others are made where there is more to see.
var pictures = []struct {
	file, path, shows string
	look              look
	ends              string // what the picture goes down to, where that is below the window
}{
	{"attention", "/console/attention", "stuck-1", look{"light", 1280}, "header"},
	{"orders", "/console/orders", "declined-1", look{"dark", 1280}, "header"},
	{"order", "/console/order?id=done-1", "12.50", look{"light", 1280}, "section:has(#history)"},
	{"telephone", "/console/order?id=stuck-1", "back on Monday", look{"light", 390}, "header"},
	{"action", "/console/order/cancel?id=stuck-2", "What will change", look{"light", 1280}, "header"},
}

// TestPictures writes the pictures, with -update. Otherwise they must only be there.
func TestPictures(t *testing.T) {
	t.Parallel()
	for _, picture := range pictures {
		t.Run(picture.file, func(t *testing.T) {
			t.Parallel()
			if !*update {
				if _, err := os.Stat(filepath.Join("../../../docs/console", picture.file+".png")); err != nil {
					t.Error(err)
				}
				return
			}
			b := maria(t)
			b.look(picture.look)
			b.visit(picture.path)
			b.shows(picture.shows)
			b.pictureOf(picture.file, picture.ends)
		})
	}
}

// picture writes what the window shows into docs/console, with -update.
func (b *tab) picture(name string) {
	b.t.Helper()
	b.pictureOf(name, "header")
}

// pictureOf writes what the window shows, and what is below it down to the end of something.
func (b *tab) pictureOf(name, selector string) {
	b.t.Helper()
	if !*update {
		return
	}
	view := eval[page.Viewport](b, fmt.Sprintf(`({x: 0, y: 0, width: innerWidth, height: Math.max(innerHeight, document.querySelector(%q).getBoundingClientRect().bottom + scrollY), scale: 1})`, selector))
	made := call(b, page.CaptureScreenshot, page.CaptureScreenshotParams{Clip: &view, CaptureBeyondViewport: new(true)})
	if err := os.WriteFile(filepath.Join("../../../docs/console", name+".png"), made.Data, 0o644); err != nil {
		b.t.Fatal(err)
	}
}
