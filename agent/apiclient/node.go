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

// selectPart adds the part to a query.
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
	Lines  int // the number of last lines; 0 leaves it to the agent
	Follow bool
}

// EventFilter selects events.
type EventFilter struct {
	Volume string
	Since  time.Time // zero: as far back as the agent remembers
	N      int       // the number of last events; 0 leaves it to the agent
	Follow bool
}

// Plugins lists all plugins.
func (c *Client) Plugins(ctx context.Context) ([]api.Plugin, error) {
	return list[api.Plugin](ctx, c, call{method: http.MethodGet, path: []string{"plugins"}})
}

// Plugin returns the plugin with exactly this id.
func (c *Client) Plugin(ctx context.Context, id string) (*api.Plugin, error) {
	return c.plugin(ctx, id, nil)
}

// WaitPlugin waits on the agent's side until the plugin is ready. After the
// wait it fails with api.CodeTimeout.
func (c *Client) WaitPlugin(ctx context.Context, id string, wait time.Duration) (*api.Plugin, error) {
	return c.plugin(ctx, id, url.Values{"for": {api.PluginReady}, "wait": {wait.String()}})
}

func (c *Client) plugin(ctx context.Context, id string, query url.Values) (*api.Plugin, error) {
	return get[api.Plugin](ctx, c, call{method: http.MethodGet, path: []string{"plugins", id}, query: query})
}

// ControlOptions say how the agent restarts, stops or starts a plugin.
type ControlOptions struct {
	// Wait is how long the agent waits until the plugin is ready or has ended; with 0 it answers at
	// once.
	Wait time.Duration

	// Force allows the action while volumes are in use through the plugin.
	Force bool

	// UntilRestart limits a stop to the lifetime of the running agent.
	UntilRestart bool
	Part         Part
}

// RestartPlugin stops a plugin that the agent runs, and starts it again with its file as the agent
// last read it.
func (c *Client) RestartPlugin(ctx context.Context, id string, o ControlOptions) (*api.Plugin, error) {
	return c.control(ctx, id, "restart", o)
}

// StopPlugin stops a plugin that the agent runs. It stays stopped until StartPlugin, across
// restarts of the agent too, unless UntilRestart is set.
func (c *Client) StopPlugin(ctx context.Context, id string, o ControlOptions) (*api.Plugin, error) {
	return c.control(ctx, id, "stop", o)
}

// StartPlugin undoes StopPlugin. It also retries a plugin at once that failed or is backing off.
// Force has no effect.
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

// PluginLogs streams a plugin's log. The caller closes the stream.
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

// stream converts read errors of a body into the client's errors.
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

// Node returns an overview of this host.
func (c *Client) Node(ctx context.Context) (*api.Node, error) {
	return get[api.Node](ctx, c, call{method: http.MethodGet, path: []string{"node"}})
}

// Health asks whether the agent answers.
func (c *Client) Health(ctx context.Context) (*api.Health, error) {
	return get[api.Health](ctx, c, call{method: http.MethodGet, path: []string{"health"}})
}

// Events calls each for every event, oldest first, and returns when the agent has sent them all.
// With Follow it returns only when ctx ends, the agent goes away, or each returns an error. It
// returns an error from each unchanged.
func (c *Client) Events(ctx context.Context, f EventFilter, each func(api.Event) error) error {
	query := when("follow", f.Follow)
	if f.Volume != "" {
		query.Set("volume", f.Volume)
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
