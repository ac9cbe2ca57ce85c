package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"golang.org/x/term"
)

// How long nothing is shown: what is done sooner needs no words. Where no terminal
// is, what is written stays, so that waits longer.
const (
	shownAfter = time.Second
	saidAfter  = 2 * time.Second
)

// everySecond is how often the display is made anew.
const everySecond = time.Second

// eraseLine goes to the beginning of a terminal's line and empties it.
const eraseLine = "\r\x1b[K"

// told says in a few words how far something is; empty if nothing is known. It is
// asked every second, with a context that ends before the next.
type told func(ctx context.Context) string

// progress shows a person that something takes its time, on stderr: on a terminal in
// one line that is made anew every second and erased at the end, else in a line for
// each change of what is told.
type progress struct {
	out   *output
	doing string
	told  told
	begun time.Time
	said  string // the last that was written, where no terminal is
	drawn bool   // something stands on the terminal's line
}

// during begins to show what is being done ("creating volume \"data\""). What it
// returns ends that, and leaves the terminal's line empty. Nothing is shown where a
// program reads the output, and with -q.
func (o *output) during(ctx context.Context, doing string, state told) (end func()) {
	if !o.human() || o.quiet {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	over := make(chan struct{})
	p := &progress{out: o, doing: printable(doing), told: state, begun: o.now()}
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

// run shows until ctx ends.
func (p *progress) run(ctx context.Context) {
	first := saidAfter
	if p.out.terminalWidth() > 0 {
		first = shownAfter
	}
	for wait := first; p.out.pause(ctx, wait) == nil; wait = everySecond {
		state := p.ask(ctx)
		if ctx.Err() != nil {
			return // what it was asked for is over
		}
		p.show(state)
	}
}

// ask is bounded, so that an agent that hangs does not stop the clock.
func (p *progress) ask(ctx context.Context) string {
	if p.told == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, everySecond)
	defer cancel()
	return oneLine(p.told(ctx))
}

func (p *progress) show(state string) {
	columns := p.out.terminalWidth()
	if columns == 0 {
		if state != "" && state != p.said {
			p.said = state
			p.out.note("%s: %s", p.doing, state)
		}
		return
	}
	elapsed := p.out.now().Sub(p.begun).Truncate(time.Second)
	line := cutTo(joined("  ", p.doing, elapsed.String(), state), columns-1)
	p.drawn = true
	_, _ = io.WriteString(p.out.errw, eraseLine+line)
}

func (p *progress) erase() {
	if p.drawn {
		_, _ = io.WriteString(p.out.errw, eraseLine)
	}
}

// cutTo shortens a text to some columns of a terminal: a line that wraps could not be
// erased.
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

// terminalWidth is that of the terminal that stderr is, in columns; 0 if it is none
// on which a line can be erased.
func (o *output) terminalWidth() int {
	if o.columns == nil {
		return 0
	}
	return o.columns()
}

// columns returns how wide the terminal is that a file is; 0 if it is none.
func columns(f *os.File) int {
	if !term.IsTerminal(int(f.Fd())) {
		return 0
	}
	wide, _, err := term.GetSize(int(f.Fd()))
	if err != nil || wide <= 0 {
		return 80 // a serial line does not know
	}
	return wide
}

// pluginProgress tells how a plugin is that is not ready.
func pluginProgress(client *apiclient.Client, id string) told {
	return func(ctx context.Context) string {
		p, err := client.Plugin(ctx, id)
		if err != nil || p.State == api.PluginReady {
			return ""
		}
		return fmt.Sprintf("waiting for plugin %q, which is %s", id, joined(": ", p.State, p.Reason))
	}
}

// volumeProgress tells which step a volume is at and how far that is, or how its plugin
// is if that is not ready. The plugin may be left out where the volume exists.
func volumeProgress(client *apiclient.Client, id, plugin string) told {
	return func(ctx context.Context) string {
		v, err := client.Volume(ctx, id)
		if err == nil {
			plugin = v.Spec.PluginID
		}
		if plugin != "" {
			if words := pluginProgress(client, plugin)(ctx); words != "" {
				return words
			}
		}
		if err != nil || v.Attempt == nil {
			return ""
		}
		if at := v.Attempt; at.Waits != "" || at.Step == "wait" {
			return at.Waits
		}
		if at := v.Attempt; len(at.HeldBy) > 0 { // the line is short, and this is what helps
			return joined(" ", at.Step, "is held up by", at.HeldBy[0], andMore(len(at.HeldBy)-1))
		}
		return joined(": ", v.Attempt.Step, v.Attempt.Code, v.Attempt.Message, v.Attempt.Progress)
	}
}

func andMore(n int) string {
	if n <= 0 {
		return ""
	}
	return fmt.Sprintf("and %d more", n)
}
