package apiclient

import (
	"context"
	"net/http"

	"github.com/volagent/volagent/agent/api"
)

// Doctor compares the agent's records with the state of the host. It changes nothing.
func (c *Client) Doctor(ctx context.Context) (*api.Doctor, error) {
	return get[api.Doctor](ctx, c, call{method: http.MethodGet, path: []string{"doctor"}})
}

// DoctorFix fixes the findings with the given ids, as far as the agent can fix them. It returns the
// outcome for each finding.
func (c *Client) DoctorFix(ctx context.Context, ids []string) ([]api.DoctorFixed, error) {
	return list[api.DoctorFixed](ctx, c, call{method: http.MethodPost, path: []string{"doctor", "fix"}, body: api.DoctorFix{IDs: ids}})
}
