package apiclient

import (
	"context"
	"net/http"
	"time"

	"github.com/volagent/volagent/agent/api"
)

// Drain makes the agent remove all volumes from the host. The agent also refuses new claims until a
// call of Undrain, even after a restart. Drain waits until the host has no volume, for at most the
// duration wait, and returns the remaining claims and mounts. With 0 it returns at once, and the
// agent continues in the background.
func (c *Client) Drain(ctx context.Context, wait time.Duration) (*api.Drain, error) {
	return get[api.Drain](ctx, c, call{method: http.MethodPost, path: []string{"node", "drain"}, query: waiting(wait)})
}

// Undrain makes the agent accept claims again.
func (c *Client) Undrain(ctx context.Context) (*api.Undrained, error) {
	return get[api.Undrained](ctx, c, call{method: http.MethodPost, path: []string{"node", "undrain"}})
}
