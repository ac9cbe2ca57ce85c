package apiclient

import (
	"context"
	"net/http"
	"time"

	"github.com/volagent/volagent/agent/api"
)

// Drain empties the host. From then on the agent refuses new claims, across restarts too. Drain
// waits for at most the duration wait until nothing of any volume is on the host, and returns the
// rest. With 0 it answers at once, and the agent continues in the background.
func (c *Client) Drain(ctx context.Context, wait time.Duration) (*api.Drain, error) {
	return get[api.Drain](ctx, c, call{method: http.MethodPost, path: []string{"node", "drain"}, query: waiting(wait)})
}

// Undrain allows claims again.
func (c *Client) Undrain(ctx context.Context) (*api.Undrained, error) {
	return get[api.Undrained](ctx, c, call{method: http.MethodPost, path: []string{"node", "undrain"}})
}
