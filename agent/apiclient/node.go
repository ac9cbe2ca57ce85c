package apiclient

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/volagent/volagent/agent/api"
)

// Part restricts a request to some parts of a plugin. Empty fields match every part.
type Part = api.Part

// selectPart adds the parameters of a part to a query.
func selectPart(p Part, q url.Values) {
	if p.Type != "" {
		q.Set("type", p.Type)
	}
	if p.Instance != "" {
		q.Set("instance", p.Instance)
	}
}

// LogOptions select lines of a plugin's log.
type LogOptions struct {
	Part   Part
	Lines  int // the number of last lines; 0 means the agent's default
	Follow bool
}

// EventFilter restricts a list of events. Empty fields match every event.
type EventFilter struct {
	Volume string
	Types  []string  // events of any of these types
	Since  time.Time // zero means all events that the agent has stored
	N      int       // the number of last events; 0 means the agent's default
	Follow bool
}

// Plugins lists all plugins.
func (c *Client) Plugins(ctx context.Context) ([]api.Plugin, error) {
	return list[api.Plugin](ctx, c, call{method: http.MethodGet, path: []string{"plugins"}})
}

// Plugin returns the plugin with the given id.
func (c *Client) Plugin(ctx context.Context, id string) (*api.Plugin, error) {
	return c.plugin(ctx, id, nil)
}

// WaitPlugin makes the agent wait until the plugin is ready. If the wait ends first, WaitPlugin
// fails with api.CodeTimeout.
func (c *Client) WaitPlugin(ctx context.Context, id string, wait time.Duration) (*api.Plugin, error) {
	return c.plugin(ctx, id, url.Values{"for": {api.PluginReady}, "wait": {wait.String()}})
}

func (c *Client) plugin(ctx context.Context, id string, query url.Values) (*api.Plugin, error) {
	return get[api.Plugin](ctx, c, call{method: http.MethodGet, path: []string{"plugins", id}, query: query})
}

// ControlOptions control how the agent restarts, stops or starts a plugin.
type ControlOptions struct {
	// Wait is the time for which the agent waits until the plugin is ready or has ended. With 0 the
	// agent answers at once.
	Wait time.Duration

	// Force permits the action while volumes use the plugin.
	Force bool

	// UntilRestart limits a stop: the agent starts the plugin again after its own restart.
	UntilRestart bool
	Part         Part
}

// RestartPlugin stops a plugin that the agent runs, and starts it again. It uses the plugin file that
// the agent read last.
func (c *Client) RestartPlugin(ctx context.Context, id string, o ControlOptions) (*api.Plugin, error) {
	return c.control(ctx, id, "restart", o)
}

// StopPlugin stops a plugin that the agent runs. The plugin stays stopped until a call of
// StartPlugin, even after a restart of the agent. With UntilRestart, the agent starts the plugin
// when the agent itself restarts.
func (c *Client) StopPlugin(ctx context.Context, id string, o ControlOptions) (*api.Plugin, error) {
	return c.control(ctx, id, "stop", o)
}

// StartPlugin starts a plugin that StopPlugin stopped. It also makes the agent retry a failed or
// backing-off plugin at once. It ignores Force.
func (c *Client) StartPlugin(ctx context.Context, id string, o ControlOptions) (*api.Plugin, error) {
	return c.control(ctx, id, "start", o)
}

func (c *Client) control(ctx context.Context, id, verb string, o ControlOptions) (*api.Plugin, error) {
	query := waiting(o.Wait)
	if o.Force {
		query.Set("force", "true")
	}
	if o.UntilRestart {
		query.Set("until_restart", "true")
	}
	selectPart(o.Part, query)
	return get[api.Plugin](ctx, c, call{method: http.MethodPost, path: []string{"plugins", id, verb}, query: query})
}

// PluginLogs streams a plugin's log. The caller must close the stream.
func (c *Client) PluginLogs(ctx context.Context, id string, o LogOptions) (io.ReadCloser, error) {
	query := when("follow", o.Follow)
	if o.Lines > 0 {
		query.Set("lines", strconv.Itoa(o.Lines))
	}
	selectPart(o.Part, query)
	resp, err := c.send(ctx, call{method: http.MethodGet, path: []string{"plugins", id, "logs"}, query: query}) //nolint:bodyclose // the stream closes it
	if err != nil {
		return nil, err
	}
	return &stream{client: c, ctx: ctx, body: resp.Body}, nil
}

// stream is the body of an answer. It converts read errors into the client's errors.
type stream struct {
	client *Client
	ctx    context.Context
	body   io.ReadCloser
}

func (s *stream) Read(p []byte) (int, error) {
	n, err := s.body.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = s.client.transportError(s.ctx, err)
	}
	return n, err
}

func (s *stream) Close() error { return s.body.Close() }

// Node returns the state of this host.
func (c *Client) Node(ctx context.Context) (*api.Node, error) {
	return get[api.Node](ctx, c, call{method: http.MethodGet, path: []string{"node"}})
}

// Health asks whether the agent answers.
func (c *Client) Health(ctx context.Context) (*api.Health, error) {
	return get[api.Health](ctx, c, call{method: http.MethodGet, path: []string{"health"}})
}

// Events calls the function each for every event, oldest first, and returns when the agent has sent
// all events. With Follow it returns only when ctx ends, the connection to the agent ends, or the
// function each returns an error. It returns an error of that function unchanged.
func (c *Client) Events(ctx context.Context, f EventFilter, each func(api.Event) error) error {
	query := when("follow", f.Follow)
	if f.Volume != "" {
		query.Set("volume", f.Volume)
	}
	if len(f.Types) > 0 {
		query["type"] = f.Types
	}
	if !f.Since.IsZero() {
		query.Set("since", f.Since.UTC().Format(time.RFC3339Nano))
	}
	if f.N > 0 {
		query.Set("n", strconv.Itoa(f.N))
	}
	for e, err := range lines[api.Event](ctx, c, call{method: http.MethodGet, path: []string{"events"}, query: query}) {
		if err != nil {
			return err
		}
		if err := each(e); err != nil {
			return err
		}
	}

	return nil
}
