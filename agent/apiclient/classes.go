package apiclient

import (
	"context"
	"net/http"

	"github.com/volagent/volagent/agent/api"
)

// Classes lists all classes of volumes, also those whose files have mistakes.
func (c *Client) Classes(ctx context.Context) ([]api.Class, error) {
	return list[api.Class](ctx, c, call{method: http.MethodGet, path: []string{"classes"}})
}

// Class returns the class with the given id.
func (c *Client) Class(ctx context.Context, id string) (*api.Class, error) {
	return get[api.Class](ctx, c, call{method: http.MethodGet, path: []string{"classes", id}})
}
