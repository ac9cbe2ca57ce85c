package apiclient

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"time"

	"github.com/volagent/volagent/agent/api"
)

// SnapshotFilter restricts a list of snapshots. Empty fields match every snapshot.
type SnapshotFilter struct {
	Plugin, Volume string
	// Secrets replace the secrets of Volume in the call to the plugin.
	Secrets map[string]api.Secret
	// Pending requests only the snapshots whose completion the agent has not seen. The agent then
	// calls no plugin.
	Pending bool
}

// CreateSnapshot makes the plugin create a snapshot, and waits until the snapshot is ready, for at
// most the duration wait. With 0 the agent calls the plugin once. A second call with the same name
// refers to the same snapshot.
func (c *Client) CreateSnapshot(ctx context.Context, req api.SnapshotRequest, wait time.Duration) (*api.Snapshot, error) {
	return get[api.Snapshot](ctx, c, call{method: http.MethodPost, path: []string{"snapshots"}, query: waiting(wait), body: req})
}

// Snapshots returns the snapshots that the plugins report.
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

// DeleteSnapshot destroys a snapshot. If the plugin is still busy with the snapshot, the agent
// repeats the call, for at most the duration wait.
func (c *Client) DeleteSnapshot(ctx context.Context, plugin, id string, ref api.SnapshotRef, wait time.Duration) error {
	_, err := get[api.Done](ctx, c, call{method: http.MethodPost, path: []string{"snapshots", plugin, id, "delete"}, query: waiting(wait), body: ref})
	return err
}

// ForgetSnapshot makes the agent forget a snapshot whose completion it has not seen. The id may
// also be the snapshot's name. The agent does not call the plugin.
func (c *Client) ForgetSnapshot(ctx context.Context, plugin, id string) (*api.Done, error) {
	return get[api.Done](ctx, c, call{method: http.MethodPost, path: []string{"snapshots", plugin, id, "delete"}, query: when("forget", true), body: api.SnapshotRef{}})
}

// CreateGroupSnapshot is like CreateSnapshot, for several volumes of one plugin.
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

// DeleteGroupSnapshot destroys a group and all its snapshots.
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
