package apiclient

import (
	"context"
	"net/http"
	"time"

	"github.com/volagent/volagent/agent/api"
)

// MoveVolume moves a shared volume from the host that holds it to another host. It waits until the holder
// has given the volume up, for at most the duration wait. After that, the holder keeps the volume.
func (c *Client) MoveVolume(ctx context.Context, id, host string, wait time.Duration) (*api.Moved, error) {
	return get[api.Moved](ctx, c, call{
		method: http.MethodPost, path: []string{"volumes", id, "move"}, query: waiting(wait), body: api.MoveRequest{Host: host},
	})
}
