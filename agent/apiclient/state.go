package apiclient

import (
	"context"
	"io"
	"net/http"
	"net/url"

	"github.com/volagent/volagent/agent/api"
)

// Backup streams a copy of the agent's state. A copy that is cut short ends with an error, never
// with io.EOF. The caller closes the stream.
func (c *Client) Backup(ctx context.Context) (io.ReadCloser, error) {
	resp, err := c.send(ctx, call{method: http.MethodGet, path: []string{"state", "backup"}}) //nolint:bodyclose // the stream closes it
	if err != nil {
		return nil, err
	}
	return &stream{client: c, ctx: ctx, body: resp.Body}, nil
}

// Restore adds the objects of a backup that the agent does not have. Existing objects stay
// unchanged. With dry it changes nothing and only reports the result.
func (c *Client) Restore(ctx context.Context, backup io.Reader, dry bool) (*api.Restore, error) {
	query := url.Values{}
	if dry {
		query.Set("dry_run", "true")
	}
	return get[api.Restore](ctx, c, call{method: http.MethodPost, path: []string{"state", "restore"}, query: query, stream: backup})
}
