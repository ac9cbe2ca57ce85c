package apiclient

import (
	"context"
	"net/http"
	"time"

	"github.com/volagent/volagent/agent/api"
)

// Drain empties the host: no new claim is taken from then on, over restarts too. It
// waits up to wait until nothing of any volume is on the host, and returns what is left
// then; with 0 it answers at once, and the rest goes on.
func (c *Client) Drain(ctx context.Context, wait time.Duration) (*api.Drain, error) {
	return get[api.Drain](ctx, c, call{method: http.MethodPost, path: []string{"node", "drain"}, query: waiting(wait)})
}

// Undrain takes claims again.
func (c *Client) Undrain(ctx context.Context) (*api.Undrained, error) {
	return get[api.Undrained](ctx, c, call{method: http.MethodPost, path: []string{"node", "undrain"}})
}
