package pluginlog

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

const (
	// journalWithin is the time limit of one read of the journal, so that no status request hangs.
	journalWithin = 2 * time.Second
	// journalFresh is how long the agent reuses the last lines that it has read. So if plugins are
	// listed several times in quick succession, the agent does not start a journalctl process for
	// each plugin every time.
	journalFresh = time.Second
)

// Journal reads the lines of a unit from systemd's journal. Concurrent status requests for the unit
// share one journalctl process.
type Journal struct {
	unit string

	mu    sync.Mutex
	busy  chan struct{} // closed when the current read ends; nil if there is none
	at    time.Time     // when the journal was last read
	n     int
	lines []string
	err   error
}

// NewJournal returns the log of a unit.
func NewJournal(unit string) *Journal { return &Journal{unit: unit} }

// Path implements Log. It returns "", because the journal is not a file of the agent.
func (j *Journal) Path() string { return "" }

// Freshen implements Log. It does nothing, because each Tail reads the journal.
func (j *Journal) Freshen(time.Duration) {}

// Follow implements Log. It returns no last lines itself, because the journalctl process of its
// reader prints both the last lines and the new ones.
func (j *Journal) Follow(n int, scrub Scrub) (last []string, rest Reader, err error) {
	return nil, func(ctx context.Context, tell func(lines []string) error) error {
		return followJournal(ctx, j.unit, n, func(line string) error { return tell(cleaned([]string{line}, scrub)) })
	}, nil
}

// journalctl returns the command that prints the last n lines of a unit.
func journalctl(ctx context.Context, unit string, n int, more ...string) *exec.Cmd {
	args := append([]string{"--no-pager", "--quiet", "--output=cat", "--lines=" + strconv.Itoa(n)}, more...)
	cmd := exec.CommandContext(ctx, "journalctl", append(args, "--unit="+unit)...)
	cmd.WaitDelay = journalWithin
	return cmd
}

// Tail implements Log. It takes at most the time journalWithin.
func (j *Journal) Tail(n int, scrub Scrub) ([]string, error) {
	limit := time.NewTimer(journalWithin)
	defer limit.Stop()
	for {
		j.mu.Lock()
		if j.n >= n && time.Since(j.at) < journalFresh {
			defer j.mu.Unlock()
			return cleaned(j.lines[max(0, len(j.lines)-n):], scrub), j.err
		}
		if j.busy == nil {
			j.busy = make(chan struct{})
			go j.read(n)
		}

		busy := j.busy
		j.mu.Unlock()

		select {
		case <-busy:
		case <-limit.C:
			return nil, volume.Errorf(volume.ErrTimeout, "cannot read the journal of unit %s: journalctl does not answer", j.unit).WithHint("%s", suggest.Command("journalctl -u %s", j.unit))
		}
	}
}

// read reads the last n lines of the unit and stores them.
func (j *Journal) read(n int) {
	ctx, cancel := context.WithTimeout(context.Background(), journalWithin)
	defer cancel()

	cmd := journalctl(ctx, j.unit, n)
	var out, said limited
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("cannot read the journal of unit %s: %w: %s", j.unit, err, printable(strings.TrimSpace(said.String())))
	}

	var lines []string
	if text := strings.TrimRight(out.String(), "\n"); text != "" {
		lines = strings.Split(text, "\n")
	}

	j.mu.Lock()
	defer j.mu.Unlock()

	j.at, j.n, j.lines, j.err = time.Now(), n, lines[max(0, len(lines)-n):], err
	close(j.busy)
	j.busy = nil
}

// limited is a buffer that keeps only the last tailBytes bytes.
type limited struct{ bytes.Buffer }

// Write implements io.Writer.
func (l *limited) Write(p []byte) (int, error) {
	n := len(p)
	if more := l.Len() + n - tailBytes; more > 0 {
		l.Next(min(more, l.Len()))
		p = p[max(0, n-tailBytes):]
	}

	l.Buffer.Write(p)
	return n, nil
}

// followJournal calls tell for the last n lines of a unit and then for every new line. It returns
// when ctx ends or tell fails.
func followJournal(ctx context.Context, unit string, n int, tell func(line string) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	cmd := journalctl(ctx, unit, n, "--follow")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}

	if err != nil {
		return fmt.Errorf("cannot read the journal of unit %s: %w", unit, err)
	}

	// If a line is too long, ReadLine returns it in several pieces.
	for r := bufio.NewReaderSize(out, maxLine); err == nil; {
		var line []byte
		line, _, err = r.ReadLine()
		if err == nil {
			err = tell(string(line))
		}
	}

	asked := ctx.Err() != nil
	cancel()
	ended := cmd.Wait()
	switch {
	case asked:
		return nil
	case errors.Is(err, io.EOF):
		return fmt.Errorf("cannot read the journal of unit %s: journalctl ended: %w", unit, errors.Join(ended, io.EOF))
	default:
		return err
	}
}
