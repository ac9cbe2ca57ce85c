package apiclient

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"time"

	"github.com/volagent/volagent/agent/api"
)

// SnapshotFilter narrows a list of snapshots; what is empty is not looked at.
type SnapshotFilter struct {
	Plugin, Volume string
	// Secrets are for the call to the plugin, in place of those of Volume.
	Secrets map[string]api.Secret
	// Pending asks for what has not been seen to be finished alone, and no plugin.
	Pending bool
}

// CreateSnapshot has the plugin make a snapshot, and waits until it is ready, up to
// wait; with 0 it asks once. The same name again goes on with the same snapshot.
func (c *Client) CreateSnapshot(ctx context.Context, req api.SnapshotRequest, wait time.Duration) (*api.Snapshot, error) {
	return get[api.Snapshot](ctx, c, call{method: http.MethodPost, path: []string{"snapshots"}, query: waiting(wait), body: req})
}

// Snapshots asks the plugins which snapshots they have.
func (c *Client) Snapshots(ctx context.Context, f SnapshotFilter) (*api.Snapshots, error) {
	query, err := withSecrets(when("pending", f.Pending), f.Secrets)
	if err != nil {
		return nil, err
	}
	for name, value := range map[string]string{"plugin": f.Plugin, "volume": f.Volume} {
		if value != "" {
			query.Set(name, value)
		}
	}
	return get[api.Snapshots](ctx, c, call{method: http.MethodGet, path: []string{"snapshots"}, query: query})
}

// DeleteSnapshot destroys a snapshot. A plugin that is at something is asked again, up
// to wait.
func (c *Client) DeleteSnapshot(ctx context.Context, plugin, id string, ref api.SnapshotRef, wait time.Duration) error {
	_, err := get[api.Done](ctx, c, call{method: http.MethodPost, path: []string{"snapshots", plugin, id, "delete"}, query: waiting(wait), body: ref})
	return err
}

// ForgetSnapshot has the agent forget a snapshot that has not been seen to be finished,
// by its name or id. The plugin is not asked.
func (c *Client) ForgetSnapshot(ctx context.Context, plugin, id string) (*api.Done, error) {
	return get[api.Done](ctx, c, call{method: http.MethodPost, path: []string{"snapshots", plugin, id, "delete"}, query: when("forget", true), body: api.SnapshotRef{}})
}

// CreateGroupSnapshot is CreateSnapshot for several volumes of one plugin.
func (c *Client) CreateGroupSnapshot(ctx context.Context, req api.GroupSnapshotRequest, wait time.Duration) (*api.GroupSnapshot, error) {
	return get[api.GroupSnapshot](ctx, c, call{method: http.MethodPost, path: []string{"snapshots", "groups"}, query: waiting(wait), body: req})
}

// GroupSnapshot asks the plugin for one group of snapshots.
func (c *Client) GroupSnapshot(ctx context.Context, plugin, id string, ref api.SnapshotRef) (*api.GroupSnapshot, error) {
	query, err := withSecrets(url.Values{}, ref.Secrets)
	if err != nil {
		return nil, err
	}
	query["snapshot"] = ref.Snapshots
	return get[api.GroupSnapshot](ctx, c, call{method: http.MethodGet, path: []string{"snapshots", "groups", plugin, id}, query: query})
}

// DeleteGroupSnapshot destroys a group with all its snapshots.
func (c *Client) DeleteGroupSnapshot(ctx context.Context, plugin, id string, ref api.SnapshotRef, wait time.Duration) error {
	_, err := get[api.Done](ctx, c, call{method: http.MethodPost, path: []string{"snapshots", "groups", plugin, id, "delete"}, query: waiting(wait), body: ref})
	return err
}

// withSecrets adds references to secrets to a query.
func withSecrets(query url.Values, secrets map[string]api.Secret) (url.Values, error) {
	if len(secrets) == 0 {
		return query, nil
	}
	raw, err := json.Marshal(secrets)
	if err != nil {
		return nil, &api.Error{Code: api.CodeInvalid, Message: "cannot encode the secrets"}
	}
	query.Set("secrets", string(raw))
	return query, nil
}
