package apiclient

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/volagent/volagent/agent/api"
)

// ClaimFilter restricts a list of claims. Empty fields match every claim.
type ClaimFilter struct {
	Volume, Alloc, Plugin string
}

// DetachOptions control how the agent detaches a claim.
type DetachOptions struct {
	// Wait is the time for which the agent waits until the claim is detached. With 0 the agent
	// answers at once.
	Wait time.Duration

	// Force permits the detach while the owner is alive.
	Force bool

	// WithoutPlugin makes the agent unmount without the plugin. Its value is the strongest
	// permitted kind of unmount: "umount", "force" or "lazy". If WithoutPlugin is empty, the agent
	// calls the plugin.
	WithoutPlugin string
}

// Claims lists the claims that match a filter.
func (c *Client) Claims(ctx context.Context, f ClaimFilter) ([]api.Claim, error) {
	query := url.Values{}
	for name, value := range map[string]string{"volume": f.Volume, "alloc": f.Alloc, "plugin": f.Plugin} {
		if value != "" {
			query.Set(name, value)
		}
	}
	return list[api.Claim](ctx, c, call{method: http.MethodGet, path: []string{"claims"}, query: query})
}

// Claim returns an alloc's claim to a volume.
func (c *Client) Claim(ctx context.Context, volume, alloc string) (*api.Claim, error) {
	return get[api.Claim](ctx, c, call{method: http.MethodGet, path: []string{"volumes", volume, "claims", alloc}})
}

// ClaimVolume claims a volume for an alloc, and waits until the volume is mounted, for at most the
// duration wait. If wait is 0, the agent answers at once. If the wait or ctx ends before the volume
// is mounted, the agent detaches the new claim again.
func (c *Client) ClaimVolume(ctx context.Context, volume, alloc string, req api.ClaimRequest, wait time.Duration) (*api.Claim, error) {
	return get[api.Claim](ctx, c, call{method: http.MethodPut, path: []string{"volumes", volume, "claims", alloc}, query: waiting(wait), body: req})
}

// DetachClaim detaches a claim. If the options request a wait and DetachClaim returns no error, the
// claim no longer exists. Without a wait, the agent continues the detach in the background.
func (c *Client) DetachClaim(ctx context.Context, volume, alloc string, o DetachOptions) error {
	_, err := c.Detach(ctx, volume, alloc, o)
	return err
}

// Detach is like DetachClaim, but also returns the leftovers.
func (c *Client) Detach(ctx context.Context, volume, alloc string, o DetachOptions) (*api.Done, error) {
	query := waiting(o.Wait)
	if o.Force {
		query.Set("force", "true")
	}
	if o.WithoutPlugin != "" {
		query.Set("without_plugin", o.WithoutPlugin)
	}
	return get[api.Done](ctx, c, call{method: http.MethodDelete, path: []string{"volumes", volume, "claims", alloc}, query: query})
}

func waiting(wait time.Duration) url.Values {
	if wait <= 0 {
		return url.Values{}
	}
	return url.Values{"wait": {wait.String()}}
}
