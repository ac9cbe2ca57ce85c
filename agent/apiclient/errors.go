package apiclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/user"
	"strconv"
	"syscall"

	"github.com/volagent/volagent/agent/api"
)

// DetailDropped is a key in the details of an error with api.CodeUnreachable. It means that the
// connection ended before the agent answered. The request may have taken effect.
const DetailDropped = "dropped"

// dialError is an error from connecting to the socket. It distinguishes a failed connection attempt
// from a lost connection.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// transportError explains why the client got no answer. If the caller's context has ended,
// transportError returns the context's error and ignores the connection's error.
func (c *Client) transportError(ctx context.Context, err error) error {
	if cause := ctx.Err(); cause != nil {
		return fmt.Errorf("no answer from the agent: %w", cause)
	}

	var dial *dialError
	var failed *failedStart
	dialled := errors.As(err, &dial)
	if dialled && !errors.Is(err, fs.ErrPermission) {
		failed = startError(c.socket)
	}
	switch {
	case failed != nil || errors.As(err, &failed):
		return c.notStarted(failed)
	case !dialled:
		return &api.Error{
			Code: api.CodeUnreachable, Message: fmt.Sprintf("the agent on %s disconnected before it answered: %v", c.socket, unwrapped(err)),
			Hint: "systemctl status volagent", Details: map[string]string{"socket": c.socket, DetailDropped: "true"},
		}
	case errors.Is(err, fs.ErrPermission):
		return &api.Error{
			Code: api.CodePermission, Message: fmt.Sprintf("no permission to use the socket %s", c.socket),
			Hint: permissionHint(c.socket), Details: map[string]string{"socket": c.socket},
		}
	default:
		return &api.Error{
			Code: api.CodeUnreachable, Message: fmt.Sprintf("no agent answers on %s: %s", c.socket, reason(err)),
			Hint: startHint(c.socket), Details: map[string]string{"socket": c.socket},
		}
	}
}

// reason describes in plain words why the client cannot connect.
func reason(err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "there is no such socket"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "no process listens on it"
	case errors.Is(err, syscall.EINVAL):
		return "the path is too long for a socket"
	}

	return unwrapped(err).Error()
}

// unwrapped removes the errors that net and http wrap around another error. These errors contain an
// invented URL, which would confuse the reader.
func unwrapped(err error) error {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err
		}
		err = next
	}
}

// permissionHint returns a hint that names the group of the socket, if the caller can read it.
func permissionHint(socket string) string {
	group := "the socket's group (socket_group in the agent's configuration)"
	if info, err := os.Stat(socket); err == nil {
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Gid != 0 {
			name := strconv.FormatUint(uint64(st.Gid), 10)
			if g, err := user.LookupGroupId(name); err == nil {
				name = g.Name
			}
			group = "the group " + name
		}
	}

	return "run it as root, or as a member of " + group
}

// answeredError returns the error from an unsuccessful answer.
func (c *Client) answeredError(ctx context.Context, resp *http.Response) error {
	const most = 1 << 20
	body, err := io.ReadAll(io.LimitReader(resp.Body, most))
	if err != nil {
		return c.transportError(ctx, err)
	}

	var answer api.ErrorBody
	if err := json.Unmarshal(body, &answer); err != nil || answer.Error == nil || answer.Error.Code == "" {
		return c.foreign(fmt.Sprintf("it answered %q without a reason", resp.Status))
	}
	return answer.Error
}

// foreign returns the error for an answer that an agent of this version would not give.
func (c *Client) foreign(what string) error {
	return &api.Error{
		Code: api.CodeFailed, Message: fmt.Sprintf("the server on %s is not an agent of this version: %s", c.socket, what),
		Hint: "check that the socket is volagent's, and compare the versions with: volctl version",
	}
}

// startHint returns the command that a user should run if no agent answers. The service uses the
// default socket unless its configuration names another one.
func startHint(socket string) string {
	if socket == DefaultSocket {
		return "systemctl start volagent"
	}
	return "start the agent for this socket, or name another socket with --socket or VOLCTL_SOCKET"
}
