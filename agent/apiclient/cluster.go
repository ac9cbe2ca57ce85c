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

// FenceHost states that a host is switched off. Other hosts can then take over its volumes. It is refused
// while the host is alive.
func (c *Client) FenceHost(ctx context.Context, id, reason string) (*api.Fenced, error) {
	return get[api.Fenced](ctx, c, call{method: http.MethodPost, path: []string{"nodes", id, "fence"}, body: api.FenceRequest{Reason: reason}})
}

// UnfenceHost gives a host its access to the storage back. It is refused while the host may have volumes
// mounted that it has lost.
func (c *Client) UnfenceHost(ctx context.Context, id string) (*api.Unfenced, error) {
	return get[api.Unfenced](ctx, c, call{method: http.MethodPost, path: []string{"nodes", id, "unfence"}})
}

// TestFence asks the fence hooks of the agent's host about another host. If off is set, they also switch
// the host off. That is refused while the host holds shared volumes.
func (c *Client) TestFence(ctx context.Context, id string, off bool) (*api.FenceTested, error) {
	return get[api.FenceTested](ctx, c, call{method: http.MethodPost, path: []string{"nodes", id, "fence-test"}, body: api.FenceTestRequest{Off: off}})
}

// ReplaceHost drops the holds of a host whose machine is gone. It is refused while the host is alive.
func (c *Client) ReplaceHost(ctx context.Context, id, reason string) (*api.Replaced, error) {
	return get[api.Replaced](ctx, c, call{method: http.MethodPost, path: []string{"nodes", id, "replace"}, body: api.ReplaceRequest{Reason: reason}})
}
