package apiclient

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/volagent/volagent/agent/api"
)

// The states for which WaitVolume can wait.
const (
	ForMounted = api.StateMounted
	ForFree    = api.StateFree
)

// Volumes lists all volumes.
func (c *Client) Volumes(ctx context.Context) ([]api.Volume, error) {
	return list[api.Volume](ctx, c, call{method: http.MethodGet, path: []string{"volumes"}})
}

// Volume returns the volume with the given id.
func (c *Client) Volume(ctx context.Context, id string) (*api.Volume, error) {
	return c.volume(ctx, id, nil)
}

// WaitVolume makes the agent wait until the volume has the state ForMounted or ForFree. If the wait
// ends first, WaitVolume fails with api.CodeTimeout.
func (c *Client) WaitVolume(ctx context.Context, id, state string, wait time.Duration) (*api.Volume, error) {
	return c.volume(ctx, id, url.Values{"for": {state}, "wait": {wait.String()}})
}

func (c *Client) volume(ctx context.Context, id string, query url.Values) (*api.Volume, error) {
	return get[api.Volume](ctx, c, call{method: http.MethodGet, path: []string{"volumes", id}, query: query})
}

// RegisterVolume registers a volume that exists at its plugin, or merges the spec into a registered
// volume. A dry run reports the result and changes nothing.
func (c *Client) RegisterVolume(ctx context.Context, spec api.VolumeSpec, dryRun bool) (*api.VolumeResult, error) {
	return get[api.VolumeResult](ctx, c, call{method: http.MethodPut, path: []string{"volumes", spec.ID}, query: when("dry_run", dryRun), body: spec})
}

// CreateVolume makes the plugin create the volume. It changes no existing volume. If the volume
// exists and satisfies the spec, the outcome is "unchanged". If it does not satisfy the spec, the
// error has CodeRefused and names each difference. A dry run reports the result and changes
// nothing.
func (c *Client) CreateVolume(ctx context.Context, spec api.VolumeSpec, dryRun bool) (*api.VolumeResult, error) {
	return get[api.VolumeResult](ctx, c, call{method: http.MethodPost, path: []string{"volumes", spec.ID, "create"}, query: when("dry_run", dryRun), body: spec})
}

// CreateVolumeWithin is like CreateVolume. If the plugin answers that it is still working, for
// example because it copies data, the agent repeats the call, for at most the duration wait.
func (c *Client) CreateVolumeWithin(ctx context.Context, spec api.VolumeSpec, wait time.Duration) (*api.VolumeResult, error) {
	return get[api.VolumeResult](ctx, c, call{method: http.MethodPost, path: []string{"volumes", spec.ID, "create"}, query: waiting(wait), body: spec})
}

// DeregisterVolume makes the agent forget the volume. The data of the volume stays. Without force
// the agent refuses while the volume has claims or is staged or connected on the host. With force
// it refuses only if a live alloc has a claim to the volume.
func (c *Client) DeregisterVolume(ctx context.Context, id string, force bool) (*api.DeregisterResult, error) {
	return get[api.DeregisterResult](ctx, c, call{method: http.MethodDelete, path: []string{"volumes", id}, query: when("force", force)})
}

// ForgetVolume is like DeregisterVolume with force. It also makes the agent forget the leftovers,
// including those of an earlier forced deregister. The agent never removes such leftovers.
func (c *Client) ForgetVolume(ctx context.Context, id string) (*api.DeregisterResult, error) {
	query := url.Values{"force": {"true"}, "forget": {"true"}}
	return get[api.DeregisterResult](ctx, c, call{method: http.MethodDelete, path: []string{"volumes", id}, query: query})
}

// DeleteVolume destroys the volume and its data. If the volume was registered, but not created by
// this agent, confirm must repeat the id. Otherwise confirm may be empty.
func (c *Client) DeleteVolume(ctx context.Context, id, confirm string) (*api.Done, error) {
	query := url.Values{}
	if confirm != "" {
		query.Set("confirm", confirm)
	}
	return get[api.Done](ctx, c, call{method: http.MethodPost, path: []string{"volumes", id, "delete"}, query: query})
}

// ExpandVolume enlarges the volume to a size in bytes. It waits until the expansion is complete,
// for at most the duration wait. With 0 it does not wait. The agent continues the expansion in
// either case.
func (c *Client) ExpandVolume(ctx context.Context, id string, size int64, wait time.Duration) (*api.VolumeResult, error) {
	query := url.Values{}
	if wait > 0 {
		query.Set("wait", wait.String())
	}
	return get[api.VolumeResult](ctx, c, call{
		method: http.MethodPost, path: []string{"volumes", id, "expand"}, query: query, body: api.ExpandRequest{CapacityMin: size},
	})
}

// WithdrawExpansion cancels an expansion that the plugin has not made yet.
func (c *Client) WithdrawExpansion(ctx context.Context, id string) (*api.VolumeResult, error) {
	return get[api.VolumeResult](ctx, c, call{method: http.MethodDelete, path: []string{"volumes", id, "expand"}})
}

// ShareVolume makes a volume of this host a shared volume of the cluster. Before that, all hosts
// answer whether they use the storage on their own. With force, they are not asked.
func (c *Client) ShareVolume(ctx context.Context, id string, force bool) (*api.VolumeResult, error) {
	return get[api.VolumeResult](ctx, c, call{method: http.MethodPost, path: []string{"volumes", id, "share"}, query: when("force", force)})
}

// UnshareVolume makes a shared volume a volume of this host. The agent refuses while another host
// uses the volume.
func (c *Client) UnshareVolume(ctx context.Context, id string) (*api.VolumeResult, error) {
	return get[api.VolumeResult](ctx, c, call{method: http.MethodDelete, path: []string{"volumes", id, "share"}})
}

// VolumeStats asks the plugin for the usage of a volume.
func (c *Client) VolumeStats(ctx context.Context, id string) (*api.Stats, error) {
	return get[api.Stats](ctx, c, call{method: http.MethodGet, path: []string{"volumes", id, "stats"}})
}

// when returns a query that contains the named flag if on is true, and an empty query otherwise.
func when(name string, on bool) url.Values {
	query := url.Values{}
	if on {
		query.Set(name, "true")
	}
	return query
}
