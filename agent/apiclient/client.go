// Package apiclient is the Go client of volagent's HTTP API on its unix socket. volctl uses it, and
// other programs may import it too.
//
// The client has one method for each route of package api. Errors are of the type *[api.Error],
// which errors.As finds. If a context ends, however, the method returns an error that wraps the
// context's error. If the connection ends without an answer, the client repeats a GET request once,
// but no other request. A caller can repeat any call except events and logs, because the agent
// answers the same request in the same way.
package apiclient

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/api"
)

// DefaultSocket is the socket of an agent with default settings.
const DefaultSocket = "/run/volagent/volagent.sock"

// maxAnswer limits the size, in bytes, of an answer that the client reads into memory. Without it,
// another server on the socket could use up the memory.
const maxAnswer = 64 << 20

// Client sends requests to one agent. It is safe for concurrent use.
type Client struct {
	socket string
	http   *http.Client
}

// New returns a client for the agent that listens on a unix socket. It does not
// connect yet.
func New(socket string) *Client {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			conn, err := d.DialContext(ctx, "unix", socket)
			if err != nil {
				return nil, &dialError{err}
			}
			return conn, nil
		},
		DisableCompression: true,
		// A busy program may have about this many requests in flight. With Go's default of two idle
		// connections, most of the requests would need a new connection.
		MaxIdleConnsPerHost: 128,
		IdleConnTimeout:     30 * time.Second,
	}

	return &Client{socket: socket, http: &http.Client{
		Transport: transport,
		// The agent never redirects. If a redirect arrives, Go's HTTP server has cleaned the path,
		// and may have changed an id in the path.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Socket returns the path of the agent's socket.
func (c *Client) Socket() string { return c.socket }

// Close closes idle connections. The client can still be used.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// call is one request. The elements of path may be ids, so send escapes them.
type call struct {
	method string
	path   []string
	query  url.Values
	body   any
	text   []byte    // a request body that is not JSON
	stream io.Reader // a request body that is not JSON and is streamed
}

// send sends the request. It returns the response only if the status is a success. The caller must
// close the body.
func (c *Client) send(ctx context.Context, r call) (*http.Response, error) {
	for _, part := range r.path {
		if part == "" || part == "." || part == ".." {
			return nil, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("an id cannot be %q", part)}
		}
	}

	var body io.Reader = http.NoBody
	if r.body != nil {
		b, err := json.Marshal(r.body)
		if err != nil {
			return nil, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("cannot encode the request: %v", err)}
		}
		body = bytes.NewReader(b)
	}

	if r.text != nil {
		body = bytes.NewReader(r.text)
	}
	if r.stream != nil {
		body = r.stream
	}
	address := "http://volagent" + api.Path(r.path...)
	if len(r.query) > 0 {
		address += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, address, body)
	if err != nil {
		return nil, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("cannot make the request: %v", err)}
	}
	if r.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if r.text != nil {
		req.Header.Set("Content-Type", "application/yaml")
	}
	if r.stream != nil {
		req.Header.Set("Content-Type", "application/octet-stream")
	}
	resp, err := c.answer(req)
	if r.method == http.MethodGet && errors.Is(err, io.EOF) {
		// The agent was stopping. If systemd keeps the socket open, the agent answers after its
		// restart.
		resp, err = c.answer(req)
	}
	if err != nil {
		return nil, c.transportError(ctx, err)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		defer resp.Body.Close()
		return nil, c.answeredError(ctx, resp)
	}

	return resp, nil
}

// do sends the request and decodes its answer, which must be a single JSON value. A list may be
// null, because Go encodes a nil list as null.
func (c *Client) do(ctx context.Context, r call, answer any) error {
	_, err := c.warned(ctx, r, answer)
	return err
}

// warned is like do, and also returns the warnings of the answer.
func (c *Client) warned(ctx context.Context, r call, answer any) (warnings []string, err error) {
	resp, err := c.send(ctx, r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, c.transportError(ctx, err)
	}
	if len(body) > maxAnswer {
		return nil, c.foreign("its answer is larger than 64 MiB")
	}
	return resp.Header.Values(api.WarningHeader), c.decode(body, answer)
}

// get sends a request whose answer is one object.
func get[T any](ctx context.Context, c *Client, r call) (*T, error) {
	out := new(T)
	if err := c.do(ctx, r, out); err != nil {
		return nil, err
	}
	return out, nil
}

// list sends a request whose answer is a list. The result is never nil.
func list[T any](ctx context.Context, c *Client, r call) ([]T, error) {
	var out []T
	if err := c.do(ctx, r, &out); err != nil {
		return nil, err
	}
	return append([]T{}, out...), nil
}

func isList(answer any) bool { return reflect.TypeOf(answer).Elem().Kind() == reflect.Slice }

func (c *Client) decode(body []byte, answer any) error {
	text := bytes.TrimSpace(body)
	if len(text) == 0 || bytes.Equal(text, []byte("null")) && !isList(answer) {
		return c.foreign("its answer is empty")
	}
	if err := json.Unmarshal(body, answer); err != nil {
		var badType *json.UnmarshalTypeError
		if errors.As(err, &badType) {
			return c.foreign("its answer has an unexpected type: " + strings.TrimPrefix(badType.Error(), "json: "))
		}
		return c.foreign("its answer is not JSON")
	}

	return nil
}
