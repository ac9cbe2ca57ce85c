package apiclient

import (
	"context"
	"io"
	"net/http"
	"net/url"

	"github.com/volagent/volagent/agent/api"
)

// Backup streams a copy of the agent's state. If the copy is incomplete, the stream ends with an
// error and never with io.EOF. The caller must close the stream.
func (c *Client) Backup(ctx context.Context) (io.ReadCloser, error) {
	resp, err := c.send(ctx, call{method: http.MethodGet, path: []string{"state", "backup"}}) //nolint:bodyclose // the stream closes it
	if err != nil {
		return nil, err
	}
	return &stream{client: c, ctx: ctx, body: resp.Body}, nil
}

// Restore adds the objects of a backup that the agent does not have yet. Existing objects do not
// change. With dry it only reports the result and changes nothing.
func (c *Client) Restore(ctx context.Context, backup io.Reader, dry bool) (*api.Restore, error) {
	query := url.Values{}
	if dry {
		query.Set("dry_run", "true")
	}
	return get[api.Restore](ctx, c, call{method: http.MethodPost, path: []string{"state", "restore"}, query: query, stream: backup})
}
