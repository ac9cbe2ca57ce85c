package apiclient

import (
	"context"
	"net/http"

	"github.com/volagent/volagent/agent/api"
)

// Doctor holds what the agent has on record against what the host shows. It changes
// nothing.
func (c *Client) Doctor(ctx context.Context) (*api.Doctor, error) {
	return get[api.Doctor](ctx, c, call{method: http.MethodGet, path: []string{"doctor"}})
}

// DoctorFix has done about findings what can be done without a person, and says of each
// what became of it.
func (c *Client) DoctorFix(ctx context.Context, ids []string) ([]api.DoctorFixed, error) {
	return list[api.DoctorFixed](ctx, c, call{method: http.MethodPost, path: []string{"doctor", "fix"}, body: api.DoctorFix{IDs: ids}})
}
