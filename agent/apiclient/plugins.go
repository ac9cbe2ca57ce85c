package apiclient

import (
	"context"
	"net/http"
	"time"

	"github.com/volagent/volagent/agent/api"
)

// RegisterPlugin registers the plugin that the text of a plugin file defines. Errors refer to the
// file by the given name. If wait is not 0 and RegisterPlugin returns no error, the plugin is
// ready. A plugin that does not become ready stays registered.
func (c *Client) RegisterPlugin(ctx context.Context, name string, text []byte, wait time.Duration) (*api.PluginResult, error) {
	query := waiting(wait)
	query.Set("name", name)
	return get[api.PluginResult](ctx, c, call{method: http.MethodPost, path: []string{"plugins"}, query: query, text: append([]byte{}, text...)})
}

// DeregisterPlugin removes all registrations of a plugin. If the options request a wait and
// DeregisterPlugin returns no error, no process of the plugin is running.
func (c *Client) DeregisterPlugin(ctx context.Context, id string, o ControlOptions) error {
	query := waiting(o.Wait)
	if o.Force {
		query.Set("force", "true")
	}
	_, err := get[api.Done](ctx, c, call{method: http.MethodDelete, path: []string{"plugins", id}, query: query})
	return err
}
