package apiclient

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/volagent/volagent/agent/api"
)

// ModifyVolume makes the plugin change mutable parameters of a volume. Parameters that are not in
// the map mutable keep their values.
func (c *Client) ModifyVolume(ctx context.Context, id string, mutable map[string]string) (*api.VolumeResult, error) {
	return get[api.VolumeResult](ctx, c, call{method: http.MethodPost, path: []string{"volumes", id, "modify"}, body: api.ModifyRequest{Mutable: mutable}})
}

// VolumeReport asks the plugin for the usage and the health of a volume. With storage it also asks
// for the controller's data about the volume. The field Silent of the report lists the calls that
// got no answer within the time limit. A limit of 0 means 5 s.
func (c *Client) VolumeReport(ctx context.Context, id string, within time.Duration, storage bool) (*api.Report, error) {
	query := when("storage", storage)
	if within > 0 {
		query.Set("within", within.String())
	}
	return get[api.Report](ctx, c, call{method: http.MethodGet, path: []string{"volumes", id, "report"}, query: query})
}

// PluginCapacity asks the plugin how much storage it can still create.
func (c *Client) PluginCapacity(ctx context.Context, id string, q api.CapacityRequest) (*api.Capacity, error) {
	return get[api.Capacity](ctx, c, call{method: http.MethodPost, path: []string{"plugins", id, "capacity"}, body: q})
}

// PluginHealth asks the plugin for the health of its storage, and for the volumes with problems.
func (c *Client) PluginHealth(ctx context.Context, id string) (*api.PluginHealth, error) {
	return get[api.PluginHealth](ctx, c, call{method: http.MethodGet, path: []string{"plugins", id, "health"}})
}

// PluginVolumes asks the plugin for its volumes, and calls the function each for every volume as it
// arrives. It stops after limit volumes; 0 means no limit. It reports whether the plugin has more
// volumes. If ctx ends or the function each returns an error, PluginVolumes stops. It returns an
// error of that function unchanged.
func (c *Client) PluginVolumes(ctx context.Context, id string, limit int, each func(api.StorageVolume) error) (more bool, err error) {
	query := url.Values{}
	if limit > 0 {
		query.Set("limit", strconv.Itoa(limit))
	}
	for line, err := range lines[api.StorageVolumeLine](ctx, c, call{method: http.MethodGet, path: []string{"plugins", id, "volumes"}, query: query}) {
		if err != nil {
			return false, err
		}
		switch {
		case line.Error != nil:
			return false, line.Error
		case line.End != nil:
			return line.End.More, nil
		case line.Volume != nil:
			if err := each(*line.Volume); err != nil {
				return false, err
			}
		}
	}

	return false, &api.Error{Code: api.CodeUnreachable, Message: "the agent ended the list early", Hint: "systemctl status volagent"}
}
