package output

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// Progress draws a bar on a terminal, and nothing elsewhere. A negative total is unknown.
func Progress(total int64, what string, out io.Writer) *progressbar.ProgressBar {
	if !terminal(out) {
		out = io.Discard
	}
	return NewBar(total, what, out)
}

// NewBar draws a bar on any writer.
func NewBar(total int64, what string, out io.Writer) *progressbar.ProgressBar {
	return progressbar.NewOptions64(total, progressbar.OptionSetDescription(what), progressbar.OptionSetWriter(out),
		progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionClearOnFinish(),
		progressbar.OptionSetSpinnerChangeInterval(0), // a spinner would be drawn by a goroutine that outlives the bar
		progressbar.OptionThrottle(100*time.Millisecond))
}

func terminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// Colored reports whether to print in color: on a terminal, unless NO_COLOR is set (no-color.org) or it has no colors.
func Colored(out io.Writer) bool {
	return terminal(out) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// Paint returns a word for a state, in its color if the output is colored.
func Paint(out io.Writer, word string) string {
	if !Colored(out) {
		return word
	}
	return color(word)
}

// colors of words: green is done, red failed or waits for a person, yellow waits or is in doubt. Others are as usual.
var colors = map[string]int{
	"completed": 32, "done": 32, "delivered": 32, "enabled": 32, "right": 32,
	"failed": 31, "attention": 31, "refused": 31, "exhausted": 31, "wrong": 31, "held": 31, "disabled": 31,
	"approval": 33, "paused": 33, "retry": 33, "callback": 33, "canceled": 33, "unknown": 33, "in_doubt": 33, "waiting": 33,
}

func color(text string) string {
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", cmp.Or(colors[text], 39), text)
}
