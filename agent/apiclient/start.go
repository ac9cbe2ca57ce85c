package apiclient

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/volagent/volagent/agent/api"
)

// startLook is the interval at which a waiting request checks whether the agent failed to start.
const startLook = 500 * time.Millisecond

// answer sends the request and returns its response. If systemd holds the socket, the client can
// connect even while no agent runs, and may then never get an answer. Therefore answer also returns
// when an agent has failed to start and has written the reason to the start error file.
func (c *Client) answer(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	answered := make(chan struct{})
	defer close(answered)
	go func() {
		look := time.NewTicker(startLook)
		defer look.Stop()
		for {
			select {
			case <-answered:
				return
			case <-look.C:
			}
			if failed := startError(c.socket); failed != nil {
				cancel(failed)
				return
			}
		}
	}()

	resp, err := c.http.Do(req.WithContext(ctx))
	if err != nil {
		var failed *failedStart
		if errors.As(context.Cause(ctx), &failed) {
			err = failed
		}
		cancel(nil)
		return nil, err
	}

	resp.Body = &answerBody{ReadCloser: resp.Body, cancel: cancel}
	return resp, nil
}

// answerBody ends the request's context when the caller closes the body.
type answerBody struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (b *answerBody) Close() error {
	err := b.ReadCloser.Close()
	b.cancel(nil)
	return err
}

// failedStart is the error of an agent that could not start.
type failedStart struct{ reason *api.Error }

func (e *failedStart) Error() string { return e.reason.Message }

// maxStartError limits how much of the start error file the client reads, in bytes.
const maxStartError = 16 << 10

// startError returns the reason why the agent could not start, or nil if no reason is known.
func startError(socket string) *failedStart {
	// Without O_NONBLOCK, opening a pipe or another special file could block.
	f, err := os.OpenFile(api.StartError(socket), os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }() // a file opened for reading has no data to lose
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return nil
	}

	body, err := io.ReadAll(io.LimitReader(f, maxStartError))
	if err != nil {
		return nil
	}

	var reason api.ErrorBody
	if err := json.Unmarshal(body, &reason); err != nil || reason.Error == nil {
		return nil // the agent is still writing the file
	}
	return &failedStart{reason.Error}
}

// notStarted returns the error for an agent that cannot start.
func (c *Client) notStarted(failed *failedStart) *api.Error {
	return &api.Error{
		Code: api.CodeUnreachable, Message: fmt.Sprintf("the agent cannot start: %s", failed.reason.Message),
		Hint: cmp.Or(failed.reason.Hint, "journalctl -u volagent -n 50"), Details: map[string]string{"socket": c.socket},
	}
}
