package browser

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/page"

	"pawl/test/assert"
)

var update = flag.Bool("update", false, "make the pictures in docs/console, with -run 'TestPictures|TestLab' alone")

const (
	picturesFolder = "../../../docs/console"
	digestsFile    = picturesFolder + "/digests.txt"
)

// pictures are the screens in the documentation. ends is what a picture goes down to if that is below the window, and the
// last thing that its digest covers; header: only the window is shown, and all is covered.
var pictures = []struct{ name, path, shows, ends string }{
	{"overview", "/console", "Endpoint whe_2", "section:has(#waiting)"},
	{"attention", "/console/attention", "stuck-1", "header"},
	{"orders", "/console/orders", "declined-1", "header"},
	{"search", "/console/orders?q=status:faild", "Did you mean", "header"},
	{"order", "/console/order?id=done-1", "12.50", "section:has(#stock)"},
	{"stuck", "/console/order?id=stuck-1", "Why it needs a person", "section:has(#stock)"},
	{"refund", "/console/order/refund?id=done-1&amount=5&preview=yes", "goes back to the customer", "header"},
	{"errors", "/console/errors", "the card was declined", "header"},
	{"webhooks", "/console/webhooks", "the answer was 500", "header"},
	{"books", "/console/books", "The books are right", "#months ~ div"},
	{"problem", "/console/order?id=none", "There is no order", "header"},
}

// pictureLooks are how each of them is shown.
var pictureLooks = []look{{"light", 1440}, {"dark", 1440}, {"light", 1024}, {"dark", 1024}, {"light", 390}, {"dark", 390}}

// TestPictures fails if a picture in docs/console no longer shows what the page shows, and makes it anew with -update.
func TestPictures(t *testing.T) { //nolint:paralleltest // before the other tests store more
	verifyBooks(t)
	b := maria(t)
	b.visit("/console/books")
	b.shows("The books are right") // which the overview says, too
	for _, picture := range pictures {
		b.visit(picture.path)
		b.shows(picture.shows)
		b.wait("is live", `!document.querySelector(".live") || `+isLive)
		for _, l := range pictureLooks {
			b.look(l)
			b.picture(picture.name, picture.ends)
		}
		if picture.name == "problem" {
			b.forgive("404")
		}
	}
}

func verifyBooks(t *testing.T) {
	t.Helper()
	began(t)
	assert.NoError(t, assert.Err(shared.api.StartVerification(t.Context())))
}

var digests sync.Mutex // the file

// picture compares what the window shows with the digest of the picture in the documentation; or, with -update, makes both.
func (b *tab) picture(name, ends string) {
	b.t.Helper()
	width := eval[int64](b, "innerWidth")
	name = fmt.Sprintf("%s-%d-%s", name, width, eval[string](b, `matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"`))
	seen := eval[string](b, fmt.Sprintf(seenOf, ends))
	digest := fmt.Sprintf("%x", sha256.Sum256([]byte(seen)))
	digests.Lock()
	defer digests.Unlock()
	text, err := os.ReadFile(digestsFile)
	assert.Require(b.t, err == nil || *update, err)
	known := map[string]string{}
	for line := range strings.Lines(string(text)) {
		of, is, _ := strings.Cut(strings.TrimSpace(line), " ")
		known[of] = is
	}
	if !*update {
		if known[name] != digest {
			b.t.Errorf("docs/console/%s.png shows another page: go test ./browser -run 'TestPictures|TestLab' -update", name)
			b.t.Log(seen)
		}
		return
	}
	known[name] = digest
	var lines strings.Builder
	for _, of := range slices.Sorted(maps.Keys(known)) {
		fmt.Fprintln(&lines, of, known[of])
	}
	if err := os.WriteFile(digestsFile, []byte(lines.String()), 0o644); err != nil { //nolint:gosec // it is for everybody
		b.t.Fatal(err)
	}
	b.capture(filepath.Join(picturesFolder, name+".png"), ends)
}

// seenOf lists the elements of a page up to one of them with what is seen of each: its text, and the part of its style that
// does not depend on fonts. Numbers, times, the host and what changes by itself are masked.
const seenOf = `(() => {
	const last = document.querySelector(%q), whole = last.matches("header"), mask = (text) => text
		.replace(/[\d][\d.,:]*/g, "#").replace(/# (ms|s|min|h|days)\b/g, "#").replace(/#s\b/g, "#ms").replace("; the next try is", "").replace(/\s+/g, " ").trim();
	const lines = [];
	const walk = (element, depth) => {
		if (!element.checkVisibility() || element.matches("script, time, .live, #books ~ p, .lab li:nth-child(n+5), #books ~ table :is(small, br)")) return;
		if (!whole && last.compareDocumentPosition(element) & Node.DOCUMENT_POSITION_FOLLOWING && !last.contains(element)) return;
		const style = getComputedStyle(element);
		const text = mask([...element.childNodes].filter((n) => n.nodeType === 3).map((n) => n.data).join(" "));
		lines.push([depth, element.localName, style.display, style.color, style.backgroundColor, style.fontSize, style.fontWeight,
			style.paddingLeft, style.borderBottomWidth, text].join(" "));
		for (const child of element.children) walk(child, depth + 1);
	};
	walk(document.body, 0);
	return lines.join("\n");
})()`

// capture writes what the window shows, and what is below it down to the end of an element.
func (b *tab) capture(file, ends string) {
	b.t.Helper()
	view := eval[page.Viewport](b, fmt.Sprintf(`({x: 0, y: 0, width: innerWidth, scale: 1,
		height: Math.max(innerHeight, document.querySelector(%q).getBoundingClientRect().bottom + scrollY)})`, ends))
	made := call(b, page.CaptureScreenshot, page.CaptureScreenshotParams{Clip: &view, CaptureBeyondViewport: new(true)})
	whole, err := png.Decode(bytes.NewReader(made.Data))
	assert.NoError(b.t, err)
	var small bytes.Buffer
	assert.NoError(b.t, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&small, paletted(whole)))
	if err := os.WriteFile(file, small.Bytes(), 0o644); err != nil { //nolint:gosec // it is for everybody
		b.t.Fatal(err)
	}
}

// paletted is a picture in its most frequent colors, and then those that differ most: pages have few, and shades of them at
// the edges of letters.
func paletted(whole image.Image) *image.Paletted {
	times := map[color.RGBA]int{}
	bounds := whole.Bounds()
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			times[color.RGBAModel.Convert(whole.At(x, y)).(color.RGBA)]++ //nolint:forcetypeassert // the model of it
		}
	}
	palette := color.Palette{}
	for _, c := range slices.SortedFunc(maps.Keys(times), func(a, b color.RGBA) int { return cmp.Compare(times[b], times[a]) }) {
		if len(palette) < 40 || len(palette) < 160 && distance(c, palette.Convert(c)) > 20 {
			palette = append(palette, c)
		}
	}
	small := image.NewPaletted(bounds, palette)
	draw.Draw(small, bounds, whole, bounds.Min, draw.Src)
	return small
}

// distance is the largest difference of a part of two colors.
func distance(a, b color.Color) int {
	r, g, blue, _ := a.RGBA()
	r2, g2, blue2, _ := b.RGBA()
	far := func(x, y uint32) int { return max(int(x)-int(y), int(y)-int(x)) >> 8 }
	return max(far(r, r2), far(g, g2), far(blue, blue2))
}
