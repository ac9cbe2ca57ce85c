package apiclient

import (
	"context"
	"io"
	"net/http"
	"net/url"

	"github.com/volagent/volagent/agent/api"
)

// Backup streams a copy of all that the agent remembers. A copy that is cut short ends
// with an error, never with io.EOF. The caller closes the stream.
func (c *Client) Backup(ctx context.Context) (io.ReadCloser, error) {
	resp, err := c.send(ctx, call{method: http.MethodGet, path: []string{"state", "backup"}}) //nolint:bodyclose // the stream closes it
	if err != nil {
		return nil, err
	}
	return &stream{client: c, ctx: ctx, body: resp.Body}, nil
}

// Restore takes in what a backup holds and the agent does not have. What is there stays
// as it is. With dry it only says what it would do.
func (c *Client) Restore(ctx context.Context, backup io.Reader, dry bool) (*api.Restore, error) {
	query := url.Values{}
	if dry {
		query.Set("dry_run", "true")
	}
	return get[api.Restore](ctx, c, call{method: http.MethodPost, path: []string{"state", "restore"}, query: query, stream: backup})
}
