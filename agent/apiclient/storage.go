package apiclient

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/volagent/volagent/agent/api"
)

// ModifyVolume has the plugin give mutable parameters other values. Those that are
// not named stay as they are.
func (c *Client) ModifyVolume(ctx context.Context, id string, mutable map[string]string) (*api.VolumeResult, error) {
	return get[api.VolumeResult](ctx, c, call{method: http.MethodPost, path: []string{"volumes", id, "modify"}, body: api.ModifyRequest{Mutable: mutable}})
}

// VolumeReport asks the plugin how full the volume is and how it finds it, and with
// storage what its controller knows of it. What is not answered within a bound (0: 5 s)
// is named in Silent.
func (c *Client) VolumeReport(ctx context.Context, id string, within time.Duration, storage bool) (*api.Report, error) {
	query := when("storage", storage)
	if within > 0 {
		query.Set("within", within.String())
	}
	return get[api.Report](ctx, c, call{method: http.MethodGet, path: []string{"volumes", id, "report"}, query: query})
}

// PluginCapacity asks the plugin how much it can still create.
func (c *Client) PluginCapacity(ctx context.Context, id string, q api.CapacityRequest) (*api.Capacity, error) {
	return get[api.Capacity](ctx, c, call{method: http.MethodPost, path: []string{"plugins", id, "capacity"}, body: q})
}

// PluginHealth asks the plugin how it finds its storage, and which volumes are not
// well.
func (c *Client) PluginHealth(ctx context.Context, id string) (*api.PluginHealth, error) {
	return get[api.PluginHealth](ctx, c, call{method: http.MethodGet, path: []string{"plugins", id, "health"}})
}

// PluginVolumes asks the plugin for the volumes that it has, and calls each for up
// to limit of them (0: all) as they come. It reports whether there are more. The end
// of ctx, or an error of each, which is returned as it is, ends the listing.
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
	return false, &api.Error{Code: api.CodeUnreachable, Message: "the agent broke off the listing", Hint: "systemctl status volagent"}
}
