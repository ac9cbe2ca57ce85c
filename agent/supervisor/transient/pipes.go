package transient

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// heard contains the pipes that carry the output of a service to the writers of a command.
type heard struct {
	out, errs *os.File // the write ends of the pipes
	from      []*os.File
	done      chan struct{}
	readers   int
}

// listen makes the pipes. If standard output and standard error have the same writer, it makes only
// one pipe.
func listen(cmd *exec.Cmd) (*heard, error) {
	h := &heard{done: make(chan struct{}, 2)}
	var err error
	if h.out, err = h.pipe(cmd.Stdout); err != nil {
		return nil, err
	}
	if cmd.Stderr == cmd.Stdout {
		return h, nil
	}
	if h.errs, err = h.pipe(cmd.Stderr); err != nil {
		h.close(0)
		return nil, err
	}

	return h, nil
}

func (h *heard) pipe(w io.Writer) (*os.File, error) {
	r, to, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("cannot make a pipe for a command's output: %w", err)
	}

	h.from, h.readers = append(h.from, r), h.readers+1
	go func() {
		// Copy ends with the output, or when r is closed; its error does not matter
		_, _ = io.Copy(w, r)
		r.Close() //nolint:errcheck // the pipe was only read
		h.done <- struct{}{}
	}()

	return to, nil
}

// close reads the pipes until their end. A child of the command may keep them open, so close waits
// at most for the duration patience. After close has returned, nothing is written to the writers
// any longer.
func (h *heard) close(patience time.Duration) {
	for _, f := range []*os.File{h.out, h.errs} {
		if f != nil {
			f.Close() //nolint:errcheck // the agent wrote nothing to the pipe
		}
	}

	h.out, h.errs = nil, nil
	timeout := time.After(patience)
	for h.readers > 0 {
		select {
		case <-h.done:
			h.readers--
		case <-timeout:
			for _, r := range h.from {
				r.Close() //nolint:errcheck // makes the reading goroutine end
			}
			timeout = nil
		}
	}
}
