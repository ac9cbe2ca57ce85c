package apiclient

import (
	"context"
	"net/http"

	"github.com/volagent/volagent/agent/api"
)

// AllVolumes lists the volumes of this host, and the shared volumes of its cluster. If the cluster is
// not reachable, it returns the volumes of this host and warnings.
func (c *Client) AllVolumes(ctx context.Context) (volumes []api.Volume, warnings []string, err error) {
	warnings, err = c.warned(ctx, call{method: http.MethodGet, path: []string{"volumes"}, query: when("cluster", true)}, &volumes)
	return append([]api.Volume{}, volumes...), warnings, err
}

// AnyVolume returns a volume of this host with all its holds, or a shared volume of its cluster. If
// the cluster is not reachable, it returns the volume as this host knows it, and warnings.
func (c *Client) AnyVolume(ctx context.Context, id string) (v *api.Volume, warnings []string, err error) {
	v = &api.Volume{}
	warnings, err = c.warned(ctx, call{method: http.MethodGet, path: []string{"volumes", id}, query: when("cluster", true)}, v)
	if err != nil {
		return nil, nil, err
	}
	return v, warnings, nil
}

// Hosts lists the hosts of the cluster.
func (c *Client) Hosts(ctx context.Context) ([]api.ClusterHost, error) {
	return list[api.ClusterHost](ctx, c, call{method: http.MethodGet, path: []string{"nodes"}})
}

// Host returns a host of the cluster.
func (c *Client) Host(ctx context.Context, id string) (*api.ClusterHost, error) {
	return get[api.ClusterHost](ctx, c, call{method: http.MethodGet, path: []string{"nodes", id}})
}

// ReplaceHost drops the holds of a host whose machine is gone. It is refused while the host is alive.
func (c *Client) ReplaceHost(ctx context.Context, id, reason string) (*api.Replaced, error) {
	return get[api.Replaced](ctx, c, call{method: http.MethodPost, path: []string{"nodes", id, "replace"}, body: api.ReplaceRequest{Reason: reason}})
}
