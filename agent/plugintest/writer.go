package plugintest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"
)

// writerScript opens the file $1 and keeps it open. For each line of its input, it writes one block
// to the file, syncs it, and reports the result in one line. It ends when its input ends.
const writerScript = `exec 3<>"$1" || exit 1
while read -r _; do
	if said=$(dd if=/dev/zero bs=4096 count=1 conv=fsync 2>&1 >&3); then echo written; else echo "$said" | head -n 1; fi
done`

// writer is a process that keeps a file of the volume open and writes to it. The agent does not open
// the file itself, because a process can be killed if the storage hangs.
type writer struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers chan string // closed when the process has ended
}

// startWriter starts a writer for a file, which the writer creates.
func startWriter(ctx context.Context, path string) (*writer, error) {
	w := &writer{cmd: exec.CommandContext(ctx, "/bin/sh", "-c", writerScript, "sh", path), answers: make(chan string, 1)}
	w.cmd.WaitDelay = writerWithin
	in, err := w.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := w.cmd.Start(); err != nil {
		return nil, err
	}

	w.in = in
	go func() {
		defer close(w.answers)
		for s := bufio.NewScanner(out); s.Scan(); {
			w.answers <- s.Text()
		}
	}()
	return w, nil
}

// writerWithin is how long the test waits for a write, and for the end of the writer.
const writerWithin = fileWithin

// errHangs is the error of a write that has not ended in time.
var errHangs = errors.New("the write has not ended")

// errNoWriter is the error if the process did not try to write. It says nothing about the storage.
var errNoWriter = errors.New("the writing process has ended")

// write writes one block and syncs it. A write that hangs ends with errHangs after writerWithin.
func (w *writer) write(ctx context.Context) error {
	if _, err := io.WriteString(w.in, "\n"); err != nil {
		return fmt.Errorf("%w: %w", errNoWriter, err)
	}

	timer := time.NewTimer(writerWithin)
	defer timer.Stop()
	select {
	case answer, alive := <-w.answers:
		if !alive {
			return errNoWriter
		}
		if answer != "written" {
			return errors.New(answer)
		}
		return nil
	case <-timer.C:
		return fmt.Errorf("%w after %s", errHangs, writerWithin)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// stop ends the writer. It waits at most writerWithin, because the kernel does not end a process whose
// write hangs.
func (w *writer) stop() error {
	_ = w.in.Close() // the process ends when its input ends
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for range w.answers { // Wait must follow the last read of the output
		}
		_ = w.cmd.Wait() // the exit status does not matter
	}()

	for _, within := range []time.Duration{writerWithin / 10, writerWithin} {
		select {
		case <-ended:
			return nil
		case <-time.After(within):
			_ = w.cmd.Process.Kill() // it may have ended meanwhile
		}
	}
	return fmt.Errorf("process %d still writes to the volume, and cannot be killed", w.cmd.Process.Pid)
}
