package output

import (
	"context"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// These are the delays before the first progress line. A command that ends earlier shows no
// progress. The delay is longer without a terminal, because the line can be erased only on a
// terminal.
const (
	shownAfter = time.Second
	saidAfter  = 2 * time.Second
)

// everySecond is the time between two updates of the display.
const everySecond = time.Second

// eraseLine moves the cursor to the start of the line and erases the line.
const eraseLine = "\r\x1b[K"

// Status returns a short description of an operation's progress, or "" if the progress is unknown.
// The display calls it every second, with a context that ends before the next call.
type Status func(ctx context.Context) string

// progress is a display on stderr that shows the progress of an operation. On a terminal, it
// redraws one line every second, and erases the line at the end. Otherwise, it writes a new line
// for each change.
type progress struct {
	out   *Printer
	doing string
	told  Status
	begun time.Time
	said  string // the last line that was written, if stderr is not a terminal
	drawn bool   // whether there is a line on the terminal to erase
}

// During shows the progress of an operation, such as "creating volume \"data\"". The returned
// function ends the display and erases the line on the terminal. With -q, or if the output is for a
// program, During shows nothing.
func (o *Printer) During(ctx context.Context, doing string, state Status) (end func()) {
	if !o.Human() || o.Quiet {
		return func() {}
	}

	ctx, cancel := context.WithCancel(ctx)
	over := make(chan struct{})
	p := &progress{out: o, doing: Printable(doing), told: state, begun: o.Now()}
	go func() {
		defer close(over)
		p.run(ctx)
	}()

	return func() {
		cancel()
		<-over
		p.erase()
	}
}

// run updates the display until ctx ends.
func (p *progress) run(ctx context.Context) {
	first := saidAfter
	if p.out.Columns() > 0 {
		first = shownAfter
	}

	for wait := first; p.out.Pause(ctx, wait) == nil; wait = everySecond {
		state := p.ask(ctx)
		if ctx.Err() != nil {
			return // the operation has ended
		}
		p.show(state)
	}
}

// ask returns the current progress. It has a time limit, so that the display continues even if the
// agent does not answer.
func (p *progress) ask(ctx context.Context) string {
	if p.told == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, everySecond)
	defer cancel()
	return OneLine(p.told(ctx))
}

func (p *progress) show(state string) {
	width := p.out.Columns()
	if width == 0 {
		if state != "" && state != p.said {
			p.said = state
			p.out.Note("%s: %s", p.doing, state)
		}
		return
	}

	elapsed := p.out.Now().Sub(p.begun).Truncate(time.Second)
	line := cutTo(Joined("  ", p.doing, elapsed.String(), state), width-1)
	p.drawn = true
	_, _ = io.WriteString(p.out.Stderr, eraseLine+line)
}

func (p *progress) erase() {
	if p.drawn {
		_, _ = io.WriteString(p.out.Stderr, eraseLine)
	}
}

// cutTo shortens a text to a number of columns, because a line that wraps could not be erased.
func cutTo(s string, columns int) string {
	if width(s) <= columns {
		return s
	}

	var b strings.Builder
	for _, r := range s {
		if width(b.String()+string(r)) >= columns {
			break
		}
		b.WriteRune(r)
	}

	return b.String() + "…"
}

// Columns returns the width of the terminal f. It returns 0 if f is not a terminal.
func Columns(f *os.File) int {
	if !term.IsTerminal(int(f.Fd())) {
		return 0
	}
	wide, _, err := term.GetSize(int(f.Fd()))
	if err != nil || wide <= 0 {
		return 80 // a serial line has no known width, so assume 80
	}
	return wide
}
